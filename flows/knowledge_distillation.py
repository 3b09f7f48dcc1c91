"""Knowledge distillation as a flow: a DP adapter to the server, a professional model's pairs and a better adapter back.

pairs -> charge -> train -> send -+-> write pairs -+-> improve -> publish -> settle
                                  +----------------+
                    write pairs of the base model -+-> evaluate -> deliver

`write pairs` and `improve` belong to the server zone: `server_side` runs them there.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from understudy.artifacts.access import ArtifactRef
from understudy.artifacts.zone_keys import public_key
from understudy.flows.paid_run import paid_run
from understudy.flows.server_side import ServerSide, Signed
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.runs.exported import Exported
from understudy.runs.request import RunRequest
from understudy.tasks.charging import finalize
from understudy.tasks.engine.runtime import Zone, code_digest
from understudy.tasks.knowledge_distillation import (
    EvaluationRefs,
    evaluate_pairs,
    improve,
    publish,
    send,
    train,
    write_pairs,
)

METHOD = "knowledge-distillation"
_FROZEN = ConfigDict(frozen=True, extra="forbid")


class WritePairs(BaseModel):
    """Write synthetic pairs with the client's adapter, or without one with the base model."""

    model_config = _FROZEN

    makes: ClassVar[tuple[str, ...]] = ("synthetic", "prompt-only")
    step: Literal["write-pairs"] = "write-pairs"
    bundle: ArtifactRef | None
    charge: str
    config: KnowledgeDistillationConfig


class Improve(BaseModel):
    """Tune the adapter on the pairs and seal it for the client zone."""

    model_config = _FROZEN

    makes: ClassVar[tuple[str, ...]] = ("bundle",)
    step: Literal["improve"] = "improve"
    bundle: ArtifactRef
    pairs: ArtifactRef
    charge: str
    receiver: str
    config: KnowledgeDistillationConfig


Step = Annotated[WritePairs | Improve, Field(discriminator="step")]


def take(step: Step, zone: Zone) -> ArtifactRef:
    """Run the task of a step in this process."""
    match step:
        case WritePairs():
            return write_pairs[zone](step.bundle, step.charge, zone, step.config)
        case Improve():
            return improve[zone](step.bundle, step.pairs, step.charge, zone, step.receiver, step.config)


SERVER: ServerSide[Step] = ServerSide(f"{METHOD}-server", TypeAdapter(Step), lambda step, zone: take(step, zone))


@flow(name=SERVER.name)
def server_side(order: Signed) -> State[None]:
    """One step of the server zone; its last state's message is the signed reference to what it made."""
    return SERVER.answer(order)


@flow(name=METHOD, persist_result=True)
def knowledge_distillation(request: RunRequest) -> Exported:
    """Private pairs in, synthetic pairs and the model tuned on them out, with their statement."""
    zone: Zone = "server" if math.isfinite(request.epsilon or math.inf) else "client"
    with paid_run(request, KnowledgeDistillationConfig, code_digest(train.fn)) as run:
        (rows, test_rows), config, charge = run.rows, run.config, run.receipt.charge_id
        adapter = train(rows, run.receipt, run.charged)
        bundle = send(adapter, charge, public_key(zone).text, run.charged)
        synthetic = SERVER.in_zone(zone, WritePairs(bundle=bundle, charge=charge, config=config))
        back = Improve(bundle=bundle, pairs=synthetic, charge=charge, receiver=public_key("client").text, config=config)
        improved = SERVER.in_zone(zone, back)
        model = finalize(run.receipt, publish(improved, synthetic, charge, zone, config))
        public = SERVER.in_zone(zone, WritePairs(bundle=None, charge="", config=config))
        inputs = EvaluationRefs(
            synthetic=synthetic, prompt_only=public, train=rows, test=test_rows, adapter=adapter, bundle=improved
        )
        metrics = evaluate_pairs(inputs, charge, zone, config, request.profile)
        return run.export(model, synthetic, metrics)
