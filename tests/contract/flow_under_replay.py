"""A real flow, from a file on disk to its export folder, in a form that record-and-replay can run again and again.

Every run gets a fresh home, exchange store, tracking store and output folder at the same paths. What is random by
design (charge id, salt, keys of a source, ids of private artifacts) is pinned, because it would differ between
any two runs, whatever the rows.
"""

import functools
import io
import json
import logging
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from contract import preference_rows
from contract.private_files import CLIENTS, ROWS
from contract.written_places import outside, without_compiling, written_places
from tests_support import without_drawing
from transformers.utils import logging as transformers_logging

from understudy.artifacts import store
from understudy.errors import UnderstudyError
from understudy.evaluation import measure
from understudy.evaluation.metrics import Metrics
from understudy.evaluation.texts import encoder
from understudy.methods.gradient_matching import evaluation as matching_evaluation
from understudy.methods.knowledge_distillation import evaluation as distillation_evaluation
from understudy.methods.preference_optimization import evaluation
from understudy.privacy.ledger import charges, sources, stored_secrets
from understudy.privacy.ledger.ledger import Charge, Ledger
from understudy.privacy.mechanism_call import Mechanism
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.queries import Query, queries_from_json
from understudy.privacy.testing.replay import MechanismsFactory, Observation, ReplayReport, recording, replay_check
from understudy.runs import units
from understudy.runs.earlier_charges import ASKED
from understudy.runs.request import RunRequest
from understudy.tasks import export as export_task
from understudy.tasks.engine.progress import Reporter

_CLOCK = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
_TIME, _TIME_IN_WORDS = re.compile(_CLOCK.encode()), re.compile(_CLOCK)
# What of a charge says nothing about rows: it is random, or a keyed hash of them that only the ledger holds. So is what
# its environment says of the request.
HIDDEN = {"id", "request_key", "created_at", "released_at", "key_id", "new"}


@dataclass(frozen=True)
class Places:
    """What the runs of a session share.

    Attributes:
        calibrations: of earlier runs, public, to be reused.
        tracking: an empty tracking store with its tables.
    """

    calibrations: Path
    tracking: Path


