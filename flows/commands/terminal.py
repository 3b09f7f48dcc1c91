"""What commands print: records and notes, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

console = Console()
notes = Console(stderr=True)
if not console.is_terminal:
    console.width = 100_000  # in a pipe or a log each line is whole, however long a path in it


def show(value: Mapping[str, Any], *, as_json: bool, title: str = "") -> None:
    """Print a record: JSON for programs, a two-column table for people."""
    if as_json:
        console.print_json(json.dumps(value, default=str))
        return
    columns = [Column(overflow="fold"), Column(overflow="fold")]
    table = Table(*columns, title=escape(title) or None, show_header=False, box=None, title_justify="left")
    for name, entry in value.items():
        # As text: a path may hold brackets, which are markup otherwise.
        table.add_row(Text(name.replace("_", " ")), Text(_told(entry)))
    with console.capture() as captured:
        console.print(table)
    # Rich fills every line up to the longest one.
    console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _told(entry: Any) -> str:
    """A value in words: each of several on a line of its own.

    >>> _told({"epsilon": 3.0, "unit": "example"}), _told(["one", "two"]).splitlines(), _told(0.5)
    ('epsilon 3.0, unit example', ['one', 'two'], '0.5')
    >>> _told([]), _told({}), _told(None)
    ('none', 'none', 'none')
    """
    if entry is None or (isinstance(entry, Mapping | list | tuple) and not entry):
        return "none"
    if isinstance(entry, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_told(part)}" for name, part in entry.items())
    if isinstance(entry, list | tuple):
        return "\n".join(map(_told, entry))
    return entry if isinstance(entry, str) else json.dumps(entry, default=str)


def say(text: str, *, style: str | None = None) -> None:
    """Tell people, beside what goes to stdout; in a log each note is one line."""
    notes.print(text, markup=False, highlight=False, style=style, soft_wrap=not notes.is_terminal)
