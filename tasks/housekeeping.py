"""Removing what is no longer needed: `gc` what no run references, `purge` what came from a source's rows."""

from __future__ import annotations

import json
import shutil
from typing import Any

from understudy import artifacts
from understudy.artifacts import exchange_store, private_store
from understudy.privacy.ledger import Ledger
from understudy.settings import Settings, private_directory, settings
from understudy.tasks import leases
from understudy.tasks.ticket import drop_journal

# Caches under the private root that hold content of private rows and can be computed again.
CACHES = ("embeddings", "datasets", "tmp", "failures")
# An interrupted run can be resumed for this long; its charge counts for ever either way.
ABANDONED_AFTER_S = 30 * 24 * 3600.0


def collect_garbage() -> dict[str, Any]:
    """Remove artifacts that no stored result references, abandoned checkpoints, caches and temporary files."""
    now = settings()
    referenced = _referenced(now)
    return {
        "private_artifacts": len(private_store().gc(referenced)),
        "exchange_artifacts": len(exchange_store().gc(referenced)),
        "checkpoints": len(leases.sweep(now.checkpoints_root, older_than_s=ABANDONED_AFTER_S)),
        "caches": _drop_caches(now),
    }


def purge_source(source: str, *, forget_rows: bool = False) -> dict[str, Any]:
    """Remove everything derived from the rows of `source`; its charges stay, spent budget never comes back.

    Args:
        source: its name.
        forget_rows: also erase the keyed hashes by which the rows would be recognised under another name.

    Raises:
        InputError: when there is no such source.
    """
    now = settings()
    ledger = Ledger.open()
    ledger.source(source)
    removed = set(artifacts.purge(source))
    results = _drop_results(now, removed)
    checkpoints = len(leases.sweep(now.checkpoints_root, source=source))
    caches = _drop_caches(now)
    ledger.purge(source, forget_rows=forget_rows)
    for made in ledger.charges(source):
        drop_journal(made.id)
    return {
        "artifacts": len(removed),
        "results": results,
        "checkpoints": checkpoints,
        "caches": caches,
        "row_hashes": "erased" if forget_rows else "kept",
    }


def _referenced(now: Settings) -> set[str]:
    """Ids of all artifacts that a result names, committed or not yet."""
    found: set[str] = set()
    for path in (*now.results_root.iterdir(), *now.checkpoints_root.glob("*/result.json")):
        found |= _ids(json.loads(path.read_text())) if path.is_file() else set()
    return found


def _ids(value: Any) -> set[str]:
    """Every string in a JSON value that could be an artifact's id, also inside JSON text."""
    if isinstance(value, dict):
        return {found for item in value.values() for found in _ids(item)}
    if isinstance(value, list):
        return {found for item in value for found in _ids(item)}
    if isinstance(value, str):
        if value[:1] in "{[":
            try:
                return _ids(json.loads(value))
            except json.JSONDecodeError:
                return {value}
        return {value}
    return set()


def _drop_results(now: Settings, removed: set[str]) -> int:
    """Stored results that name a removed artifact: they would not load any more."""
    gone = [p for p in now.results_root.iterdir() if p.is_file() and _ids(json.loads(p.read_text())) & removed]
    for path in gone:
        path.unlink()
    return len(gone)


def _drop_caches(now: Settings) -> int:
    count = 0
    for name in CACHES:
        folder = now.private_root / name
        if folder.is_dir():
            count += sum(1 for _ in folder.iterdir())
            shutil.rmtree(folder)
            private_directory(folder)
    return count