@dataclass
class FlowRun:
    """What `replay_check` runs.

    Attributes:
        method: whose flow.
        options: fields of `RunRequest` besides `data` and `out`.
        folder: where homes are made.
        places: shared by the session.
        patch: pins what is random by design.
        threads: of tasks; two compute a half of each micro-batch each.
        seen: findings that concern one run by itself: writes elsewhere, queries that were paid for and not asked, and
            exported files that say where a public file lies.
    """

    method: str
    options: dict
    folder: Path
    places: Places
    patch: pytest.MonkeyPatch
    threads: int = 1
    seen: list[str] = field(default_factory=list)
    _count: int = 0

    def __call__(self, rows: pa.Table, make_mechanisms: MechanismsFactory) -> Observation:
        """Run the flow once."""
        root, calls, progress = self._fresh_home(), [], []
        pq.write_table(rows, root / "data" / "rows.parquet")
        self._pin(root, progress)
        printed, logged = io.StringIO(), io.StringIO()
        with ExitStack() as stack:
            stack.enter_context(redirect_stdout(printed))
            stack.enter_context(redirect_stderr(printed))
            stack.enter_context(_listening(logged))
            stack.enter_context(recording(lambda material: _noting(make_mechanisms(material), calls)))
            written = stack.enter_context(written_places())
            flow_run = self._run_flow(root)
        visible = {
            "printed": _in_order(printed.getvalue().splitlines()),
            "logged": _in_order(logged.getvalue().splitlines()),
            "progress": _in_order(progress),
        }
        visible |= recorded(self._tracking(), flow_run)
        charges = Ledger.open().charges()
        self.seen += [f"wrote outside of home, exchange and out: {place}" for place in self._outside(root, written)]
        self.seen += [one for charge in charges for one in unasked(calls, queries_from_json(charge.queries))]
        shutil.copytree(root / "home" / "calibrations", self.places.calibrations, dirs_exist_ok=True)
        found = {name: text.encode() for name, text in visible.items()} | files_that_leave(root)
        self.seen += [f"says where a public file lies: {name}" for name in self._telling_of_places(found)]
        # Out of the way: to remove its files takes longer than to make them.
        root.rename(self._tracking().with_suffix(".run"))
        return Observation(visible=found, charges=tuple(map(_comparable, charges)))

    def faults(self, data: pa.Table, neighbour: pa.Table, **options) -> tuple[str, ...]:
        """All that a replay on two files finds; a run that is refused half-way is a finding too."""
        try:
            report = replay_check(self, data=data, neighbour=neighbour, **options)
        except UnderstudyError as error:
            return (f"the recorded run ended with {error}",)
        return (*report.faults, *dict.fromkeys(self.seen))

    def trained_slot(self, number: int) -> int:
        """A slot of `private_files` that the pinned key does not hold out."""
        keyed_hash = self._keyed_hash
        slots = [slot for slot in range(ROWS) if not units.row_is_held_out(slot, keyed_hash)]
        return slots[number % len(slots)]

    def trained_client(self, number: int) -> int:
        """A client of `private_files` that the pinned key does not hold out."""
        keyed_hash = self._keyed_hash
        found = [
            client
            for client in range(CLIENTS)
            if not units.client_is_held_out(f"client {client}", units=CLIENTS, keyed_hash=keyed_hash)
        ]
        return found[number % len(found)]

    def first_client(self) -> int:
        """The trained client that is first in the order of keyed hashes: without it every other one moves up."""
        keyed_hash = self._keyed_hash
        trained = {self.trained_client(number) for number in range(CLIENTS)}
        return min(trained, key=lambda client: units.unit_id(f"client {client}", keyed_hash))

    @functools.cached_property
    def _keyed_hash(self) -> Callable[[str, bytes], bytes]:
        """As the ledger of every run will hash: what its root key is made of is pinned."""
        self._pin(self._fresh_home(), [])
        return functools.partial(Ledger.open().keyed_hash, self.options["source"])

    def _run_flow(self, root: Path) -> str:
        from understudy.lazy import load
        from understudy.methods import registry

        request = RunRequest.model_validate(
            {"data": str(root / "data" / "rows.parquet"), "out": str(root / "out"), **self.options}
        )
        with self._prefect_settings, _as_many_threads_afterwards():
            state = load(registry.get(self.method).flow).with_options(flow_run_name="replayed")(
                request, return_state=True
            )
            state.result()
        return str(state.state_details.flow_run_id)

    @functools.cached_property
    def _prefect_settings(self) -> AbstractContextManager[object]:
        """Where results lie, the same in every run: Prefect takes long to make settings."""
        from prefect.context import get_settings_context
        from prefect.settings import (
            PREFECT_RESULTS_DEFAULT_SERIALIZER,
            PREFECT_RESULTS_LOCAL_STORAGE_PATH,
            temporary_settings,
        )

        place = self._root / "home" / "private" / "results"
        with temporary_settings(
            {PREFECT_RESULTS_LOCAL_STORAGE_PATH: place, PREFECT_RESULTS_DEFAULT_SERIALIZER: "json"}
        ):
            return get_settings_context()

    @property
    def _root(self) -> Path:
        return self.folder / "run"

    def _fresh_home(self) -> Path:
        root = self._root
        shutil.rmtree(root, ignore_errors=True)
        for name in ("home", "data", "tmp", "cwd"):
            (root / name).mkdir(parents=True, mode=0o700)
        shutil.copytree(self.places.calibrations, root / "home" / "calibrations", dirs_exist_ok=True)
        self._count += 1
        self._tracking().parent.mkdir(exist_ok=True)
        shutil.copy(self.places.tracking, self._tracking())
        return root

    def _tracking(self) -> Path:
        """Of the present run; at a path of its own, because its connection is kept for the process's life."""
        return self.folder / "tracking" / f"{self._count:04d}.db"

    def _outside(self, root: Path, written: set[str]) -> list[str]:
        from prefect.settings import PREFECT_HOME

        allowed = [root / "home", root / "exchange", root / "out", self.folder / "tracking", PREFECT_HOME.value()]
        if os.environ.get("TESTS_DEVICE") == "cuda":
            written = without_compiling(written, root / "tmp")
        return outside(written, allowed, empty=[root / "tmp", root / "cwd"])

    def _telling_of_places(self, found: dict[str, bytes]) -> list[str]:
        """Files of the export folder that name the folder of the run, of its model or of a public table."""
        overrides = self.options.get("overrides", ())
        paths = [Path(self.options["model"]), *(Path(one.partition("=")[2].strip('"')) for one in overrides)]
        folders = {bytes(self.folder), *(bytes(path.parent) for path in paths if path.is_absolute())}
        exported = {name: content for name, content in found.items() if name.startswith("out/export/")}
        return [name for name, content in exported.items() if any(folder in content for folder in folders)]

    def _pin(self, root: Path, progress: list[str]) -> None:
        patch = self.patch
        # What is said once per process must be said in every run.
        transformers_logging.warning_once.cache_clear()
        patch.setenv("UNDERSTUDY_HOME", str(root / "home"))
        patch.setenv("UNDERSTUDY_EXCHANGE", str(root / "exchange"))
        patch.setenv("UNDERSTUDY_MLFLOW_URI", f"sqlite:///{self._tracking()}")
        patch.setenv("UNDERSTUDY_THREADS", str(self.threads))
        patch.setenv("UNDERSTUDY_SECRET", "s" * 64)
        patch.setenv("UNDERSTUDY_ZONE_KEY", "z" * 64)
        patch.setenv("TMPDIR", str(root / "tmp"))
        patch.setenv("TRITON_CACHE_DIR", str(root / "home" / "private" / "triton"))
        patch.setattr(tempfile, "tempdir", None)
        patch.chdir(root / "cwd")
        random = SimpleNamespace(token_hex=lambda size: "ab" * size, token_bytes=lambda size: b"t" * size)
        for module in (charges, sources, stored_secrets):
            patch.setattr(module, "secrets", random)
        numbers = count()
        patch.setattr(store, "new_private_id", lambda: f"p{next(numbers):032x}")
        patch.setattr(Reporter, "update", lambda self, step, total: progress.append(f"{self.name} {step} of {total}"))


