"""The server zone's side of preference optimisation, as a flow that the client zone starts.

A process of both zones does the server's steps itself. One of the client zone alone (`UNDERSTUDY_ZONE=client`) starts
each of them as a flow run of the deployment `preference-optimization-server/default`, waits for a worker of the pool
`server` to end it, and reads the reference that its last state names. References to public and released artifacts and
public settings go there, a reference comes back; the artifacts themselves lie in the exchange store. What comes back is
followed only if it lies there and is made, by its label and its parents, of what the step was given and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, ClassVar, Literal

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from understudy.artifacts.access import ArtifactRef, exchange_store
from understudy.errors import InputError, UnderstudyError, ZoneError
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.privacy import labels
from understudy.settings import settings
from understudy.tasks.engine.cache_key import references
from understudy.tasks.engine.progress import waiting
from understudy.tasks.engine.runtime import Zone
from understudy.tasks.engine.tracking import parent_run
from understudy.tasks.preference_optimization import prefer, propose, publish, write_texts

NAME = "preference-optimization-server"
DEPLOYMENT = f"{NAME}/default"

_FIX = (
    "it was not followed: see that both zones have the same version of Understudy and the same UNDERSTUDY_EXCHANGE, "
    "and run the same command again, which goes on here without a further charge"
)
_FROZEN = ConfigDict(frozen=True, extra="forbid")


class Propose(BaseModel):
    """Write a round's candidates."""

    model_config = _FROZEN

    makes: ClassVar[tuple[str, ...]] = ("candidates",)
    step: Literal["propose"] = "propose"
    adapter: ArtifactRef | None
    config: PreferenceOptimizationConfig
    label_names: tuple[str, ...]
    number: int


class Prefer(BaseModel):
    """Train on a round's noisy scores."""

    model_config = _FROZEN

    makes: ClassVar[tuple[str, ...]] = ("adapter",)
    step: Literal["prefer"] = "prefer"
    candidates: ArtifactRef
    scores: ArtifactRef
    adapter: ArtifactRef | None
    config: PreferenceOptimizationConfig
    number: int


class Publish(BaseModel):
    """Make the last policy a model."""

    model_config = _FROZEN

    makes: ClassVar[tuple[str, ...]] = ("model",)
    step: Literal["publish"] = "publish"
    adapter: ArtifactRef
    config: PreferenceOptimizationConfig


class WriteTexts(BaseModel):
    """Write the synthetic texts, or without an adapter the public model's."""

    model_config = _FROZEN

    makes: ClassVar[tuple[str, ...]] = ("synthetic", "prompt-only")
    step: Literal["write-texts"] = "write-texts"
    adapter: ArtifactRef | None
    config: PreferenceOptimizationConfig
    label_names: tuple[str, ...]


Step = Annotated[Propose | Prefer | Publish | WriteTexts, Field(discriminator="step")]


@flow(name=NAME)
def server_side(step: Step) -> State[None]:
    """One step of the server zone; its last state's message is the reference to what it made."""
    key = hashlib.sha256(step.model_dump_json().encode()).hexdigest()
    with parent_run(key, NAME, parameters={"step": step}, zone="server"):
        made = take(step, "server")
    return Completed(message=made.model_dump_json())


def in_zone(zone: Zone, step: Step) -> ArtifactRef:
    """Take a step here, or have it taken in the server zone where this process is not of it.

    Raises:
        InputError: the server's deployment is not known to Prefect.
        UnderstudyError: the step failed there.
        ZoneError: what came back is not what the step makes of its inputs.
    """
    if zone == "client" or settings().zone == "both":
        return take(step, zone)
    number = getattr(step, "number", None)
    name = step.step if number is None else f"{step.step}-{number}"
    told = f"{name}: waiting for a worker of the server zone, flow run of {DEPLOYMENT}"
    get_run_logger().info(told)
    try:
        with waiting(told):
            ended: FlowRun = run_deployment(  # type: ignore[assignment]  # a coroutine only where an event loop runs
                DEPLOYMENT, parameters={"step": step.model_dump(mode="json")}, flow_run_name=name, poll_interval=1
            )
    except ObjectNotFound:
        raise InputError(
            f"UNDERSTUDY_ZONE=client: expected the deployment {DEPLOYMENT} on the Prefect server, found none; make "
            "the pool (`prefect work-pool create server --type process`), deploy (`prefect --no-prompt deploy --all`) "
            "and start a worker with UNDERSTUDY_ZONE=server, or unset UNDERSTUDY_ZONE to run both zones here"
        ) from None
    state = ended.state
    if state is None or not state.is_completed() or not state.message:
        found = "no state" if state is None else f"{state.name}: {state.message}"
        raise UnderstudyError(
            f"{name}: expected flow run {ended.id} of the server zone to complete, found {found}; fix it there and "
            "run the same command again, which goes on here without a further charge"
        )
    return came_back(state.message, step)


def came_back(message: str, step: Step) -> ArtifactRef:
    """The reference in a server's message.

    Raises:
        ZoneError: it lies outside of the exchange store, or is not what the step makes of its inputs.
    """
    place = uri_in(message)
    if not exchange_store().is_place(place):
        found = f"one at {place!r}" if place else f"{message[:80]!r}"
        raise ZoneError(f"{step.step}: expected an artifact of the exchange store, found {found}; {_FIX}")
    try:
        made = ArtifactRef.model_validate_json(message)
    except ValidationError as error:
        found = error.errors()[0]["msg"]
        raise ZoneError(f"{step.step}: expected a whole artifact at {place}, found: {found}; {_FIX}") from None
    inputs = list(references(step))
    expected = labels.post_process(labels.join(*(ref.label for ref in inputs)))
    parents = {ref.id for ref in inputs}
    if made.kind not in step.makes or made.label != expected or set(made.parents) != parents:
        raise ZoneError(
            f"{step.step}: expected {' or '.join(step.makes)}, {expected}, made of {sorted(parents)}; the server zone "
            f"gave back {made.kind} {made.id}, {made.label}, made of {sorted(made.parents)}; {_FIX}"
        )
    return made


def uri_in(message: str) -> str:
    """Where the reference in a message says it lies; empty where there is none."""
    try:
        told = json.loads(message)
    except ValueError:
        return ""
    return str(told.get("uri") or "") if isinstance(told, dict) else ""


def take(step: Step, zone: Zone) -> ArtifactRef:
    """Run the task of a step in this process."""
    match step:
        case Propose():
            return propose[zone](step.adapter, step.config, step.label_names, step.number)
        case Prefer():
            return prefer[zone](step.candidates, step.scores, step.adapter, step.config, step.number)
        case Publish():
            return publish[zone](step.adapter, step.config)
        case WriteTexts():
            return write_texts[zone](step.adapter, step.config, step.label_names)
