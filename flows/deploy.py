"""`understudy deploy`: everything that runs on workers need, made on the user's Prefect server.

Calling it again makes nothing twice. Deployments and the automations are brought up to date; schedules, queues and
limits that an operator has set stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from http import HTTPStatus
from importlib import import_module

from prefect import Flow, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate, GlobalConcurrencyLimitCreate, WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.deployments.runner import RunnerDeployment
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError
from prefect.types.entrypoint import EntrypointType
from prefect.utilities.callables import parameter_schema

from understudy.errors import InputError
from understudy.lazy import load
from understudy.methods import registry
from understudy.runs.checks.prefect_server import prefect_server
from understudy.settings import prefect_setting
from understudy.tasks.engine import heartbeat

NAME = "default"
SILENT = "understudy: a silent run is crashed"
NEVER_HEARD = "understudy: a run that never sent a heartbeat is crashed"
NOT_CANCELLED = "understudy: a run that nobody is left to cancel is cancelled"
POOLS = ("client", "server")
QUEUES = ("cpu", "gpu")
LIMIT = "gpu"
# Of runs at once in a pool. Each is a process with a model in it, and sixteen that began together kept a Prefect
# server on SQLite from answering.
RUNS_AT_ONCE = 4
FURTHER = ("understudy.flows.audit:audit", "understudy.flows.compare:compare", "understudy.flows.evaluate:evaluate")
# After these, a run sends no further heartbeat; the other name of Failed is that of a run that took too long.
_ENDS = (
    "Completed",
    "Failed",
    "TimedOut",
    "Crashed",
    "Cancelled",
    "Cancelling",
    "Paused",
    "Suspended",
    "AwaitingRetry",
)
_GONE = f"its worker and its process were gone{heartbeat.RETRY}"


def deploy() -> dict[str, str]:
    """Make deployments, work pools, queues, the GPU's concurrency limit and the automations, where they are missing.

    Returns:
        What there is now -> what was done.

    Raises:
        InputError: without a Prefect server that outlives this command, or when it does not answer.
    """
    if prefect_setting("PREFECT_API_URL") is None:
        raise InputError(
            "PREFECT_API_URL: expected a Prefect server of your own, found none; start it (prefect server start) and "
            "set PREFECT_API_URL=http://127.0.0.1:4200/api"
        )
    prefect_server()
    with get_client(sync_client=True) as client:
        done = {f"work pool {pool}": _pool(client, pool) for pool in POOLS}
        done |= {f"work queue {pool}/{queue}": _queue(client, pool, queue) for pool in POOLS for queue in QUEUES}
        done[f"concurrency limit {LIMIT}"] = _limit(client)
        for flow, pool in _flows():
            done[f"deployment {flow.name}/{NAME}"] = _deployment(client, flow, pool)
        for automation in (_of_silence(), _of_no_beginning(), _of_no_cancellation()):
            done[f"automation {automation.name!r}"] = _automation(client, automation)
    return done


def _flows() -> Iterator[tuple[Flow[..., object], str]]:
    """The flow of each method with its pool, and that of its server side, which stands beside it as `server_side`.

    Then those that are no method's.
    """
    for name in registry.names():
        place = registry.get(name).flow
        yield load(place), "client"
        served = getattr(import_module(place.partition(":")[0]), "server_side", None)
        if isinstance(served, Flow):
            yield served, "server"
    for place in FURTHER:
        yield load(place), "client"


def _pool(client: SyncPrefectClient, name: str) -> str:
    try:
        client.create_work_pool(WorkPoolCreate(name=name, type="process", concurrency_limit=RUNS_AT_ONCE))
    except ObjectAlreadyExists:
        limit = client.read_work_pool(name).concurrency_limit
        return "was there, without a limit" if limit is None else f"was there, {limit} runs at a time"
    return f"made, {RUNS_AT_ONCE} runs at a time"


def _queue(client: SyncPrefectClient, pool: str, name: str) -> str:
    try:
        client.read_work_queue_by_name(name, work_pool_name=pool)
    except ObjectNotFound:
        client.create_work_queue(name, work_pool_name=pool)
        return "made"
    return "was there"


def _limit(client: SyncPrefectClient) -> str:
    try:
        found = client.read_global_concurrency_limit_by_name(LIMIT)
    except ObjectNotFound:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=LIMIT, limit=1))
        return "made, 1 task at a time"
    return f"was there, {found.limit} at a time"


def _deployment(client: SyncPrefectClient, flow: Flow[..., object], pool: str) -> str:
    """Make the deployment of a flow, or tell it of the flow as it is now: schedules and queue stay an operator's."""
    made = RunnerDeployment.from_flow(
        flow,
        NAME,
        tags=["understudy"],
        work_pool_name=pool,
        work_queue_name=QUEUES[0],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    try:
        found = client.read_deployment_by_name(f"{flow.name}/{NAME}")
    except ObjectNotFound:
        made.apply()
        _close(client, flow)
        return f"made, pool {pool}, queue {QUEUES[0]}"
    facts = {name: getattr(made, name) for name in ("version", "description", "entrypoint")}
    client.update_deployment(found.id, DeploymentUpdate(**facts))
    _close(client, flow)
    return f"brought up to date, pool {found.work_pool_name}, queue {found.work_queue_name}"


def _close(client: SyncPrefectClient, flow: Flow[..., object]) -> None:
    """Tell the server the parameters of a flow, and that there are no others: a run with another one would crash.

    Prefect's own schema leaves that open, and its class has no room for it.

    Raises:
        InputError: an operator gave the deployment parameters that the flow does not take.
    """
    schema = {**parameter_schema(flow).model_dump(), "additionalProperties": False}
    told, found = {"parameter_openapi_schema": schema}, client.read_deployment_by_name(f"{flow.name}/{NAME}")
    try:
        client.request("PATCH", "/deployments/{id}", path_params={"id": found.id}, json=told)
    except PrefectHTTPStatusError as error:
        if error.response.status_code != HTTPStatus.CONFLICT:
            raise
        said = error.response.json()["detail"].partition("Failure reason: ")[2]
        raise InputError(
            f"deployment {flow.name}/{NAME}: expected parameters that its flow takes, found others: {said}; correct or "
            "remove the deployment's own parameters in the Prefect UI, then deploy again"
        ) from None


def _of_silence() -> AutomationCore:
    """Runs that sent a heartbeat and then fall silent."""
    return _crashing(
        SILENT, "The process of the run was killed, or its machine is gone", {heartbeat.EVENT}, heartbeat.silence_s()
    )


def _of_no_beginning() -> AutomationCore:
    """Runs of Understudy's flows, of whose process nothing was heard since a worker took them.

    The server's own events know the flow's name, and Prefect adds it to the heartbeats.
    """
    return _crashing(
        NEVER_HEARD,
        "The process of the run was killed before its first heartbeat, or never began",
        {"prefect.flow-run.Pending", "prefect.flow-run.Running"},
        heartbeat.beginning_s(),
        match_related=_ours(),
    )


def _of_no_cancellation() -> AutomationCore:
    """Runs of Understudy's flows that were to be cancelled when their worker and their process were dead already.

    Prefect retries only runs that have ended.
    """
    return _ending(
        NOT_CANCELLED,
        "The run was cancelled, and its worker and its process were killed before they heard of it",
        {"prefect.flow-run.Cancelling"},
        heartbeat.beginning_s(),
        to=ChangeFlowRunState(state=StateType.CANCELLED, name="Cancelled", force=False, message=_GONE),
        match_related=_ours(),
    )


def _ours() -> dict[str, str | list[str]]:
    """What events of our flows' runs are related to."""
    names = sorted({flow.name for flow, _ in _flows()})
    return {"prefect.resource.role": "flow", "prefect.resource.name": names}


def _crashing(
    name: str, cause: str, after: set[str], silence: float, *, match_related: dict[str, str | list[str]] | None = None
) -> AutomationCore:
    """An automation that makes a run Crashed, from which it can be retried, when no heartbeat follows one of `after`.

    Args:
        name: of the automation.
        cause: what it finds, in words.
        after: events that begin the wait.
        silence: seconds without a heartbeat.
        match_related: which runs; None for all.
    """
    said = f"no heartbeat for {silence:g} s{heartbeat.RETRY}"
    to = ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", force=False, message=said)
    return _ending(name, cause, after, silence, to=to, match_related=match_related or {})


def _ending(
    name: str,
    cause: str,
    after: set[str],
    silence: float,
    *,
    to: ChangeFlowRunState,
    match_related: dict[str, str | list[str]],
) -> AutomationCore:
    """An automation that ends a run when neither a heartbeat nor an end follows one of `after`."""
    ends = {f"prefect.flow-run.{end}" for end in _ENDS} - after
    return AutomationCore(
        name=name,
        description=f"{cause}: retry the run, and it goes on.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related=match_related,
            for_each={"prefect.resource.id"},
            after=after,
            expect={heartbeat.EVENT, heartbeat.PAUSED, *ends},
            threshold=1,
            within=timedelta(seconds=silence),
        ),
        actions=[to],
    )


def _automation(client: SyncPrefectClient, wanted: AutomationCore) -> str:
    assert isinstance(wanted.trigger, EventTrigger)
    silence = wanted.trigger.within.total_seconds()
    found = client.read_automations_by_name(wanted.name)
    if not found:
        client.create_automation(wanted)
        return f"made, after {silence:g} s of silence"
    client.update_automation(found[0].id, wanted)
    return f"brought up to date, after {silence:g} s of silence"
