"""A lock that dies with its holder: `flock` on a file or a folder, exclusive between processes and between threads."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from understudy.durable import naming


def try_lock(path: Path) -> int | None:
    """Lock `path` (made with mode 0600 if need be) and return its descriptor, or None when it is held.

    The kernel frees the lock when the holder closes the descriptor or dies, by SIGKILL too.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if is_current(descriptor, path):
            return descriptor
        # The last holder removed the file between our open and our lock: that lock excludes nobody.
        os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock on `path`, waiting for it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if is_current(descriptor, path):
            break
        os.close(descriptor)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked_one(paths: Sequence[Path], waiting: Callable[[float], None], *, every_s: float = 0.2) -> Iterator[int]:
    """Hold one of several locks, the first that is free; gives its place among `paths`.

    Args:
        paths: the locks; each holds the number of the process that has it.
        waiting: called with the seconds waited for so far, as long as none is free.
        every_s: seconds between two looks.
    """
    began = time.monotonic()
    while True:
        for index, path in enumerate(paths):
            descriptor = try_lock(path)
            if descriptor is not None:
                try:
                    os.truncate(descriptor, 0)
                    with naming(path):
                        os.write(descriptor, str(os.getpid()).encode())
                    yield index
                finally:
                    os.close(descriptor)
                return
        waiting(time.monotonic() - began)
        time.sleep(every_s)


def holder_of(path: Path) -> str | None:
    """Who holds the lock on `path`: what `locked_one` wrote there, the process's number; None when it is free."""
    descriptor = try_lock(path)
    if descriptor is None:
        return path.read_text().strip() or "unknown"
    os.close(descriptor)
    return None


@contextmanager
def locked_folder(folder: Path, *, made: int | None = None) -> Iterator[None]:
    """Hold the lock on a folder, waiting for it; nothing is written into it.

    Args:
        folder: to be locked; whoever holds the lock may remove it.
        made: mode with which it is made where it is not there; None for one that must be.

    Raises:
        FileNotFoundError: it is not there, or was removed while its lock was waited for.
    """
    while True:
        if made is not None:
            folder.mkdir(mode=made, parents=True, exist_ok=True)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            if made is None:
                raise
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_current(descriptor, folder):
                yield
                return
        finally:
            os.close(descriptor)


def is_current(descriptor: int, path: Path) -> bool:
    """Whether it is this file or folder that is open, and not one that was removed or replaced since."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
