"""A flow run's sign of life on the Prefect server, by which an automation tells a dead run from a slow one.

The process that computes sends it, whoever started it: the command line, a worker, a notebook. Prefect's own heartbeat
depends on a setting of whatever starts the process, and comes at most twice a minute, too seldom to find a dead run
within two minutes. `understudy deploy` makes the automations, which follow runs of Understudy alone.

The same process asks, with each heartbeat, whether its run was cancelled. A worker that lives ends it by itself; but
nobody else would tell a process whose worker is dead, or that no worker started. And it asks whether its run counts as
dead, as after the server, or the process, stood still for too long: then it says that it lives. For its heart never
waits for a server that is away; a client of Prefect's waits for a minute and more.

A temporary server ends with its run, and nobody watches it. There the sign of life is a lock on a file, which the next
temporary server looks at when it starts.
"""

import contextvars
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.exceptions import ObjectNotFound, Pause, PrefectException
from prefect.settings import PREFECT_API_URL, PREFECT_HOME
from prefect.states import Cancelled, Crashed, Running

from understudy.locks import locked_folder, try_lock
from understudy.settings import prefect_setting, settings
from understudy.tasks.engine.deleted_run import aborted_if_deleted
from understudy.tasks.engine.lost_log import outlive_readers_of_the_log
from understudy.tasks.engine.prefect_links import asked_once
from understudy.tasks.engine.refusals import tell_refusals_in_a_line

EVENT = "understudy.flow-run.heartbeat"
# After the last heartbeat of a run that leaves its process for a while: the event of its state came before that.
PAUSED = "understudy.flow-run.paused"
# Of silence, in heartbeats, after which a run counts as dead; Prefect takes no less than ten seconds.
MISSED = 4
SHORTEST_SILENCE_S = 10.0
# From the moment a worker takes a run: a process has to start and to import before it can send one.
BEGINNING_S = 90.0
# A worker that lives ends a cancelled run within this time by itself, and more gently.
LEFT_TO_WORKER_S = 30.0
# What a run that counts as dead says about itself on the Prefect server.
RETRY = ": retry it, it goes on"
# Beside the database of temporary servers: a file for each run that was told to one, locked while the run computes.
RUNNING = "understudy-running"
_RUNNING: dict[str, Any] = {"state": {"type": {"any_": ["RUNNING"]}}}

_log = logging.getLogger(__name__)


def silence_s() -> float:
    """Seconds without a heartbeat after which a run counts as dead."""
    return max(SHORTEST_SILENCE_S, MISSED * settings().heartbeat_s)


def beginning_s() -> float:
    """Seconds without a first heartbeat, since a worker took a run, after which the run counts as dead."""
    return max(BEGINNING_S, silence_s())


@contextmanager
def beating() -> Iterator[None]:
    """Send heartbeats of the running flow while the block runs, or hold its lock where its server ends with it.

    A run that is cancelled on its server, and that no worker ends, is interrupted here as by Ctrl-C.

    What an attempt of this flow run left behind as Running, because it was killed, is marked Crashed first.

    Raises:
        Abort: a worker started the run, and it was deleted on its server.
    """
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    if run is None:
        yield
        return
    if run.deployment_id:  # the process is the run's own
        tell_refusals_in_a_line()
        outlive_readers_of_the_log()
    if prefect_setting("PREFECT_API_URL") is None:
        with _lock_held(run):
            yield
        return
    ended, cancelled = threading.Event(), threading.Event()
    stop = _interruption(ended, cancelled)
    saying = threading.Lock()
    # The thread sees the settings of this flow run, and so its server.
    heart = threading.Thread(
        target=contextvars.copy_context().run, args=(_beat, run, ended, stop, saying), name="flow-heart", daemon=True
    )
    heart.start()
    paused = False
    try:
        _end_left_behind(run)
        with aborted_if_deleted(run):
            yield
    except Pause:
        paused = True
        raise
    except BaseException:
        if cancelled.is_set():
            _say_cancelled(run)
        raise
    finally:
        with saying:
            ended.set()
        heart.join(timeout=1.0)
        if paused:
            _tell(PAUSED, run)


def _beat(
    run: FlowRun, ended: threading.Event, stop: Callable[[], None], saying: AbstractContextManager[object]
) -> None:
    every, asked_at = settings().heartbeat_s, None
    with asked_once():
        while True:
            _tell(EVENT, run)
            try:
                state = _state_of(run)
            except ObjectNotFound:
                return _log.warning(
                    "flow run %s was deleted on the Prefect server: its process goes on, and what it makes is kept; "
                    "call the same again when it has ended, under the same charge if there is one",
                    run.name,
                )
            if state is not None and state.is_cancelling():
                asked_at = time.monotonic() if asked_at is None else asked_at
                left = LEFT_TO_WORKER_S if run.deployment_id else 0.0
                if time.monotonic() - asked_at >= left:
                    return stop()
            elif state is not None and state.is_cancelled():
                return stop()
            elif state is not None:
                asked_at = None
                if _counts_as_dead(state):
                    with saying:  # so that no run that has ended meanwhile is said to run
                        if not ended.is_set():
                            _say_living(run)
            if ended.wait(every):
                return None


def _counts_as_dead(state: State[Any]) -> bool:
    """Whether a run is Crashed because nothing was heard of it."""
    return state.is_crashed() and str(state.message).endswith(RETRY)


