"""What is written is on the disk: after a loss of power a file is there, whole, under its name."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

# What a disk says of itself, and not of one file: it is full, a quota or a limit is reached, it fails or is read-only.
OF_A_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
# What SQLite and PostgreSQL call a disk that takes no more; to SQLite a quota is an error of writing.
_OF_A_FULL_DISK: Final = {"SQLITE_FULL", "SQLITE_IOERR_WRITE", "53100"}
_PART: Final = ".part"
_DESCRIPTORS: Final = Path("/proc/self/fd")


def is_of_disk(error: OSError) -> bool:
    """Whether the disk is full or fails, as opposed to one file that is not there or not allowed."""
    return error.errno in OF_A_DISK


def is_of_full_database(error: BaseException | None) -> bool:
    """Whether a database's driver says that the disk of the database takes no more."""
    return (getattr(error, "sqlite_errorname", None) or getattr(error, "sqlstate", None)) in _OF_A_FULL_DISK


@contextmanager
def naming(place: Path) -> Iterator[None]:
    """Say of a disk that is full or fails where it is: an error of writing into an open file names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and is_of_disk(error):
            error.filename = str(place)
        raise


def sync(path: Path) -> None:
    """Bring one file, or the entries of one directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Bring a folder with all that is in it to the disk; links are not followed."""
    for parent, _, names in os.walk(path, topdown=False):
        for file in (Path(parent, name) for name in names):
            if not file.is_symlink():
                sync(file)
        sync(Path(parent))


def make_folder(path: Path) -> None:
    """Make a folder (mode 0700) and those above it that are missing; each is on the disk, in the one that holds it."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True, mode=0o700)
        sync(folder.parent)


def write_atomically(path: Path, content: bytes, *, once: bool = False) -> None:
    """Write a file (mode 0600): a reader, or a crash, finds the old content or the new, never a part.

    Args:
        path: the file; missing folders are made, readable by this user only.
        content: all of it.
        once: keep the file that is already there.
    """
    make_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with naming(path), os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if once:
            with suppress(FileExistsError):
                os.link(name, path)
        else:
            Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
    sync(path.parent)


def write_new(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write a file that is not there yet: a reader, or a kill, finds all of it or none, and no part beside it.

    Where a file system knows no files without a name, or gives them none afterwards, a kill leaves a part that
    `remove_parts` removes. Where it knows no second names of a file either, nobody else may write meanwhile.

    Args:
        path: the file; its folder exists.
        write: writes all of it.

    Raises:
        FileExistsError: there is a file of this name by now; it stays as it is.
    """
    part = path.with_name(f".{path.name}{_PART}")
    descriptor, done = _open_without_name(path.parent), False
    try:
        with naming(path), open(part if descriptor is None else descriptor, "w+b") as file:
            write(file)
            _bring(file)
            if descriptor is not None:
                done = _give_name(descriptor, path)
                if not done:
                    _copy(file, part)
        if not done:
            _rename(part, path)
    finally:
        if not done:
            part.unlink(missing_ok=True)
    sync(path.parent)


def _open_without_name(folder: Path) -> int | None:
    """A file in `folder` that goes with its descriptor, unless it is given a name; None where there are none such."""
    if not hasattr(os, "O_TMPFILE") or not _DESCRIPTORS.is_dir():
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError:
        return None


def _give_name(descriptor: int, path: Path) -> bool:
    """Give a file without a name its own; whether that can be done here.

    Raises:
        FileExistsError: another file has the name.
    """
    # With the descriptor of a folder Python follows the link, and so names the file itself.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(_DESCRIPTORS / str(descriptor), path.name, dst_dir_fd=folder)
    except FileExistsError:
        raise
    except OSError as error:
        if is_of_disk(error):
            raise
        return False
    finally:
        os.close(folder)
    return True


def _copy(file: IO[bytes], part: Path) -> None:
    file.seek(0)
    with open(part, "wb") as copy:
        shutil.copyfileobj(file, copy)
        _bring(copy)


def _rename(part: Path, path: Path) -> None:
    """Give a part the name of the whole, but no name that another file has."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        part.rename(path)


def _bring(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def remove_parts(folder: Path, *, ending: str) -> None:
    """Remove parts of files of one ending that a kill left in a folder in which nobody writes meanwhile."""
    for part in folder.glob(f".*{ending}{_PART}"):
        with suppress(OSError):  # a folder that is only read
            part.unlink()
