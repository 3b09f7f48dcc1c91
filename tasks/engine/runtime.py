"""One decorator makes a core function a task: cached, checkpointed, retried, tracked, in its zone.

    @task(name="train")
    def train(rows: ArtifactRef, config: TrainConfig) -> ArtifactRef:
        sink = TrainingCheckpoint(checkpoint_directory())
        ...
        progress(step, config.steps)

The result of a task is references and public values, stored as JSON under the private root and found by the
task's key. A result whose artifacts are gone or damaged does not load, which counts as a miss. Outside of
Prefect, `train.fn(...)` runs the same body with the same checks and checkpoints, but without cache,
tracking and retries.
"""

import functools
import inspect
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from prefect import Task
from prefect.cache_policies import NO_CACHE, CacheKeyFnPolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.results import ResultRecord  # type: ignore[attr-defined]
from prefect.serializers import JSONSerializer

from understudy.errors import TrackingFailed, UnderstudyError
from understudy.settings import settings
from understudy.tasks.engine import leases, processes, tracking
from understudy.tasks.engine.body import Body, checkpoint_directory, progress, progress_on, report_metrics, running
from understudy.tasks.engine.cache_key import check_zone, code_digest, describe, references, task_key
from understudy.tasks.engine.failures import can_pass, closed_up
from understudy.tasks.engine.machine import compute, prepared
from understudy.tasks.engine.progress import Reporter, prefect_publisher, say_waiting
from understudy.tasks.engine.run_record import TaskRecord

__all__ = [
    "checkpoint_directory",
    "code_digest",
    "compute",
    "in_either_zone",
    "progress",
    "progress_on",
    "report_metrics",
    "task",
]

P = ParamSpec("P")
R = TypeVar("R")
Zone = Literal["client", "server"]

_MISSING = object()
_SERIALIZER: JSONSerializer[Any] = JSONSerializer()


@dataclass(frozen=True)
class _Spec:
    """One decorated function."""

    name: str
    zone: Zone
    cache: bool
    computes: bool
    apart: bool
    ignore: tuple[str, ...]
    function: Callable[..., Any]

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = inspect.signature(self.function).bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def key(self, arguments: Mapping[str, Any]) -> str:
        return task_key(self.name, self.function, arguments, ignore=self.ignore)


@dataclass
class _Run:
    """One running task."""

    lease: leases.Lease
    reporter: Reporter
    metrics: dict[str, float] = field(default_factory=dict)

    def body(self) -> Body:
        """What its function may use."""
        return Body(self.lease.directory, self._progress, self.metrics)

    def _progress(self, step: int, total: int) -> None:
        self.lease.check()
        self.reporter.update(step, total)


class UnderstudyTask(Task[P, R]):
    """A Prefect task whose results are kept where the settings say at the time it runs."""

    @property
    def result_storage(self) -> Path:  # type: ignore[override]
        """The directory of results under the private root."""
        return settings().results_root

    @result_storage.setter
    def result_storage(self, value: Any) -> None:
        # Prefect's constructor assigns its default here.
        if value is not None:
            raise UnderstudyError("results of tasks live under the private root; result_storage cannot be set")


