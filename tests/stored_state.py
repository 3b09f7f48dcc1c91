"""What a home holds: a refused command must leave it as it was."""

import sqlite3
from pathlib import Path


def state_of(home: Path) -> tuple[list[tuple[object, ...]], list[str]]:
    """The rows of the ledger's tables, and the names of the stores' artifacts."""
    entries: list[tuple[object, ...]] = []
    if (home / "ledger.db").exists():
        connection = sqlite3.connect(home / "ledger.db")
        for (name,) in connection.execute("select name from sqlite_master where type = 'table'").fetchall():
            if not name.endswith(("meta", "secrets", "chain")):
                entries += connection.execute(f'select * from "{name}"').fetchall()
        connection.close()
    kept = [p.name for root in ("private/artifacts", "exchange") for p in (home / root).glob("*") if p.is_dir()]
    return entries, kept
