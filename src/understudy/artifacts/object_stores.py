"""An exchange store behind an fsspec URL: files first, manifest last, and a local copy that is checked.

Only public and released artifacts get here. A reader works on a copy under the home directory; the copy
counts only while the remote manifest still says the same, so an artifact removed there is missing here too.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
from pydantic import ValidationError

from understudy.artifacts.draft import open_draft
from understudy.artifacts.manifest import MANIFEST, Manifest, verify_directory
from understudy.errors import ArtifactDamaged, InputError
from understudy.settings import private_directory, settings


def is_remote(root: str) -> bool:
    """Whether `root` is an fsspec URL other than `file://`."""
    return "://" in root and not root.startswith("file://")


def copies_root() -> Path:
    """Where local copies of remote artifacts are kept and drafts for remote stores are written."""
    return private_directory(settings().home / "cache" / "exchange")


def upload(directory: Path, url: str) -> None:
    """Write a finished local artifact to `url`; a crash leaves files without a manifest, which is nothing."""
    system, remote = _open(url)
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        name = path.relative_to(directory).as_posix()
        if name != MANIFEST:
            system.makedirs(os.path.dirname(f"{remote}/{name}"), exist_ok=True)
            system.pipe_file(f"{remote}/{name}", path.read_bytes())
    system.pipe_file(f"{remote}/{MANIFEST}", (directory / MANIFEST).read_bytes())


def fetch(url: str) -> Path:
    """The checked local copy of the artifact at `url`.

    Raises:
        ArtifactDamaged: when the remote artifact is missing, incomplete or changed.
    """
    system, remote = _open(url)
    name = url.rsplit("/", 1)[-1]
    try:
        manifest = system.cat_file(f"{remote}/{MANIFEST}")
    except FileNotFoundError:
        raise ArtifactDamaged(f"artifact {name}: no {MANIFEST} at {url}; run the task that made it again") from None
    copy = copies_root() / name
    if _is_copy_of(copy, manifest):
        return copy
    with open_draft(copies_root()) as draft:
        try:
            system.get(f"{remote}/", f"{draft}/", recursive=True)
            verify_directory(draft)
            shutil.rmtree(copy, ignore_errors=True)
            draft.rename(copy)
        except (OSError, ArtifactDamaged) as error:
            # Another reader may have put the same copy there first.
            if not _is_copy_of(copy, manifest):
                raise ArtifactDamaged(f"artifact {name}: could not be read whole from {url}: {error}") from None
    return copy


def try_writing(root: str) -> None:
    """Write a small object into the store at `root` and remove it.

    Raises:
        InputError: naming what the store said.
    """
    system, remote = _open(root)
    probe = f"{remote.rstrip('/')}/.understudy-probe-{secrets.token_hex(8)}"
    try:
        system.makedirs(remote, exist_ok=True)
        system.pipe_file(probe, b"written")
        system.rm_file(probe)
    # Each driver has errors of its own.
    except Exception as error:
        raise InputError(
            f"UNDERSTUDY_EXCHANGE: expected a store that answers and can be written, found {type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}; fix its address or credentials"
        ) from None


def names(root: str) -> Iterator[str]:
    """The names of the finished artifacts in the store at `root`."""
    system, remote = _open(root)
    if not system.exists(remote):
        return
    for entry in system.ls(remote, detail=False):
        if system.exists(f"{entry}/{MANIFEST}"):
            yield str(entry).rstrip("/").rsplit("/", 1)[-1]


def manifest_at(url: str) -> Manifest:
    """The manifest of the artifact at `url`; nothing else of it is read.

    Raises:
        ArtifactDamaged: when it is missing or does not read.
    """
    system, remote = _open(url)
    try:
        return Manifest.model_validate_json(system.cat_file(f"{remote}/{MANIFEST}"))
    except (OSError, ValidationError) as error:
        raise ArtifactDamaged(
            f"artifact {url.rsplit('/', 1)[-1]}: expected a readable {MANIFEST} at {url}, found "
            f"{type(error).__name__}; run the task that made it again"
        ) from None


def age_of(url: str, now: float) -> float:
    """Seconds since the artifact at `url` was finished; none where the store does not tell, or it is gone by now."""
    system, remote = _open(url)
    try:
        return now - float(system.modified(f"{remote}/{MANIFEST}").timestamp())
    except (NotImplementedError, FileNotFoundError):
        return 0.0


def remove(url: str) -> None:
    """Remove the artifact at `url`, the manifest first, and its local copy."""
    system, remote = _open(url)
    # Somebody else who shares the store may be removing it too.
    with suppress(FileNotFoundError):
        system.rm_file(f"{remote}/{MANIFEST}")
    with suppress(FileNotFoundError):
        system.rm(remote, recursive=True)
    shutil.rmtree(copies_root() / url.rsplit("/", 1)[-1], ignore_errors=True)


def _is_copy_of(copy: Path, manifest: bytes) -> bool:
    try:
        verify_directory(copy)
        return (copy / MANIFEST).read_bytes() == manifest
    except (ArtifactDamaged, OSError):
        return False


def _open(url: str) -> tuple[Any, str]:
    try:
        system, remote = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"UNDERSTUDY_EXCHANGE={url}: expected a path or a URL with an installed fsspec driver: {error}"
        ) from None
    return system, str(remote)
