"""Removing what is no longer needed: `gc` what no run references, `purge` what came from a source's rows."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from understudy.artifacts import access
from understudy.artifacts.access import exchange_store, private_store
from understudy.artifacts.manifest import CONTENT_ID
from understudy.privacy.ledger.ledger import Ledger
from understudy.runs import finished_plans
from understudy.runs.finished_folders import remove_internal
from understudy.settings import Settings, private_directory, settings
from understudy.tasks.charge_receipt import drop_release_log
from understudy.tasks.engine import leases, tracking

# Caches under the private root that hold content of private rows and can be computed again.
CACHES = ("embeddings", "datasets", "tmp", "failures")
# What endpoints answered to released texts, of whatever source: asked for again after a purge, not after each `gc`.
ANSWERS = "endpoint-answers"
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
        "caches": _drop_caches(now, CACHES),
    }


def purge_source(source: str, *, forget_rows: bool = False) -> dict[str, Any]:
    """Remove everything derived from the rows of `source`; its charges stay, spent budget never comes back.

    Nothing that is left points at what is gone: stored results, checkpoints and DIR/internal of its runs go too, and
    the runs recorded in MLflow, which are the record of what happened, say that their artifacts were purged. DIR/export
    stays: it was released, and stands for itself.

    Args:
        source: its name.
        forget_rows: also erase the keyed hashes by which the rows would be recognised under another name.

    Raises:
        InputError: when there is no such source.
        TrackingFailed: when MLflow cannot be written; everything else is done then, and calling it again does the rest.
    """
    now = settings()
    ledger = Ledger.open()
    ledger.source(source)
    # Noted before anything is removed: a purge that was interrupted is finished by calling it again.
    note, unwanted = _unfinished(now, source)
    results = _drop_results(now, unwanted)
    checkpoints = len(leases.sweep(now.checkpoints_root, source=source))
    access.purge(source)
    caches = _drop_caches(now, (*CACHES, ANSWERS))
    folders = remove_internal(source)
    plans = finished_plans.forget(source)
    ledger.purge(source, forget_rows=forget_rows)
    for made in ledger.charges(source):
        drop_release_log(made.id)
    # Last, for a server may be away; private artifacts are not named there.
    recorded = tracking.mark_purged(name for name in unwanted if CONTENT_ID.fullmatch(name))
    note.unlink()
    return {
        "artifacts": len(unwanted),
        "results": results,
        "checkpoints": checkpoints,
        "caches": caches,
        "internal_folders": folders,
        "run_plans": plans,
        "tracked_runs_marked": recorded,
        "row_hashes": "erased" if forget_rows else "kept",
    }


def _unfinished(now: Settings, source: str) -> tuple[Path, set[str]]:
    """The note of a purge, and the ids that it removes: those of an interrupted one too."""
    name = hashlib.sha256(source.encode()).hexdigest()[:32]
    note = private_directory(now.private_root / "purges") / f"{name}.json"
    earlier = json.loads(note.read_text()) if note.exists() else []
    found = {*earlier, *private_store().derived_from(source), *exchange_store().derived_from(source)}
    temporary = note.with_suffix(".new")
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(sorted(found)))
    temporary.replace(note)
    return note, found


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


def _drop_caches(now: Settings, names: Sequence[str]) -> int:
    count = 0
    for name in names:
        folder = now.private_root / name
        if folder.is_dir():
            count += sum(1 for _ in folder.iterdir())
            shutil.rmtree(folder)
            private_directory(folder)
    return count
