"""Where runs have put their results, so that `purge` finds what was computed from real rows in users' folders.

One small file per folder and source under the private root; written before anything of the source is in the folder, so
that a kill in between leaves a note of nothing. A source's note stays when another source's run takes the folder over:
until that run's results are in place, and after a kill, what the first one left is there.

A note of its own says that the export of a folder does not stay either, whatever its statement promises: that of an
audit's claim, until it is removed or another run's takes its place.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from understudy.durable import write_atomically
from understudy.settings import private_directory, settings

_WITHHELD = "withheld"


def remember(out: Path, *, source: str, withheld: str = "") -> None:
    """Note that what follows from the rows of `source` is about to be put into DIR; the folder is locked for it.

    Args:
        out: DIR.
        source: whose rows they are.
        withheld: key of the run whose export in DIR does not stay; empty for one that stays.
    """
    note = {"out": str(out.absolute()), "source": source} | ({_WITHHELD: withheld} if withheld else {})
    write_atomically(_note(out, source, withheld=bool(withheld)), json.dumps(note).encode())


def withholds(out: Path) -> bool:
    """Whether it is noted of any source that an export in DIR does not stay."""
    return any(_WITHHELD in note and note["out"] == str(out.absolute()) for _, note in _read())


def forget_withheld(out: Path, *, source: str) -> None:
    """Remove the note that an export in DIR does not stay: it is gone."""
    _note(out, source, withheld=True).unlink(missing_ok=True)


def forget_withheld_before(out: Path, *, run: str) -> None:
    """Remove every note that an export in DIR does not stay, but for this run's: what is there now is of this run.

    Args:
        out: DIR, locked.
        run: key of the run.
    """
    for path, note in _read():
        if note.get(_WITHHELD, run) != run and note["out"] == str(out.absolute()):
            path.unlink(missing_ok=True)


def is_withheld(note: Path) -> bool:
    """Whether a note says that the export of its folder does not stay; not where it is gone."""
    try:
        return bool(json.loads(note.read_bytes()).get(_WITHHELD))
    except FileNotFoundError:
        return False


def noted(source: str) -> list[tuple[Path, Path]]:
    """The notes of a source, each with its DIR; one that does not read names no folder, and is removed.

    Those of exports that do not stay come first: what such a one is cut down to does not say whose it is.
    """
    found = [(path, note) for path, note in _read() if note["source"] == source]
    return [(path, Path(note["out"])) for path, note in sorted(found, key=lambda one: _WITHHELD not in one[1])]


def is_noted(out: Path) -> bool:
    """Whether any source has a note of DIR."""
    return any(note["out"] == str(out.absolute()) for _, note in _read())


def _read() -> list[tuple[Path, dict[str, Any]]]:
    """Every note with what it says; one that does not read is removed."""
    found = []
    for path in sorted(_notes().glob("*.json")):
        try:
            note = json.loads(path.read_bytes())
            Path(note["out"]), note["source"]
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)
            continue
        found.append((path, note))
    return found


def _note(out: Path, source: str, *, withheld: bool) -> Path:
    words = f"{out.absolute()}\0{source}" + (f"\0{_WITHHELD}" if withheld else "")
    return _notes() / f"{hashlib.sha256(words.encode()).hexdigest()[:32]}.json"


def _notes() -> Path:
    return private_directory(settings().private_root / "delivered")
