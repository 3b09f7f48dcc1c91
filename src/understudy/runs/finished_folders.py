"""Where runs have put their results, so that `purge` finds what was computed from real rows in users' folders.

One small file per folder and source under the private root; written before anything of the source is in the folder, so
that a kill in between leaves a note of nothing. A source's note stays when another source's run takes the folder over:
until that run's results are in place, and after a kill, what the first one left is there.

A note of its own says that the export of a folder does not stay either, whatever its statement promises: that of an
audit's claim, until it is removed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from understudy.durable import write_atomically
from understudy.settings import private_directory, settings

_WITHHELD = "withheld"


def remember(out: Path, *, source: str, withheld: bool = False) -> None:
    """Note that what follows from the rows of `source` is about to be put into DIR; the folder is locked for it.

    Args:
        out: DIR.
        source: whose rows they are.
        withheld: whether an export in DIR does not stay.
    """
    note = {"out": str(out.absolute()), "source": source} | ({_WITHHELD: True} if withheld else {})
    write_atomically(_note(out, source, withheld=withheld), json.dumps(note).encode())


def forget_withheld(out: Path, *, source: str) -> None:
    """Remove the note that an export in DIR does not stay: it is gone."""
    _note(out, source, withheld=True).unlink(missing_ok=True)


def is_withheld(note: Path) -> bool:
    """Whether a note says that the export of its folder does not stay; not where it is gone."""
    try:
        return bool(json.loads(note.read_bytes()).get(_WITHHELD))
    except FileNotFoundError:
        return False


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


def _note(out: Path, source: str, *, withheld: bool) -> Path:
    words = f"{out.absolute()}\0{source}" + (f"\0{_WITHHELD}" if withheld else "")
    return _notes() / f"{hashlib.sha256(words.encode()).hexdigest()[:32]}.json"


def _notes() -> Path:
    return private_directory(settings().private_root / "delivered")
