"""Removing what is no longer needed: `gc` what no run references, `purge` what came from a source's rows."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from understudy.artifacts import access
from understudy.artifacts.access import exchange_store, private_store
from understudy.artifacts.manifest import CHARGED_SOURCE, CONTENT_ID, Manifest
from understudy.artifacts.store import YOUNG_S
from understudy.durable import write_atomically
from understudy.errors import InputError
from understudy.methods import registry
from understudy.privacy.ledger.ledger import Ledger
from understudy.runs import finished_plans
from understudy.runs.removal import remove_private
from understudy.settings import Settings, private_directory, settings
from understudy.tasks.charge_receipt import drop_release_log
from understudy.tasks.engine import leases, tracking

# Caches under the private root that hold content of private rows and can be computed again.
TEMPORARY = "tmp"
CACHES = ("embeddings", "datasets", TEMPORARY, "failures")
# What endpoints answered to released texts, of whatever source: asked for again after a purge, not after each `gc`.
ANSWERS = "endpoint-answers"
# An interrupted run can be resumed for this long; its charge counts for ever either way.
ABANDONED_AFTER_S = 30 * 24 * 3600.0


def collect_garbage() -> dict[str, Any]:
    """Remove artifacts that no stored result references, abandoned checkpoints, caches and temporary files.

    The registered rows of a source stay: an unfinished run goes on with them. In the exchange store, which other homes
    and the other zone may share, nothing goes but what was made of what this home's charges released. What a charge
    released stays: it was paid for. The server zone has neither ledger nor private store, so it removes no artifact.
    """
    now = settings()
    private = [] if now.zone == "server" else list(private_store().manifests())
    shared = [] if now.zone == "server" else list(exchange_store().manifests())
    rows = {manifest.id for manifest in private if manifest.match is not None}
    own = _unpaid(shared) if shared else set()
    foreign = {manifest.id for manifest in shared} - own
    kept = _with_parents(_referenced(now) | rows | foreign, (*private, *shared))
    return {
        "private_artifacts": 0 if now.zone == "server" else len(private_store().gc(kept)),
        "exchange_artifacts": len(exchange_store().gc(kept, only=own)),
        "checkpoints": len(leases.sweep(now.checkpoints_root, older_than_s=ABANDONED_AFTER_S)),
        "caches": _drop_caches(now, CACHES, young=TEMPORARY),
    }


def purge_source(source: str, *, forget_rows: bool = False) -> dict[str, Any]:
    """Remove everything derived from the rows of `source`; its charges stay, spent budget never comes back.

    Nothing that is left points at what is gone: stored results, checkpoints and DIR/internal of its runs go too, and
    the runs recorded in MLflow, which are the record of what happened, say that their artifacts were purged. A
    DIR/export that was released stands for itself and stays; one with `--share-real-rows` was not, and goes. So does a
    report of `understudy evaluate` that rows of the source went into.

    What may be left in users' folders, because a folder was moved or cannot be removed, stands under `not_removed`.

    Args:
        source: its name.
        forget_rows: also erase the keyed hashes by which the rows would be recognised under another name.

    Raises:
        InputError: when there is no such source.
        TrackingFailed: when MLflow cannot be written; everything else is done then, and calling it again does the rest.
    """
    now = settings()
    ledger = Ledger.open()
    known = [record.name for record in ledger.sources()]
    if source not in known:
        raise InputError(
            f"--source {source}: expected a source of this ledger, which has {', '.join(known) or 'none yet'}; correct "
            "the name, or see to UNDERSTUDY_HOME; nothing was removed"
        )
    # Noted before anything is removed: a purge that was interrupted is finished by calling it again.
    charges = {made.id for made in ledger.charges(source)}
    note, unwanted = _unfinished(now, source, charges)
    results = _drop_results(now, unwanted)
    checkpoints = len(leases.sweep(now.checkpoints_root, source=source))
    access.purge(source, charges=charges)
    caches = _drop_caches(now, (*CACHES, ANSWERS))
    folders = remove_private(source)
    plans = finished_plans.forget(source)
    ledger.purge(source, forget_rows=forget_rows)
    for charge in charges:
        drop_release_log(charge)
    # Last, for a server may be away; private artifacts are not named there.
    recorded = tracking.mark_purged(name for name in unwanted if CONTENT_ID.fullmatch(name))
    note.unlink()
    return {
        "artifacts": len(unwanted),
        "results": results,
        "checkpoints": checkpoints,
        "caches": caches,
        "internal_folders": folders.internal,
        "private_exports": folders.exports,
        "evaluation_reports": folders.reports,
        "not_removed": folders.left,
        "run_plans": plans,
        "tracked_runs_marked": recorded,
        "row_hashes": "erased" if forget_rows else "kept",
    }


def _unfinished(now: Settings, source: str, charges: set[str]) -> tuple[Path, set[str]]:
    """The note of a purge, and the ids that it removes: those of an interrupted one too."""
    name = hashlib.sha256(source.encode()).hexdigest()[:32]
    note = private_directory(now.private_root / "purges") / f"{name}.json"
    earlier = _named_in(note) or set()
    shared = exchange_store().derived_from(source, charges=charges)
    found = earlier | {*private_store().derived_from(source), *shared}
    write_atomically(note, json.dumps(sorted(found)).encode())
    return note, found


def _referenced(now: Settings) -> set[str]:
    """Ids of all artifacts that a result names, committed or not yet."""
    found: set[str] = set()
    for path in (*now.results_root.iterdir(), *leases.kept_results(now.checkpoints_root)):
        if path.is_file():
            found |= _named_in(path) or set()
    return found


def _unpaid(shared: Iterable[Manifest]) -> set[str]:
    """Ids of what was made of the releases of this home's charges, and of nothing else; the releases are not in it.

    What a charge released is known as charging knows it: by its kind. What noise was added to names its source.
    """
    charges = {made.id for made in Ledger.open().charges()}
    releases = {registry.get(name).charge.releases for name in registry.names()}
    found = set()
    for manifest in shared:
        paid_by = {guarantee.charge_id for guarantee in manifest.label.guarantees}
        paid = manifest.kind in releases or any(map(CHARGED_SOURCE.fullmatch, manifest.parents))
        if paid_by and paid_by <= charges and not paid:
            found.add(manifest.id)
    return found


def _with_parents(ids: set[str], stored: Iterable[Manifest]) -> set[str]:
    """These ids and those of all that they were made of: a run that is resumed asks for it again."""
    parents = {manifest.id: manifest.parents for manifest in stored}
    found: set[str] = set()
    waiting = list(ids)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += parents.get(name, ())
    return found


def _named_in(path: Path) -> set[str] | None:
    """Every string in a JSON file that could be an artifact's id: none where it is gone, None where it is no JSON."""
    try:
        return _ids(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return set()
    except ValueError:
        return None


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
    """Stored results that name a removed artifact, or that do not read: they would not load any more."""
    found = [(path, _named_in(path)) for path in now.results_root.iterdir() if path.is_file()]
    gone = [path for path, named in found if named is None or named & removed]
    for path in gone:
        path.unlink(missing_ok=True)
    return len(gone)


def _drop_caches(now: Settings, names: Sequence[str], *, young: str | None = None) -> int:
    """Empty these folders of the private root; what is young stays in the one named `young`: a run may use it."""
    count = 0
    for name in names:
        folder = private_directory(now.private_root / name)
        for path in list(folder.iterdir()):
            if name != young or _age(path) >= YOUNG_S:
                count += 1
                _remove(path)
    return count


def _remove(path: Path) -> None:
    """Remove a file or a folder, of which others may be removing parts."""
    while path.is_dir() and not path.is_symlink():
        with suppress(FileNotFoundError):
            shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
