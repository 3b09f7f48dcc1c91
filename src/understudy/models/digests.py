"""Digests of files, remembered as long as a file keeps its name, size and modification time. No torch."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path


def file_digest(path: Path) -> str:
    """Sha256 (hex) over the bytes of a file."""
    found = path.stat()
    return _digest_of(str(path), found.st_size, found.st_mtime_ns, found.st_ino)


@lru_cache(maxsize=256)
def _digest_of(name: str, size: int, changed: int, inode: int) -> str:
    with Path(name).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
