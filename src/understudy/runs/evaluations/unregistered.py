"""Reports on rows that no source has yet: noted, so that a source which registers the rows later takes them over.

A note is one file under the private root for each report: its folder, and a hash of each row under a random key of the
note. It stands before anybody asks whose the rows are, so that rows which are registered meanwhile are seen by one side
or the other.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from understudy.durable import write_atomically
from understudy.locks import locked_folder
from understudy.runs.finished_folders import remember
from understudy.settings import private_directory, settings

SOURCES_FILE = "sources.json"


def note_rows(out: Path, digests: Iterable[bytes]) -> Path:
    """Note which rows the report in a folder is about to be made of.

    Args:
        out: the folder.
        digests: of the rows, from `data.digests.row_digests`; b"" is nobody's.

    Returns:
        The note, for `forget_rows`.
    """
    key, note = secrets.token_bytes(32), _notes() / f"{secrets.token_hex(16)}.json"
    value = {"out": str(out.absolute()), "key": key.hex(), "rows": sorted(_keyed(key, digests))}
    write_atomically(note, json.dumps(value).encode())
    return note


def forget_rows(out: Path, *, but: Path | None = None) -> None:
    """Remove the notes of a folder, all or all but one: what they are of is not there any more."""
    place = str(out.absolute())
    for note, value in _read():
        if value["out"] == place and note != but:
            note.unlink(missing_ok=True)


def take_over(source: str, digests: Iterable[bytes]) -> None:
    """Say of each report that was made of any of these rows that it is of `source`, which has registered them."""
    own = [digest for digest in digests if digest]
    for _, value in _read():
        if _keyed(bytes.fromhex(value["key"]), own).isdisjoint(value["rows"]):
            continue
        out = Path(value["out"])
        remember(out, source=source)
        try:
            with locked_folder(out):  # the report may be on its way
                tell_sources(out, {source, *(sources_told(out) or ())})
        # The note for the next purge stands: it looks there, and says what it finds.
        except OSError:
            continue


def sources_told(out: Path) -> set[str] | None:
    """The sources whose rows the report in a folder is made of; None where nothing there says it."""
    try:
        return set(json.loads((out / SOURCES_FILE).read_bytes())["sources"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def tell_sources(out: Path, sources: Iterable[str]) -> None:
    """Say beside a report whose rows it is made of; the folder is locked for it."""
    write_atomically(out / SOURCES_FILE, json.dumps({"sources": sorted(sources)}).encode())


def _keyed(key: bytes, digests: Iterable[bytes]) -> set[str]:
    return {hmac.digest(key, digest, "sha256").hex() for digest in digests if digest}


def _read() -> list[tuple[Path, dict[str, Any]]]:
    """The notes; one that does not read names no folder, and is removed."""
    found = []
    for path in sorted(_notes().glob("*.json")):
        try:
            value = json.loads(path.read_bytes())
            found.append((path, {name: value[name] for name in ("out", "key", "rows")}))
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)
    return found


def _notes() -> Path:
    return private_directory(settings().private_root / "evaluated")
