"""Tables of the benchmarks: markdown for the reader, and the same figures as JSON beside it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, str]


def print_table(rows: Sequence[Row], title: str = "") -> None:
    """Print rows as a markdown table, without columns that are empty in all of them."""
    if title:
        print(f"\n### {title}\n")
    every = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in every if any(row.get(name) for row in rows)]
    if not names:
        print("Nothing finished yet.")
        return
    print("| " + " | ".join(names) + " |")
    print("|---" * len(names) + "|")
    for row in rows:
        print("| " + " | ".join(row.get(name, "") for name in names) + " |", flush=True)


def write_figures(path: Path, tables: Mapping[str, Any], **facts: Any) -> None:
    """Write the tables and the command that made them.

    Raises:
        SystemExit: every table is empty, or one would lose all rows that it has in the file; the file stays as it is.
    """
    before = json.loads(path.read_text()) if path.exists() else {}
    lost = [name for name, rows in tables.items() if not rows and before.get(name)]
    if lost or not any(tables.values()):
        names = ", ".join(lost or tables)
        raise SystemExit(f"{path}: not written; expected rows, found none for: {names}; choose another file")
    path.write_text(json.dumps({"command": sys.argv, **facts, **tables}, indent=1, ensure_ascii=False) + "\n")


def interval_text(found: Sequence[float] | None) -> str:
    """A figure with its interval; empty where there is none."""
    return "" if found is None else f"{found[0]:.3f} [{found[1]:.3f}, {found[2]:.3f}]"