def task(
    *,
    name: str,
    zone: Zone = "client",
    cache: bool = True,
    computes: bool = True,
    apart: bool = False,
    retries: int = 3,
    retry_delays: Sequence[float] = (1.0, 5.0, 25.0),
    ignore: tuple[str, ...] = (),
) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a function a task.

    Arguments and results are references, pydantic models, plain values and lists, tuples and dicts of
    these; all that is not behind a reference must be public. In `.map`, wrap a config in
    `prefect.unmapped`.

    Args:
        name: the task's name, part of its key.
        zone: where it may run; a server-zone task refuses private references before reading a byte.
        cache: whether an earlier result with the same key is taken; False for tasks with an effect of their
            own.
        computes: whether it computes with tensors; a task that does not takes neither threads nor a GPU, and loads no
            torch.
        apart: whether it may compute in a process of its own, beside others: for mapped tasks of some minutes, whose
            function stands at the top of its module.
        retries: attempts after the first for faults that can pass; none for errors of the user.
        retry_delays: seconds before each further attempt, the last one repeated.
        ignore: names of arguments that do not change the result.

    Returns:
        A decorator; what it returns has `.submit`, `.map` and `.fn` like every Prefect task.
    """

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        spec = _Spec(name, zone, cache, computes, apart, ignore, function)

        @functools.wraps(function)
        def body(*args: P.args, **kwargs: P.kwargs) -> R:
            result: R = _run(spec, spec.bind(args, kwargs))
            return result

        def finalize(_: Task[Any, Any], task_run: TaskRun, state: State[Any]) -> None:
            _after_commit(spec, task_run, state)

        policy = CacheKeyFnPolicy(cache_key_fn=lambda _, arguments: _cache_key(spec, arguments))
        return UnderstudyTask(
            fn=body,
            name=name,
            task_run_name=name,
            cache_policy=policy if cache else NO_CACHE,
            persist_result=cache,
            result_serializer=_SERIALIZER,
            # Every read is from the file, so that the references in it verify themselves.
            cache_result_in_memory=False,
            retries=retries,
            retry_delay_seconds=list(retry_delays),
            retry_condition_fn=_may_retry,
            on_completion=[finalize] if cache else None,
        )

    return decorate


def in_either_zone(name: str) -> Callable[[Callable[P, R]], Mapping[Zone, Task[P, R]]]:
    """One function as a task of either zone."""

    def decorate(function: Callable[P, R]) -> Mapping[Zone, Task[P, R]]:
        return {"client": task(name=name, zone="client")(function), "server": task(name=name, zone="server")(function)}

    return decorate


def _run(spec: _Spec, arguments: dict[str, Any]) -> Any:
    check_zone(spec.name, spec.zone, arguments)
    key = spec.key(arguments)
    context = _own_context(spec)
    labels = [ref.label for ref in references(arguments)]
    sources = {name for label in labels for name in (*label.sources, *(g.source for g in label.guarantees))}
    started_ms = int(time.time() * 1000)
    root = settings().checkpoints_root
    waiting = say_waiting(lambda: f"for {leases.holder(root, key)}, which computes task {spec.name!r} of the same run")
    lease = leases.acquire(root, key, sources=sorted(sources), waiting=waiting)
    run = _Run(lease, Reporter(spec.name, prefect_publisher(spec.name) if context else lambda _: None))
    record = functools.partial(
        TaskRecord,
        key=key,
        name=spec.name,
        zone=spec.zone,
        started_ms=started_ms,
        arguments=arguments,
        flow_run_id=str(context.task_run.flow_run_id) if context and context.task_run.flow_run_id else None,
        task_run_id=str(context.task_run.id) if context else None,
    )
    done = False
    try:
        result = _earlier_result(spec, run, context, key)
        if result is _MISSING:
            result = _compute(spec, run, arguments, inside=context is not None)
        if context is not None:
            tracking.log_task(record(state="FINISHED", result=result, metrics=run.metrics))
        done = True
        return result
    except TrackingFailed:
        raise
    except Exception as error:
        if context is not None:
            _record_failure(record(state="FAILED", failure=type(error).__name__), error)
        raise
    finally:
        # A cached task keeps its result beside the checkpoints until Prefect has committed it.
        if done and (context is None or not spec.cache):
            lease.finish()
        else:
            lease.release()


def _compute(spec: _Spec, run: _Run, arguments: dict[str, Any], *, inside: bool) -> Any:
    if inside and spec.computes:
        run.reporter.begin()
    try:
        if inside and spec.apart and processes.side_by_side():
            result = processes.compute_apart(spec.name, spec.function, arguments, run.body())
        else:
            result = _compute_here(spec, run, arguments, inside=inside)
    finally:
        run.reporter.close()
    run.lease.check()
    describe(result, where=f"the result of task {spec.name!r}")
    if not (inside and spec.cache):
        return result
    kept = _SERIALIZER.dumps({"result": result, "metrics": run.metrics})
    run.lease.save_result(kept)
    # What a hit would return: a tuple has become a list.
    return _SERIALIZER.loads(kept)["result"]


def _compute_here(spec: _Spec, run: _Run, arguments: dict[str, Any], *, inside: bool) -> Any:
    with running(run.body()), prepared(spec.function, inside=inside) if spec.computes else nullcontext():
        call = functools.partial(_call, spec.function, arguments)
        return closed_up(spec.name, call) if inside else call()


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    bound = inspect.signature(function).bind_partial()
    bound.arguments.update(arguments)
    return function(*bound.args, **bound.kwargs)


def _earlier_result(spec: _Spec, run: _Run, context: TaskRunContext | None, key: str) -> Any:
    """What an attempt that ended before its commit, or a worker we waited for, has left."""
    if context is None or not spec.cache:
        return _MISSING
    content = run.lease.load_result()
    try:
        if content is not None:
            kept = _SERIALIZER.loads(content)
            run.metrics.update(kept["metrics"])
            return kept["result"]
        if run.lease.waited and context.result_store.exists(key):
            return context.result_store.read(key).result
    except ValueError:
        # An artifact in it is gone or damaged: compute it again.
        return _MISSING
    return _MISSING


def _cache_key(spec: _Spec, arguments: dict[str, Any]) -> str | None:
    try:
        return spec.key(spec.bind((), arguments))
    except UnderstudyError:
        # The body refuses the same arguments with the same error; here it would only be logged.
        return None


def _may_retry(_: Task[Any, Any], __: TaskRun, state: State[Any]) -> bool:
    return isinstance(state.data, BaseException) and can_pass(state.data)


def _after_commit(spec: _Spec, task_run: TaskRun, state: State[Any]) -> None:
    """Record a cached result under this flow run too, and drop checkpoints that are no longer needed."""
    stored = state.data
    if not isinstance(stored, ResultRecord) or stored.metadata.storage_key is None:
        return
    key = Path(stored.metadata.storage_key).name
    if state.name == "Cached":
        tracking.log_task(
            TaskRecord(
                key=key,
                name=spec.name,
                zone=spec.zone,
                state="FINISHED",
                started_ms=int(time.time() * 1000),
                result=stored.result,
                cached=True,
                flow_run_id=str(task_run.flow_run_id) if task_run.flow_run_id else None,
                task_run_id=str(task_run.id),
            )
        )
    now = settings()
    if _is_whole(now.results_root / key):
        leases.forget(now.checkpoints_root, key)


def _is_whole(stored: Path) -> bool:
    """Whether a result is committed: on a full disk Prefect writes a part of it, or nothing, and goes on."""
    try:
        json.loads(stored.read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return True


def _record_failure(record: TaskRecord, error: Exception) -> None:
    try:
        tracking.log_task(record)
    except TrackingFailed as also:
        error.add_note(str(also))


def _own_context(spec: _Spec) -> TaskRunContext | None:
    """Prefect's context of this very task; None when `.fn` was called, alone or inside another task."""
    context = TaskRunContext.get()
    if context is None or inspect.unwrap(context.task.fn).__code__ != inspect.unwrap(spec.function).__code__:
        return None
    return context
