"""The project's experiment in one tracking store of MLflow: runs are found, written and ended there."""

from __future__ import annotations

import functools
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from understudy.addresses import SQLITE
from understudy.errors import InputError, TrackingFailed
from understudy.settings import settings
from understudy.tasks.engine.run_record import (
    CACHED,
    CONTEXT,
    FLOW_RUN,
    FULL_ID,
    KEY,
    LABELS,
    PARENT,
    PURGED,
    RUN_KEY,
    SOURCES,
    TASK,
    TaskRecord,
    flatten,
    found_parents,
    labels_of,
    public_artifacts,
    source_names,
    tracked_name,
)
from understudy.tasks.engine.tracking_attempts import persisted
from understudy.tasks.engine.tracking_database import whole_database
from understudy.tasks.engine.tracking_experiment import made_experiment, what_was_deleted
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


def tracking_uri(zone: str) -> str:
    """Where runs of `zone` are recorded: the server zone has a place of its own."""
    now = settings()
    if "server" in (zone, now.zone) and now.server_mlflow_uri:
        return now.server_mlflow_uri
    return now.mlflow_uri


def open_log(zone: str) -> Log:
    """Where runs of a zone are recorded; the experiment is made where there is none.

    Raises:
        InputError: the experiment was deleted.
        TrackingFailed: the tracking store cannot be written.
    """
    uri = tracking_uri(zone)
    return persisted("the experiment", uri, lambda: connect(uri))


@functools.lru_cache(maxsize=16)
def connect(uri: str) -> Log:
    """The experiment of one tracking store, opened once in a process."""
    # Its notes on making the tables are not for the user.
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It writes each error of a database to the terminal, by the page, before it raises it.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
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


class Log:
    """The project's experiment in one tracking store."""

    def __init__(self, uri: str, client: MlflowClient, experiment: str, lock: Path | None) -> None:
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
            return persisted(what, self.uri, in_turn)
        except TrackingFailed as error:
            failed = error
        if deleted := what_was_deleted(self.client, self.uri, experiment=self.experiment, run=run):
            # What is there now is looked for anew.
            connect.cache_clear()
            failed = TrackingFailed(
                f"tracking: {what} could not be recorded: {deleted}, and run the same command again: what is done is "
                "stored and is not computed again"
            )
        raise failed

    def open_parent(
        self,
        run_key: str,
        name: str,
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
            name=name,
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
        datasets = [*dataset_inputs(made_from, "input"), *dataset_inputs(public_artifacts(record.outputs), "output")]
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

    def search(self, tags: Mapping[str, str]) -> list[Run]:
        """Runs with all of `tags`."""
        if any("'" in value for value in tags.values()):
            raise InputError(f"tracking: expected tags without quotes, found {dict(tags)}")
        wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        return self._found(wanted)

    def runs_with(self, ref_id: str) -> list[Run]:
        """Runs that read or made the artifact."""
        digest = ref_id[:_DIGEST].replace("'", "")
        return self._found(f"dataset.digest = '{digest}'")

    def _found(self, wanted: str) -> list[Run]:
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
        found: list[Run],
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


def dataset_inputs(artifacts: Mapping[str, str], context: str) -> Iterator[DatasetInput]:
    """Artifacts (id -> kind) as data sets that a run read (`input`) or made (`output`)."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    for ref_id, kind in artifacts.items():
        dataset = Dataset(name=kind, digest=ref_id[:_DIGEST], source_type="understudy", source=f'"{ref_id}"')
        yield DatasetInput(dataset, [InputTag(CONTEXT, context), InputTag(FULL_ID, ref_id)])