def nothing_found(run: FlowRun, report: ReplayReport, what: str = "") -> None:
    """Fail with every finding, in full: a report that an assertion cuts short cannot be told from a flake."""
    faults = [*report.faults, *dict.fromkeys(run.seen)]
    assert not faults, "\n".join([f"{run.method}, {what}", *faults])


def smaller(patch: pytest.MonkeyPatch) -> None:
    """Public things that take long: a smaller sentence encoder, an evaluation of fewer steps and resamples."""
    from understudy.flows import conditional_generation, gradient_matching

    patch.setattr(encoder, "load_encoder", preference_rows.stand_in_encoder)
    few = functools.partial(gradient_matching.EvaluationConfig, replicates=100, floor_splits=1)
    for module in (conditional_generation, gradient_matching):
        patch.setattr(module, "EvaluationConfig", few)
    sizes = {"steps": 1, "most_models": 1, "replicates": 100, "test_rows": 4, "real_rows": 4, "gradient_rows": 4}
    matching = functools.partial(gradient_matching.MatchingEvaluationConfig, **sizes)
    patch.setattr(gradient_matching, "MatchingEvaluationConfig", matching)
    downstream = functools.partial(evaluation.NextTokenConfig, epochs=1, max_length=8, batch_size=64)
    patch.setattr(evaluation, "NextTokenConfig", downstream)
    without_drawing(patch)


def without_evaluation(patch: pytest.MonkeyPatch) -> None:
    """For planted faults, which lie before it: what is measured on private rows is internal and leads nowhere."""
    for module, name in (
        (measure, "evaluate_synthetic"),
        (matching_evaluation, "measure_matching"),
        (evaluation, "evaluate_run"),
        (distillation_evaluation, "evaluate_run"),
    ):
        patch.setattr(module, name, lambda *_, **__: Metrics())
    patch.setattr(export_task, "build_report", lambda folder, **_: (folder / "report.html").write_text(""))


@contextmanager
def _as_many_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class _Noting:
    """A recorder that lists the calls which another one answers."""

    inner: object
    calls: list[Mechanism]

    def observe(self, mechanism: Mechanism, query: dict, draw: Callable) -> dict:
        self.calls.append(mechanism)
        return draw() if self.inner is None else self.inner.observe(mechanism, query, draw)


def _noting(mechanisms: Mechanisms, calls: list[Mechanism]) -> Mechanisms:
    mechanisms.recorder = _Noting(mechanisms.recorder, calls)
    return mechanisms


def unasked(calls: list[Mechanism], queries: tuple[Query, ...]) -> list[str]:
    """How the calls differ from the list that was charged: the interface refuses others, but not less."""
    made = Counter((call.kind, call.purpose, call.step) for call in calls)
    paid = Counter((query.kind, query.name, step) for query in queries for step in range(query.steps))
    sampled = {
        (query.batch, step)
        for query in queries
        if query.batch is not None and query.sampling_probability < 1
        for step in range(query.steps)
    }
    for name, step in sampled:
        paid["poisson", name, step] = 1
    return [
        f"{kind} {name}, step {step}: charged {paid[kind, name, step]} times, asked {made[kind, name, step]}"
        for kind, name, step in sorted(made.keys() | paid.keys())
        if made[kind, name, step] != paid[kind, name, step] and not (kind == "poisson" and (name, step) not in sampled)
    ]


def _comparable(charge: Charge) -> str:
    """A charge without what differs between runs and says nothing of rows."""
    parts = json.loads(charge.environment or "{}")
    assert len(parts.pop(ASKED, "0" * 64)) == 64, "a keyed hash"
    return str({**charge.model_dump(exclude=HIDDEN), "environment": parts})


