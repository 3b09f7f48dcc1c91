"""A flow run's sign of life on the Prefect server, by which an automation tells a dead run from a slow one.

The process that computes sends it, whoever started it: the command line, a worker, a notebook. Prefect's own heartbeat
depends on a setting of whatever starts the process, and comes at most twice a minute, too seldom to find a dead run
within two minutes. `understudy deploy` makes the automations, which follow runs of Understudy alone.
"""

import contextvars
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.exceptions import Pause
from prefect.states import Crashed

from understudy.settings import prefect_setting, settings

EVENT = "understudy.flow-run.heartbeat"
# After the last heartbeat of a run that leaves its process for a while: the event of its state came before that.
PAUSED = "understudy.flow-run.paused"
# Of silence, in heartbeats, after which a run counts as dead; Prefect takes no less than ten seconds.
MISSED = 4
SHORTEST_SILENCE_S = 10.0
# From the moment a worker takes a run: a process has to start and to import before it can send one.
BEGINNING_S = 90.0
# What a run that counts as dead says about itself on the Prefect server.
RETRY = ": retry it, it goes on"

_log = logging.getLogger(__name__)


def silence_s() -> float:
    """Seconds without a heartbeat after which a run counts as dead."""
    return max(SHORTEST_SILENCE_S, MISSED * settings().heartbeat_s)


def beginning_s() -> float:
    """Seconds without a first heartbeat, since a worker took a run, after which the run counts as dead."""
    return max(BEGINNING_S, silence_s())


@contextmanager
def beating() -> Iterator[None]:
    """Send heartbeats of the running flow while the block runs; nothing without a Prefect server that outlives it.

    What an attempt of this flow run left behind as Running, because it was killed, is marked Crashed first.
    """
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    if run is None or prefect_setting("PREFECT_API_URL") is None:
        yield
        return
    ended = threading.Event()
    # The thread sees the settings of this flow run, and so its server.
    heart = threading.Thread(
        target=contextvars.copy_context().run, args=(_beat, run, ended), name="flow-heart", daemon=True
    )
    heart.start()
    paused = False
    try:
        _end_left_behind(run)
        yield
    except Pause:
        paused = True
        raise
    finally:
        ended.set()
        heart.join(timeout=1.0)
        if paused:
            _tell(PAUSED, run)


def _beat(run: FlowRun, ended: threading.Event) -> None:
    every = settings().heartbeat_s
    while True:
        _tell(EVENT, run)
        if ended.wait(every):
            return


def _tell(event: str, run: FlowRun) -> None:
    resource = {"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.name": run.name}
    # Whatever Prefect's client raises for a server that is away for a while: the next heartbeat tries again.
    try:
        emit_event(event, resource=resource)
    except Exception as error:
        _log.warning("an event of flow run %s was not sent: %s", run.id, type(error).__name__)


def _end_left_behind(run: FlowRun) -> None:
    """Before the first task of an attempt, whatever of this run stands as Running belongs to a dead one.

    So does what stands so of the flows that it called. A run of a deployment is in a process of its own, and goes on.
    """
    itself = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
    below = {"parent_flow_run_id": {"any_": [run.id]}, "deployment_id": {"is_null_": True}}
    running: dict[str, Any] = {"state": {"type": {"any_": ["RUNNING"]}}}
    crashed: State[Any] = Crashed(message="its process was killed")
    try:
        with get_client(sync_client=True) as client:
            for flow_runs in (itself, FlowRunFilter.model_validate(below)):
                tasks = TaskRunFilter.model_validate(running)
                for task_run in client.read_task_runs(flow_run_filter=flow_runs, task_run_filter=tasks):
                    client.set_task_run_state(task_run.id, crashed, force=True)
            for inner in client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(below | running)):
                client.set_flow_run_state(inner.id, crashed, force=True)
    except httpx.HTTPError as error:
        _log.warning("what a killed attempt began may still stand as Running: %s", type(error).__name__)
