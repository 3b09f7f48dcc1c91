"""The record of runs in MLflow: one parent run per flow run, one child per task, written once when it ends.

A child is found by its key and its parent, a parent by its run key, so a killed and resumed run leaves no duplicates.
One that is not resumed is KILLED at the next start in the same home. MLflow is the audit record, so a write that fails
is tried again and then fails the task; the result is kept by then, and the next attempt records it without computing it
again.
"""

import functools
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from understudy.addresses import SQLITE
from understudy.errors import InputError, TrackingFailed
from understudy.settings import private_directory, settings
from understudy.tasks.engine import run_locks
from understudy.tasks.engine.failures import keep_text
from understudy.tasks.engine.lineage import LineageNode, trace
from understudy.tasks.engine.prefect_links import link_from_prefect, without_login
from understudy.tasks.engine.run_record import (
    CACHED,
    CONTEXT,
    FLOW_RUN,
    FLOW_URL,
    FULL_ID,
    KEY,
    LABELS,
    PARENT,
    PURGED,
    RUN_KEY,
    SOURCES,
    TASK,
    State,
    TaskRecord,
    flatten,
    found_parents,
    labels_of,
    public_artifacts,
    source_names,
    tracked_name,
)
from understudy.tasks.engine.tracking_database import check_database, whole_database
from understudy.tasks.engine.tracking_experiment import found_experiment, made_experiment, what_was_deleted
from understudy.tasks.engine.turns import Turns

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput, Run
    from mlflow.tracking import MlflowClient

T = TypeVar("T")

# A worker imports this without the command line, which sets the same.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# Where runs end, MLflow writes their addresses to stdout: amid what --json prints, and with a password of the server's.
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
# Writes are tried again here; with MLflow's own seven times each, a server that is away was waited for minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")

_DIGEST = 36  # characters that MLflow keeps of a data set's digest
_BATCH = 100  # parameters that MLflow takes at once
_PAGE = 1000  # runs that MLflow answers with at once
_RETRY_AFTER_S = (0.2, 1.0, 3.0)


