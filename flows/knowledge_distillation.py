"""Knowledge distillation as a flow: a DP adapter to the server, a professional model's pairs and a better adapter back.

pairs -> charge -> train -> send -+-> write pairs -+-> improve -> publish -> finalize
                                  +----------------+
    write pairs of the base model -> tune it on them -+-> evaluate-pairs -> export

`write pairs`, `improve` and `tune base` belong to the server zone: `server_side` runs them there. What is written and
tuned without the adapter is the control: the method without its private half.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import Field, TypeAdapter

from understudy.artifacts.access import ArtifactRef
from understudy.artifacts.zone_keys import public_key
from understudy.flows.paid_run import paid_run, working_zone
from understudy.flows.run_name import name_of_deployed
from understudy.flows.server_side import ServerSide, Signed
from understudy.frozen import Frozen
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.method import with_professional
from understudy.runs.exported import Exported
from understudy.runs.request import RunRequest
from understudy.tasks.charging import finalize
from understudy.tasks.engine.runtime import Zone, code_digest
from understudy.tasks.evaluation import MeasuredTables
from understudy.tasks.knowledge_distillation import (
    EvaluationRefs,
    evaluate_pairs,
    improve,
    publish,
    send,
    train,
    tune_base,
    write_pairs,
)

METHOD = "knowledge-distillation"


class WritePairs(Frozen):
    """Write synthetic pairs with the client's adapter, or without one with the base model."""

    makes: ClassVar[tuple[str, ...]] = ("synthetic", "prompt-only")
    step: Literal["write-pairs"] = "write-pairs"
    bundle: ArtifactRef | None
    charge: str
    config: KnowledgeDistillationConfig

    def take(self, zone: Zone) -> ArtifactRef:
        """Run its task. The client zone does not know the professional model's files: another one is another task."""
        return write_pairs[zone](self.bundle, self.charge, zone, with_professional(self.config))


class Improve(Frozen):
    """Tune the adapter on the pairs and seal it for the client zone."""

    makes: ClassVar[tuple[str, ...]] = ("bundle",)
    step: Literal["improve"] = "improve"
    bundle: ArtifactRef
    pairs: ArtifactRef
    charge: str
    receiver: str
    config: KnowledgeDistillationConfig

    def take(self, zone: Zone) -> ArtifactRef:
        """Run its task."""
        return improve[zone](self.bundle, self.pairs, self.charge, zone, self.receiver, self.config)


class TuneBase(Frozen):
    """Tune the base model on pairs that no private pair had a part in."""

    makes: ClassVar[tuple[str, ...]] = ("control-adapter",)
    step: Literal["tune-base"] = "tune-base"
    pairs: ArtifactRef
    config: KnowledgeDistillationConfig

    def take(self, zone: Zone) -> ArtifactRef:
        """Run its task."""
        return tune_base[zone](self.pairs, self.config)


Step = Annotated[WritePairs | Improve | TuneBase, Field(discriminator="step")]


def check_step(step: Step) -> None:
    """Refuse a step that this machine's memory cannot hold.

    Raises:
        InputError: with what to lower.
    """
    from understudy.methods.knowledge_distillation.peaks import check_fits

    check_fits(step.config)


SERVER: ServerSide[Step] = ServerSide(f"{METHOD}-server", TypeAdapter(Step), check_step)


@flow(name=METHOD, flow_run_name=name_of_deployed, persist_result=True, result_serializer="json")
def knowledge_distillation(request: RunRequest) -> Exported:
    """Private pairs in, synthetic pairs and the model tuned on them out, with their statement."""
    zone = working_zone(request)
    with paid_run(request, KnowledgeDistillationConfig, code_digest(train.fn)) as run:
        (rows, test_rows), config, charge = run.rows, run.config.unmeasured, run.receipt.charge_id
        adapter = train(rows, run.receipt, run.charged)
        bundle = send(adapter, charge, public_key(zone).text, run.charged)
        synthetic = SERVER.in_zone(zone, WritePairs(bundle=bundle, charge=charge, config=config))
        back = Improve(bundle=bundle, pairs=synthetic, charge=charge, receiver=public_key("client").text, config=config)
        improved = SERVER.in_zone(zone, back)
        model = finalize(run.receipt, publish(improved, synthetic, charge, zone, config))
        public = SERVER.in_zone(zone, WritePairs(bundle=None, charge="", config=config))
        control = SERVER.in_zone(zone, TuneBase(pairs=public, config=config))
        tables = MeasuredTables(synthetic=synthetic, prompt_only=public, train=rows, test=test_rows)
        inputs = EvaluationRefs(tables=tables, adapter=adapter, bundle=improved, control=control)
        metrics = evaluate_pairs(inputs, charge, zone, run.config, request.profile)
        return run.export(model, synthetic, metrics)


@flow(name=SERVER.name, persist_result=False, result_serializer="json")
def server_side(order: Signed) -> State[None]:
    """One step of the server zone; its last state's message is the signed reference to what it made."""
    return SERVER.answer(order)
