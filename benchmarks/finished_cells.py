"""Finished cells of a benchmark: one JSON file each, whole or not there; what is published holds no text."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Keys of a cell whose values are rows, real or synthetic: they stay in the cache.
TEXTS = ("texts", "samples")


@contextmanager
def aside(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """A path beside the one wanted, renamed in the end: another process sees all of it or nothing."""
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    if folder:
        part.mkdir(parents=True, exist_ok=True)
    yield part
    if folder and path.exists():
        shutil.rmtree(part)
    else:
        part.rename(path)


def write(path: Path, value: Any) -> None:
    """JSON, whole or not at all."""
    with aside(path) as part:
        part.write_text(json.dumps(value) + "\n")


def read(name: str, *folders: Path | None, digest: str | None = None) -> dict[str, Any] | None:
    """A cell's figures from the first folder that has them, made under the same settings; None where there are none.

    Args:
        name: of the cell.
        folders: cache first, then what is published; None for none.
        digest: of the settings; None where the name says them all.
    """
    for folder in folders:
        path = None if folder is None else folder / f"{name}.json"
        if path is not None and path.exists():
            found: dict[str, Any] = json.loads(path.read_text())
            if digest is None or found["digest"] == digest:
                return found
    return None


def publish(name: str, value: dict[str, Any] | None, folder: Path | None) -> None:
    """A finished cell beside the script: every figure, which test rows were right, no text."""
    if folder is None or value is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"{name}.json", {key: found for key, found in value.items() if key not in TEXTS})
