"""A method's steps in the server zone, as a flow that the client zone starts.

A process of both zones does the server's steps itself. One of the client zone alone (`UNDERSTUDY_ZONE=client`) starts
each of them as a flow run of the method's deployment for the server zone, waits for a worker of the pool `server` to
end it, and reads the reference that its last state names. References to public and released artifacts and public
settings go there, a reference comes back; the artifacts themselves lie in the exchange store.

Messages are signed in both directions: the order by the client zone, the answer by the server zone together with the
order that it answers. Neither zone acts on a message that the other's key did not sign. The client zone uses what comes
back only if it also lies in the exchange store and is made, by its label and its parents, of what the step was given
and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from prefect import get_run_logger
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from understudy.artifacts.access import ArtifactRef, exchange_store
from understudy.artifacts.manifest import canonical_json
from understudy.artifacts.zone_keys import own_key, public_key
from understudy.errors import InputError, UnderstudyError, ZoneError
from understudy.flows.deleted_run import is_of_flow_run
from understudy.flows.worker_places import check_places
from understudy.privacy import labels
from understudy.settings import settings
from understudy.tasks.engine.cache_key import references
from understudy.tasks.engine.heartbeat import RETRY, beating, when_ended
from understudy.tasks.engine.progress import waiting
from understudy.tasks.engine.runtime import Zone
from understudy.tasks.engine.tracking import parent_run

_FIX = (
    "it was not followed: see that both zones have the same version of Understudy and the same UNDERSTUDY_EXCHANGE, "
    "and run the same command again, which goes on here without a further charge"
)
_ORDER, _ANSWER = "order", "answer"


class Step(Protocol):
    """One step of a method's server side: a frozen pydantic model of references and public values.

    Attributes:
        makes: kinds of artifact that it may give back.
        step: its name, a literal.
    """

    makes: ClassVar[tuple[str, ...]]

    @property
    def step(self) -> str:
        """Name of the step."""

    def take(self, zone: Zone) -> ArtifactRef:
        """Run the step's task in this process."""

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        """As of pydantic."""

    def model_dump_json(self) -> str:
        """As of pydantic."""


S = TypeVar("S", bound=Step)


class Signed(BaseModel):
    """A text with its sender's signature.

    Attributes:
        content: JSON.
        signature: of the content, hexadecimal.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    content: str
    signature: str


@dataclass(frozen=True)
class ServerSide(Generic[S]):
    """A method's server side.

    Attributes:
        name: of its flow.
        steps: reads a step.
        check: refuses a step that this machine's memory cannot hold; the client zone looked at its own alone.
    """

    name: str
    steps: TypeAdapter[S]
    check: Callable[[S], None]

    @property
    def deployment(self) -> str:
        """Of its flow, on the pool `server`."""
        return f"{self.name}/default"

    def in_zone(self, zone: Zone, step: S) -> ArtifactRef:
        """Take a step here, or have it taken in the server zone where this process is not of it.

        Raises:
            InputError: the server's deployment is not known to Prefect, or its key not to this zone.
            UnderstudyError: the step failed there.
            ZoneError: what came back is not signed by the server zone, or not what the step makes of its inputs.
        """
        if zone == "client" or settings().zone == "both":
            return step.take(zone)
        public_key("server")  # refused now rather than when the answer comes
        order = ordered(step)
        message = self._answer_to(order, step)
        return came_back(verified(message, order), step)

    def read(self, order: Signed) -> S:
        """The step that was ordered.

        Raises:
            ZoneError: the client zone did not sign the order.
        """
        public_key("client").verify(order.signature, order.content.encode(), purpose=_ORDER)
        return self.steps.validate_json(order.content)

    def answer(self, order: Signed) -> State[None]:
        """Take an ordered step in the server zone; the state's message is the signed reference to what it made.

        Raises:
            ZoneError: the client zone did not sign the order.
            InputError: a place that this worker was told of goes with the run, or this machine's memory is too small.
        """
        check_places()
        step = self.read(order)
        self.check(step)
        key = hashlib.sha256(order.content.encode()).hexdigest()
        with beating(), parent_run(key, self.name, parameters={"step": step}, zone="server"):
            made = step.take("server")
        return Completed(message=answered(made, order).model_dump_json())

    def _answer_to(self, order: Signed, step: S) -> str:
        """The message of the flow run that took the step."""
        number = getattr(step, "number", None)
        name = step.step if number is None else f"{step.step}-{number}"
        told = f"{name}: waiting for a worker of the server zone, flow run of {self.deployment}"
        get_run_logger().info(told)
        try:
            with waiting(told):
                ended: FlowRun = run_deployment(  # type: ignore[assignment]  # a coroutine only in an event loop
                    self.deployment,
                    parameters={"order": order.model_dump(mode="json")},
                    flow_run_name=name,
                    poll_interval=1,
                )
                ended = when_ended(ended)
        except ObjectNotFound as error:
            if is_of_flow_run(error):
                raise _incomplete(name, "it deleted on the Prefect server") from None
            raise InputError(
                f"UNDERSTUDY_ZONE=client: expected the deployment {self.deployment} on the Prefect server, found none; "
                "make it and its work pool (`understudy deploy`) and start a worker with UNDERSTUDY_ZONE=server, or "
                "unset UNDERSTUDY_ZONE to run both zones here"
            ) from None
        return message_of(ended, name)


def message_of(ended: FlowRun, step: str) -> str:
    """What a flow run of the server zone said when it completed.

    Raises:
        UnderstudyError: it did not complete. Its answer was for this run alone, so this run is the one to repeat.
    """
    state = ended.state
    if state is not None and state.is_completed() and state.message:
        return state.message
    found = "no state" if state is None else f"{state.name}: {(state.message or '').removesuffix(RETRY)}"
    raise _incomplete(step, found, run=f"flow run {ended.id}")


def _incomplete(step: str, found: str, *, run: str = "the flow run") -> UnderstudyError:
    return UnderstudyError(
        f"{step}: expected {run} of the server zone to complete, found {found}; fix it there and run the same command "
        "here again, which starts the step anew and goes on without a further charge; to retry the flow run of the "
        "server zone would not reach this run"
    )


def ordered(step: Step) -> Signed:
    """A step as the client zone signs it."""
    content = step.model_dump_json()
    return Signed(content=content, signature=own_key("client").sign(content.encode(), purpose=_ORDER))


def answered(made: ArtifactRef, order: Signed) -> Signed:
    """What a step made, signed by the server zone together with the order."""
    content = made.model_dump_json()
    return Signed(content=content, signature=own_key("server").sign(_bound(content, order), purpose=_ANSWER))


def verified(message: str, order: Signed) -> str:
    """The reference in a server's message, as JSON, if the server zone signed it as the answer to this order.

    Raises:
        ZoneError: it did not.
    """
    try:
        answer = Signed.model_validate_json(message)
    except ValidationError:
        raise ZoneError(f"expected a signed answer of the server zone, found {message[:80]!r}; {_FIX}") from None
    public_key("server").verify(answer.signature, _bound(answer.content, order), purpose=_ANSWER)
    return answer.content


def _bound(content: str, order: Signed) -> bytes:
    return canonical_json([content, order.content])


def came_back(message: str, step: Step) -> ArtifactRef:
    """The reference in a server's answer.

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
