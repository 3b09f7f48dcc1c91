"""What is written is on the disk: after a loss of power a file is there, whole, under its name."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Bring one file, or the entries of one directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