@contextmanager
def parent_run(run_key: str, flow_name: str, *, parameters: Mapping[str, Any], zone: str = "client") -> Iterator[str]:
    """Keep the MLflow run of one flow run: found again by `run_key`, RUNNING in the block, ended after it.

    Args:
        run_key: what makes a later flow run the same run, resumed: a digest of the request.
        flow_name: the flow's name.
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
    log = _open(zone)
    with _shown_as_living(log, run_key) as ended:
        run_id = log.persist("the flow run", lambda: log.open_parent(run_key, flow_name, parameters, here, outer))
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
def _shown_as_living(log: "Log", run_key: str) -> Iterator[threading.Event]:
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
    log = _open(zone)

    def add() -> None:
        log.add(run_id, tags=tags, metrics=metrics)
        if read:
            log.client.log_inputs(run_id, datasets=[*_datasets(read, "input")])

    log.persist("the flow run", add, run=run_id)


def log_task(record: TaskRecord) -> str:
    """Write the child run of one ended task, over what an earlier attempt wrote; returns its MLflow run id.

    Raises:
        TrackingFailed: when the tracking store cannot be written.
    """
    log = _open(record.zone)
    return log.persist(f"task {record.name!r}", lambda: log.write_child(record))


def lineage(ref_id: str, *, zone: str = "client") -> LineageNode:
    """What an artifact was made from, back to the sources and the charges that paid.

    Raises:
        InputError: when no recorded task made or read an artifact with this id.
    """
    log = _open(zone)
    if not log.persist("the lineage", lambda: log.runs_with(ref_id)):
        raise InputError(
            f"artifact {ref_id}: no task that is recorded in {without_login(log.uri)} made or read it; name the place "
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
    for log in {_open(zone).uri: _open(zone) for zone in ("client", "server")}.values():
        for ref_id in ids:
            marked |= log.persist("the purge", functools.partial(log.mark_purged, ref_id))
    return len(marked)


def tracking_uri(zone: str) -> str:
    """Where runs of `zone` are recorded: the server zone has a place of its own."""
    now = settings()
    if "server" in (zone, now.zone) and now.server_mlflow_uri:
        return now.server_mlflow_uri
    return now.mlflow_uri


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
        _persist("the experiment", functools.partial(found_experiment, MlflowClient(tracking_uri=uri), uri))


class Log:
    """The project's experiment in one tracking store."""

    def __init__(self, uri: str, client: "MlflowClient", experiment: str, lock: Path | None) -> None:
        self.uri = uri
        self.client = client
        self.experiment = experiment
        self.lock = lock
        self._turns = Turns(lock)
        self._parents: dict[str, str] = {}

    def persist(self, what: str, write: Callable[[], T], *, run: str | None = None) -> T:
        """Write one whole record; writers of one SQLite file take turns instead of running into its timeout.

        Args:
            what: for a message.
            write: writes it.
            run: the run that it belongs to, if there is one already.

        Raises:
            TrackingFailed: it cannot be written; saying so where the experiment or the run was deleted.
        """

        def in_turn() -> T:
            with self._turns.turn():
                return write()

        try:
            return _persist(what, in_turn)
        except TrackingFailed as error:
            failed = error
        if deleted := what_was_deleted(self.client, self.uri, experiment=self.experiment, run=run):
            # What is there now is looked for anew.
            _connect.cache_clear()
            failed = TrackingFailed(
                f"tracking: {what} could not be recorded: {deleted}, and run the same command again: what is done is "
                "stored and is not computed again"
            )
        raise failed

    def open_parent(
        self,
        run_key: str,
        flow_name: str,
        parameters: Mapping[str, Any],
        flow_run: Mapping[str, str | None],
        outer: str | None,
    ) -> str:
        """Find or make the run of a flow and set it RUNNING."""
        identity = {RUN_KEY: run_key}
        found = self.search(identity)
        run_id = self._write(
            identity,
            found,
            name=flow_name,
            tags={**flow_run, PARENT: self.parent_of(outer)},
            parameters=flatten(parameters),
        )
        if found:
            self.client.update_run(run_id, status="RUNNING")
        else:
            # It is RUNNING as MLflow makes it.
            self._turns.made(run_id)
        if flow_run_id := flow_run[FLOW_RUN]:
            self._parents[flow_run_id] = run_id
        return run_id

    def end_dead(self, run_keys: Iterable[str]) -> None:
        """Set KILLED what stands as RUNNING of runs whose processes are gone."""
        for run_key in sorted(run_keys):
            for run in self.search({RUN_KEY: run_key}):
                if run.info.status == "RUNNING":
                    self.client.set_terminated(run.info.run_id, "KILLED")

    def write_child(self, record: TaskRecord) -> str:
        """Find or make the run of a task and write it whole."""
        parent = self.parent_of(record.flow_run_id)
        identity = {KEY: record.key, **({PARENT: parent} if parent else {})}
        may_be_there = parent is None or self._turns.writes(parent, record.key)
        found = self.search(identity) if may_be_there else []
        if record.cached and found:
            return str(found[0].info.run_id)
        tags = {
            TASK: record.name,
            "understudy.zone": record.zone,
            SOURCES: json.dumps(source_names(record.inputs, record.outputs)),
            LABELS: labels_of(record.outputs),
            CACHED: "true" if record.cached else None,
            "understudy.failure": record.failure,
            "prefect.task_run_id": record.task_run_id,
        }
        run_id = self._write(
            identity,
            found,
            name=record.name,
            started_ms=record.started_ms,
            tags=tags,
            parameters=flatten(record.arguments),
            metrics=record.metrics,
        )
        # Of what was found the arguments are unknown; what it was made from stands in the artifacts.
        made_from = found_parents(record.outputs) if record.cached else public_artifacts(record.inputs)
        datasets = [*_datasets(made_from, "input"), *_datasets(public_artifacts(record.outputs), "output")]
        if datasets:
            self.client.log_inputs(run_id, datasets=datasets)
        self.client.set_terminated(run_id, record.state)
        return run_id

    def parent_of(self, flow_run_id: str | None) -> str | None:
        """The MLflow run of a Prefect flow run, if it has one."""
        if flow_run_id is None:
            return None
        if flow_run_id not in self._parents and (found := self.search({FLOW_RUN: flow_run_id})):
            self._parents[flow_run_id] = str(found[0].info.run_id)
        return self._parents.get(flow_run_id)

    def search(self, tags: Mapping[str, str]) -> "list[Run]":
        """Runs with all of `tags`."""
        if any("'" in value for value in tags.values()):
            raise InputError(f"tracking: expected tags without quotes, found {dict(tags)}")
        wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        return self._found(wanted)

    def runs_with(self, ref_id: str) -> "list[Run]":
        """Runs that read or made the artifact."""
        digest = ref_id[:_DIGEST].replace("'", "")
        return self._found(f"dataset.digest = '{digest}'")

    def _found(self, wanted: str) -> "list[Run]":
        search = functools.partial(self.client.search_runs, [self.experiment], wanted, max_results=_PAGE)
        page = search()
        found = list(page)
        while page.token:
            page = search(page_token=page.token)
            found += page
        return found

    def mark_purged(self, ref_id: str) -> set[str]:
        """Tag the runs that name the artifact; returns their ids."""
        runs = self.runs_with(ref_id)
        for run in runs:
            gone = {*json.loads(run.data.tags.get(PURGED, "[]")), ref_id}
            self.client.set_tag(run.info.run_id, PURGED, json.dumps(sorted(gone)))
        return {str(run.info.run_id) for run in runs}

    def tags_of(self, run_id: str) -> dict[str, str]:
        """The tags of one run; none of one that was deleted for good, as by `mlflow gc`."""
        from mlflow.exceptions import MlflowException

        try:
            return dict(self.client.get_run(run_id).data.tags)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return {}

    def _write(
        self,
        identity: Mapping[str, str],
        found: "list[Run]",
        *,
        name: str,
        tags: Mapping[str, str | None],
        parameters: Mapping[str, str],
        started_ms: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> str:
        """Write the run that was found by the tags `identity`, or make it with them; returns its id."""
        written = {tag: value for tag, value in tags.items() if value is not None}
        if found:
            run_id, known = found[0].info.run_id, found[0].data.params
        else:
            run_id = self.client.create_run(self.experiment, started_ms, {**identity, **written}, name).info.run_id
            written, known = {}, {}
        # A parameter never changes: other values of arguments that do not count keep the first ones.
        new = {parameter: value for parameter, value in parameters.items() if parameter not in known}
        self.add(run_id, tags=written, metrics=metrics or {}, parameters=new)
        return str(run_id)

    def add(
        self,
        run_id: str,
        *,
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        """Write tags and metrics of a run, over those of the same names, and new parameters.

        As many at once as MLflow takes: each call waits for the disk several times.
        """
        from mlflow.entities import Metric, Param, RunTag

        now = int(time.time() * 1000)
        figures = [Metric(tracked_name(metric), float(value), now, 0) for metric, value in metrics.items()]
        written = [RunTag(tag, value) for tag, value in tags.items()]
        new = [Param(parameter, value) for parameter, value in (parameters or {}).items()]
        if figures or written or new:
            self.client.log_batch(run_id, metrics=figures, tags=written, params=new[:_BATCH])
        for start in range(_BATCH, len(new), _BATCH):
            self.client.log_batch(run_id, params=new[start : start + _BATCH])


def _datasets(artifacts: Mapping[str, str], context: str) -> "Iterator[DatasetInput]":
    from mlflow.entities import Dataset, DatasetInput, InputTag

    for ref_id, kind in artifacts.items():
        dataset = Dataset(name=kind, digest=ref_id[:_DIGEST], source_type="understudy", source=f'"{ref_id}"')
        yield DatasetInput(dataset, [InputTag(CONTEXT, context), InputTag(FULL_ID, ref_id)])


def _open(zone: str) -> Log:
    return _persist("the experiment", lambda: _connect(tracking_uri(zone)))


@functools.lru_cache(maxsize=16)
def _connect(uri: str) -> Log:
    # Its notes on making the tables are not for the user.
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if not uri.startswith(SQLITE):
        return _with_experiment(uri, None)
    with whole_database(Path(uri.removeprefix(SQLITE))) as lock:
        return _with_experiment(uri, lock)


def _with_experiment(uri: str, lock: Path | None) -> Log:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    # Nothing is ever stored there; without it MLflow would name a folder of the working directory.
    files = lock.with_name("mlflow-files").as_uri() if lock else None
    return Log(uri, client, made_experiment(client, uri, files=files), lock)


def _persist(what: str, write: Callable[[], T]) -> T:
    """Write, with a few attempts: a busy database or a lost connection passes."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    for delay in (*_RETRY_AFTER_S, None):
        try:
            return write()
        except (MlflowException, SQLAlchemyError, OSError) as error:
            if delay is None:
                failure = TrackingFailed(
                    f"tracking: {what} could not be recorded ({type(error).__name__}{_kept(error)}); what is done is "
                    "stored and is not computed again: check UNDERSTUDY_MLFLOW_URI and run the same command again"
                )
                break
            time.sleep(delay)
    # Outside the handler: Prefect would log the text of the error behind it.
    raise failure


def _kept(error: Exception) -> str:
    """Where the text of an error is kept: it may hold what was to be written, or a password, and Prefect shows errors.

    Nothing where it cannot be written either.
    """
    try:
        return f", whose text is in {keep_text(error, 'tracking')}"
    except (OSError, InputError):
        return ""
