"""Drafts: directories beside the finished artifacts, locked by their writer and swept when it is dead."""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from understudy.durable import sync
from understudy.locks import try_lock

DRAFT = ".tmp-"
_DRAFT_NAME = re.compile(rf"{re.escape(DRAFT)}[0-9a-f]{{16}}([.]lock)?")


@contextmanager
def open_draft(root: Path) -> Iterator[Path]:
    """A new empty directory under `root`, gone after the block unless it was renamed away."""
    path = new_name(root)
    # A sweep may hold the fresh lock for a moment; another name is then as good.
    while (descriptor := try_lock(path.with_suffix(".lock"))) is None:
        path = new_name(root)
    try:
        path.mkdir(mode=0o700)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
        os.close(descriptor)


def new_name(root: Path) -> Path:
    """A path under `root` that nobody uses and that `sweep` removes."""
    return root / f"{DRAFT}{secrets.token_hex(8)}"


def sweep(root: Path) -> None:
    """Remove the drafts under `root` whose writer is dead."""
    for path in root.glob(f"{DRAFT}*"):
        if not _DRAFT_NAME.fullmatch(path.name):
            continue  # a shared folder may hold others' temporary files
        lock = path.with_suffix(".lock")
        descriptor = try_lock(lock)
        if descriptor is None:
            continue
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def finalize(directory: Path, *, private: bool) -> None:
    """Bring every file and directory to the disk, closed to other users when private."""
    for parent, folders, names in os.walk(directory, topdown=False):
        for name in names:
            path = Path(parent) / name
            path.chmod(0o600 if private else 0o644)
            sync(path)
        for name in folders:
            (Path(parent) / name).chmod(0o700 if private else 0o755)
        sync(Path(parent))
    directory.chmod(0o700 if private else 0o755)
