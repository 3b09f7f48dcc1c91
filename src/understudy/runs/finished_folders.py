"""Where runs have put their results, so that `purge` finds what was computed from real rows in users' folders.

One small file per folder and source under the private root; written before anything of the source is in the folder, so
that a kill in between leaves a note of nothing. A source's note stays when another source's run takes the folder over:
until that run's results are in place, and after a kill, what the first one left is there.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from understudy.durable import write_atomically
from understudy.settings import private_directory, settings


def remember(out: Path, *, source: str) -> None:
    """Note that what follows from the rows of `source` is about to be put into DIR; the folder is locked for it."""
    place = str(out.absolute())
    name = hashlib.sha256(f"{place}\0{source}".encode()).hexdigest()[:32]
    write_atomically(_notes() / f"{name}.json", json.dumps({"out": place, "source": source}).encode())


def noted(source: str) -> list[tuple[Path, Path]]:
    """The notes of a source, each with its DIR; one that does not read names no folder, and is removed."""
    found = []
    for path in sorted(_notes().glob("*.json")):
        try:
            note = json.loads(path.read_bytes())
            out, whose = Path(note["out"]), note["source"]
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)
            continue
        if whose == source:
            found.append((path, out))
    return found


def _notes() -> Path:
    return private_directory(settings().private_root / "delivered")
