"""Where runs have put their results, so that `purge` finds what was computed from real rows in users' folders.

One small file per folder and source under the private root; written before anything of the source is in the folder, so
that a kill in between leaves a note of nothing. A source's note stays when another source's run takes the folder over:
until that run's results are in place, and after a kill, what the first one left is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from pathlib import Path

from understudy.durable import write_atomically
from understudy.runs.folders import INTERNAL, RUN_FILE
from understudy.settings import private_directory, settings


def remember(out: Path, *, source: str) -> None:
    """Note that DIR/internal holds figures computed from the rows of `source`."""
    place = str(out.absolute())
    name = hashlib.sha256(f"{place}\0{source}".encode()).hexdigest()[:32]
    write_atomically(_notes() / f"{name}.json", json.dumps({"out": place, "source": source}).encode())


def remove_internal(source: str) -> list[str]:
    """Remove DIR/internal of every run of `source`; what it exported stays, for it was released.

    A folder that holds another source's run by now is left alone, and so is one that was moved away. A note that does
    not read names no folder, and is removed.

    Returns:
        The folders DIR.
    """
    removed = []
    for path in sorted(_notes().glob("*.json")):
        try:
            note = json.loads(path.read_bytes())
            out, noted = Path(note["out"]), note["source"]
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)
            continue
        if noted != source:
            continue
        if _source_of(out / INTERNAL) == source:
            shutil.rmtree(out / INTERNAL)
            removed.append(str(out))
        path.unlink(missing_ok=True)
    return removed


def _source_of(internal: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((internal / RUN_FILE).read_text())["source"])
    return None


def _notes() -> Path:
    return private_directory(settings().private_root / "delivered")
