"""Where a process writes while it runs a flow: by Python's own audit events, and by looking for files afterwards."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confinement import MAKING, WRITING

# Each event's arguments that name something which is made, changed or removed there.
_PLACES = MAKING | dict.fromkeys(("tempfile.mkstemp", "tempfile.mkdtemp"), (0,))
_watching: list[set[str]] = []


def _hook(event: str, arguments: tuple) -> None:
    if not _watching or (event != "open" and event not in _PLACES):
        return
    if event == "open":
        places = arguments[:1] if isinstance(arguments[2], int) and arguments[2] & WRITING else ()
    else:
        places = tuple(arguments[index] for index in _PLACES[event])
    for place in places:
        if not isinstance(place, str | bytes | os.PathLike):
            continue
        # SQLite takes a URL too.
        path = os.path.abspath(os.fsdecode(place).removeprefix("file:").partition("?")[0])
        if event != "os.mkdir" or not os.path.isdir(path):
            _watching[-1].add(path)


sys.addaudithook(_hook)


@contextmanager
def written_places() -> Iterator[set[str]]:
    """Collects absolute paths of what Python code of this process opens for writing, makes or renames."""
    found: set[str] = set()
    _watching.append(found)
    try:
        yield found
    finally:
        _watching.remove(found)


def without_compiling(places: set[str], temporary: Path) -> set[str]:
    """Without what Triton puts into a temporary folder to compile a kernel: its code, and a program that starts it."""
    of_triton = re.compile(
        rf"{re.escape(str(temporary))}(/\w{{8}}|/tmp\w{{8}}(\.ptx|\.log|/(cuda_utils|__triton_launcher)\.c)?)?"
    )
    return {place for place in places if not of_triton.fullmatch(place)}


def outside(places: set[str], allowed: list[Path], *, empty: list[Path]) -> list[str]:
    """Places that lie in none of the allowed folders, and what compiled code, which tells nobody, left in `empty`."""
    roots = [str(root) for root in allowed]
    strange = {place for place in places if not any(place == root or place.startswith(f"{root}/") for root in roots)}
    # Byte code beside modules, made where a module is imported for the first time.
    strange = {place for place in strange if "__pycache__" not in place and not place.startswith("/dev/")}
    return sorted(strange | {str(path) for folder in empty for path in folder.rglob("*")})