def files_that_leave(root: Path) -> dict[str, bytes]:
    """Every file outside of the private root and the ledger; of the output folder, `export`."""
    kept = [root / "home" / "private", root / "out" / "internal", root / "data"]
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_relative_to(root / "home") and path.name.startswith("ledger"):
            continue
        if path.is_file() and not any(path.is_relative_to(place) for place in kept):
            found[str(path.relative_to(root))] = _TIME.sub(b"TIME", path.read_bytes())
    return found


def recorded(database: Path, flow_run: str) -> dict[str, str]:
    """What MLflow and Prefect keep of a run, without clocks and with random ids named in order."""
    found, known = _tracked(database)
    children = sum("understudy.task" in row for row in found["tracking tags"].splitlines())
    told, tasks = _told_prefect(flow_run, expected=children)
    known |= {flow_run: "FLOW", str(database): "DATABASE"} | {task: "TASK" for task in tasks}
    # Sorted once random ids are out of the lines.
    return {name: _in_order(_without(text, known).splitlines()) for name, text in (found | told).items()}


def _tracked(database: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Every table of the tracking store, and a word for each of its random ids."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        tables = [row[0] for row in connection.execute("select name from sqlite_master where type='table'")]
        # Tasks that run side by side are recorded in any order, so a run goes by its key.
        keyed = "select run_uuid, 'RUN-' || value from tags where key = 'understudy.key'"
        order = connection.execute("select run_uuid from runs order by rowid")
        known = {row[0]: f"RUN-{i}" for i, row in enumerate(order)} | dict(connection.execute(keyed))
        known |= dict(connection.execute("select dataset_uuid, 'SET-' || digest from datasets"))
        found = {}
        for table in tables:
            cursor = connection.execute(f'select * from "{table}"')
            names = [column[0] for column in cursor.description]
            rows = [
                str(
                    [
                        f"{n}={value}"
                        for n, value in zip(names, row, strict=True)
                        if not re.search("time|input_uuid$", n)
                    ]
                )
                for row in cursor
            ]
            found[f"tracking {table}"] = "\n".join(rows)
    finally:
        connection.close()
    return found, known


def _told_prefect(flow_run: str, *, expected: int) -> tuple[dict[str, str], list[str]]:
    """The flow run's parameters, the states and messages of it and its tasks, its artifacts, when all have ended."""
    from prefect import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter, FlowRunFilterId

    with get_client(sync_client=True) as client:
        own = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))
        for _ in range(300):
            tasks = client.read_task_runs(flow_run_filter=own)
            if len(tasks) >= expected and all(task.state is not None and task.state.is_final() for task in tasks):
                break
            time.sleep(0.15)
        run = client.read_flow_run(flow_run)
        made = client.read_artifacts(
            artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
        )
    about = json.dumps(run.parameters, default=str), run.name, run.tags, run.state.name, run.state.message, run.labels
    # Of its inputs the names alone: Prefect finds the task run behind a list or a string by its address in memory,
    # where a forgotten one may have been before (PrefectHQ/prefect issue 20558), so it sometimes names one too many.
    states = [
        str((task.name, task.tags, sorted(task.task_inputs), task.cache_key, task.state.name, task.state.message))
        for task in tasks
    ]
    # Without a key it says where the flow's result lies, under a random name.
    artifacts = [
        _TIME_IN_WORDS.sub("TIME", str((one.key, one.type, one.description, one.data))) for one in made if one.key
    ]
    told = {"prefect flow": str(about), "prefect tasks": "\n".join(states), "prefect artifacts": "\n".join(artifacts)}
    return told, [str(task.id) for task in tasks]


def _without(text: str, known: dict[str, str]) -> str:
    for value, word in known.items():
        text = text.replace(value, word)
    return text


def _in_order(lines: list[str]) -> str:
    """Sorted, for mapped tasks take turns in any order."""
    return "\n".join(sorted(lines))


@contextmanager
def _listening(text: io.StringIO) -> Iterator[None]:
    """Keep every log line; the project's own at every level.

    Left out is what Prefect's event client says of its connection to the server, which breaks and comes back when the
    machine is busy.
    """
    handler, own = logging.StreamHandler(text), logging.getLogger("understudy")
    handler.addFilter(lambda record: record.name != "prefect.events.clients")
    with ExitStack() as stack:
        for logger in _loggers_that_end_a_chain():
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
        stack.callback(own.setLevel, own.level)
        own.setLevel(logging.DEBUG)
        yield


def _loggers_that_end_a_chain() -> list[logging.Logger]:
    """The root logger and every logger that keeps its records from it, as those of transformers and Prefect do."""
    known = [logger for logger in logging.Logger.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    return [logging.getLogger(), *(logger for logger in known if not logger.propagate)]
