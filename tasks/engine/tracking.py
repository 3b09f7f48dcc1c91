"""The record of runs in MLflow: one parent run per flow run, one child per task, written once when it ends.

A child is found by its key and its parent, a parent by its run key, so a killed and resumed run leaves no duplicates.
One that is not resumed is KILLED at the next start in the same home. MLflow is the audit record, so a write that fails
is tried again and then fails the task; the result is kept by then, and the next attempt records it without computing it
again.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from understudy.addresses import SQLITE, public_address
from understudy.errors import InputError, TrackingFailed
from understudy.settings import private_directory, settings
from understudy.tasks.engine import run_locks
from understudy.tasks.engine.lineage import LineageNode, trace
from understudy.tasks.engine.prefect_links import link_from_prefect
from understudy.tasks.engine.run_record import FLOW_RUN, FLOW_URL, State, TaskRecord, run_name
from understudy.tasks.engine.tracking_attempts import persisted
from understudy.tasks.engine.tracking_database import check_database
from understudy.tasks.engine.tracking_experiment import found_experiment
from understudy.tasks.engine.tracking_log import Log, dataset_inputs, open_log, tracking_uri


@contextmanager
def parent_run(run_key: str, name: str, *, parameters: Mapping[str, Any], zone: str = "client") -> Iterator[str]:
    """Keep the MLflow run of one flow run: found again by `run_key`, RUNNING in the block, ended after it.

    Args:
        run_key: what makes a later flow run the same run, resumed: a digest of the request.
        name: what the run is: the flow's name, with its source where it has one. The key's first characters
            follow, which tell runs apart that differ in anything else.
        parameters: public parameters, configs included.
        zone: the zone whose tracking store is used.

    Yields:
        The MLflow run id.

    Raises:
        TrackingFailed: when the tracking store cannot be written.
    """
    from prefect.runtime import flow_run

    # Without a UI address Prefect composes one that begins with "None".
    url = flow_run.ui_url if str(flow_run.ui_url).startswith("http") else None
    here = {FLOW_RUN: flow_run.id, FLOW_URL: url}
    outer = flow_run.parent_flow_run_id if flow_run.id else None
    log, shown = open_log(zone), run_name(name, run_key)
    with _shown_as_living(log, run_key) as ended:
        run_id = log.persist("the flow run", lambda: log.open_parent(run_key, shown, parameters, here, outer))
        if flow_run.id:
            link_from_prefect(log.uri, log.experiment, run_id)

        def end(state: State) -> None:
            log.persist("the end of the flow run", lambda: log.client.set_terminated(run_id, state), run=run_id)
            ended.set()

        try:
            yield run_id
        except BaseException as error:
            try:
                end("FAILED" if isinstance(error, Exception) else "KILLED")
            except TrackingFailed as also:
                error.add_note(str(also))
            raise
        end("FINISHED")


@contextmanager
def _shown_as_living(log: Log, run_key: str) -> Iterator[threading.Event]:
    """Show that a run computes; runs of processes that were killed are KILLED first, where they stand as RUNNING.

    Yields:
        To be set when MLflow knows of the end.
    """
    folder = private_directory(settings().locks_root / "runs") / hashlib.sha256(log.uri.encode()).hexdigest()[:16]

    def end_dead(keys: set[str]) -> None:
        log.persist("the end of killed runs", lambda: log.end_dead(keys))

    lock, ended = run_locks.hold(folder, run_key, end_dead), threading.Event()
    try:
        yield ended
    finally:
        lock.release(ended=ended.is_set())


def add_to_parent(
    run_id: str,
    *,
    tags: Mapping[str, str],
    metrics: Mapping[str, float],
    read: Mapping[str, str] | None = None,
    zone: str = "client",
) -> None:
    """Write what is known of a flow run only after it began: public values and ids that may be named.

    Args:
        run_id: of its MLflow run.
        tags: over those of the same names.
        metrics: over those of the same names.
        read: id -> kind of artifacts that it was given by no task.
        zone: the zone whose tracking store is used.

    Raises:
        TrackingFailed: when the tracking store cannot be written.
    """
    log = open_log(zone)

    def add() -> None:
        log.add(run_id, tags=tags, metrics=metrics)
        if read:
            log.client.log_inputs(run_id, datasets=[*dataset_inputs(read, "input")])

    log.persist("the flow run", add, run=run_id)


def log_task(record: TaskRecord) -> str:
    """Write the child run of one ended task, over what an earlier attempt wrote; returns its MLflow run id.

    Raises:
        TrackingFailed: when the tracking store cannot be written.
    """
    log = open_log(record.zone)
    return log.persist(f"task {record.name!r}", lambda: log.write_child(record))


def lineage(ref_id: str, *, zone: str = "client") -> LineageNode:
    """What an artifact was made from, back to the sources and the charges that paid.

    Raises:
        InputError: when no recorded task made or read an artifact with this id.
    """
    log = open_log(zone)
    if not log.persist("the lineage", lambda: log.runs_with(ref_id)):
        raise InputError(
            f"artifact {ref_id}: no task that is recorded in {public_address(log.uri)} made or read it; name the place "
            "where its run was recorded in UNDERSTUDY_MLFLOW_URI, or give the id of a released artifact"
        )
    return log.persist("the lineage", lambda: trace(log, ref_id))


def mark_purged(ref_ids: Iterable[str]) -> int:
    """Say in every recorded run that names one of these artifacts that it was removed; the record itself stays.

    Returns:
        How many runs were marked.

    Raises:
        TrackingFailed: when the tracking store cannot be written; to be called again then.
    """
    ids, marked = sorted(ref_ids), set()
    for log in {open_log(zone).uri: open_log(zone) for zone in ("client", "server")}.values():
        for ref_id in ids:
            marked |= log.persist("the purge", functools.partial(log.mark_purged, ref_id))
    return len(marked)


def check_stores() -> None:
    """Look at the stores in which this process's zones are recorded; nothing is made.

    Raises:
        InputError: a SQLite file that was made is not whole, or the experiment was deleted; with how to go on.
    """
    from mlflow.tracking import MlflowClient

    zone = settings().zone
    for uri in {tracking_uri(name) for name in (("client", "server") if zone == "both" else (zone,))}:
        if uri.startswith(SQLITE) and not check_database(Path(uri.removeprefix(SQLITE))):
            continue  # MLflow would make one
        persisted("the experiment", uri, functools.partial(found_experiment, MlflowClient(tracking_uri=uri), uri))