def when_ended(run: FlowRun) -> FlowRun:
    """A flow run that seemed to have ended, once it has.

    One that counts as dead may live, or have ended while its server was away: it is given the time in which a process
    that lives takes that back, and then followed to its end. What somebody retried is followed too.
    """
    silent_since = time.monotonic()
    with get_client(sync_client=True) as client:
        while (state := run.state) is not None:
            if not _counts_as_dead(state):
                if state.is_final():
                    break
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > MISSED * settings().heartbeat_s:
                break
            time.sleep(1.0)
            run = client.read_flow_run(run.id)
    return run


def _interruption(ended: threading.Event, cancelled: threading.Event) -> Callable[[], None]:
    """What interrupts the running flow; nothing where it is not in the main thread, which alone can be interrupted."""
    inside, main = threading.current_thread() is threading.main_thread(), threading.main_thread().ident

    def stop() -> None:
        if inside and main is not None and not ended.is_set():
            cancelled.set()
            # Where Ctrl-C is ignored, as in the background of a script, Prefect takes the other one.
            ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.pthread_kill(main, signal.SIGTERM if ignored else signal.SIGINT)

    return stop


def _state_of(run: FlowRun) -> State[Any] | None:
    """The state that the server knows; None where it does not answer.

    Raises:
        ObjectNotFound: the run was deleted there.
    """
    try:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(run.id).state
    except ObjectNotFound:
        raise
    except (httpx.HTTPError, PrefectException) as error:
        _log.debug("the state of flow run %s was not read: %s", run.id, type(error).__name__)
        return None


def _say_living(run: FlowRun) -> None:
    """Take back that a run counts as dead."""
    try:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run.id, Running(message="its process lives: nothing was heard of it for a while"))
    except (httpx.HTTPError, PrefectException) as error:
        _log.debug("flow run %s may still stand as Crashed: %s", run.id, type(error).__name__)


def _say_cancelled(run: FlowRun) -> None:
    """End a run as Cancelled, unless somebody has retried it since."""
    # Prefect's engine has the same object. A run that has ended for it is not made Crashed.
    state = run.state = Cancelled(message="its process noticed, and stopped")
    try:
        found = _state_of(run)
        if found is not None and found.is_cancelling():
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(run.id, state)
    except ObjectNotFound:
        return
    except (httpx.HTTPError, PrefectException) as error:
        _log.warning("flow run %s may still stand as Cancelling: %s", run.id, type(error).__name__)


def _tell(event: str, run: FlowRun) -> None:
    resource = {"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.name": run.name}
    # Whatever Prefect's client raises for a server that is away for a while: the next heartbeat tries again.
    try:
        emit_event(event, resource=resource)
    except Exception as error:
        _log.warning("an event of flow run %s was not sent: %s", run.id, type(error).__name__)


@contextmanager
def _lock_held(run: FlowRun) -> Iterator[None]:
    """Hold the lock of a run that was told to a temporary server.

    Its file stays until the next start: that server may have ended before it was told how the run did.
    """
    if PREFECT_API_URL.value():  # of a server that this process was told of since it began
        yield
        return
    folder = _running_folder()
    with locked_folder(folder):
        descriptor = try_lock(folder / str(run.id))
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def end_dead_runs() -> None:
    """Mark Crashed what stands as Running in the database of temporary servers though its process has ended."""
    folder = _running_folder()
    try:
        with locked_folder(folder), get_client(sync_client=True) as client:
            for place in sorted(folder.iterdir()):
                descriptor = try_lock(place)
                if descriptor is None:
                    continue
                itself = {"id": {"any_": [place.name]}}
                _end_tasks(client, FlowRunFilter.model_validate(itself))
                _end_flows(client, FlowRunFilter.model_validate(itself | _RUNNING))
                place.unlink()
                os.close(descriptor)
    except httpx.HTTPError as error:
        _log.warning("runs of killed processes may still stand as Running: %s", type(error).__name__)


def _running_folder() -> Path:
    folder: Path = PREFECT_HOME.value() / RUNNING
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _end_left_behind(run: FlowRun) -> None:
    """Before the first task of an attempt, whatever of this run stands as Running belongs to a dead one.

    So does what stands so of the flows that it called. A run of a deployment is in a process of its own, and goes on.
    """
    itself = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
    below = {"parent_flow_run_id": {"any_": [run.id]}, "deployment_id": {"is_null_": True}}
    try:
        with get_client(sync_client=True) as client:
            _end_tasks(client, itself)
            _end_tasks(client, FlowRunFilter.model_validate(below))
            _end_flows(client, FlowRunFilter.model_validate(below | _RUNNING))
    except httpx.HTTPError as error:
        _log.warning("what a killed attempt began may still stand as Running: %s", type(error).__name__)


def _end_tasks(client: SyncPrefectClient, flow_runs: FlowRunFilter) -> None:
    running = TaskRunFilter.model_validate(_RUNNING)
    for run in client.read_task_runs(flow_run_filter=flow_runs, task_run_filter=running):
        client.set_task_run_state(run.id, _crashed(), force=True)


def _end_flows(client: SyncPrefectClient, flow_runs: FlowRunFilter) -> None:
    for run in client.read_flow_runs(flow_run_filter=flow_runs):
        client.set_flow_run_state(run.id, _crashed(), force=True)


def _crashed() -> State[Any]:
    return Crashed(message="its process was killed")
