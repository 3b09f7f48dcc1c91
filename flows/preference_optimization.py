"""Preference optimisation as a flow: clients' noisy scores train a generator, round by round.

rows -> embed ---------------------+
          charge -> [ propose -> score -> prefer ] x T -> publish -> finalize
                                                      +-> write texts -> evaluate-rounds -> export

`propose`, `prefer`, `publish` and `write texts` belong to the server zone: `server_side` runs them there.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import Field, TypeAdapter

from understudy.artifacts.access import ArtifactRef
from understudy.flows.paid_run import paid_run, working_zone
from understudy.flows.run_name import name_of_deployed
from understudy.flows.server_side import ServerSide, Signed
from understudy.frozen import Frozen
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.runs.exported import Exported
from understudy.runs.request import RunRequest
from understudy.tasks.charging import finalize
from understudy.tasks.engine.runtime import Zone
from understudy.tasks.evaluation import MeasuredTables
from understudy.tasks.preference_optimization import (
    EvaluationRefs,
    charged_code,
    embed_clients,
    evaluate_rounds,
    prefer,
    propose,
    publish,
    score,
    write_texts,
)

METHOD = "preference-optimization"


class Propose(Frozen):
    """Write a round's candidates."""

    step: Literal["propose"] = "propose"
    adapter: ArtifactRef | None
    config: PreferenceOptimizationConfig
    label_names: tuple[str, ...]
    number: int
    makes: ClassVar[tuple[str, ...]] = ("candidates",)

    def take(self, zone: Zone) -> ArtifactRef:
        """Run its task."""
        return propose[zone](self.adapter, self.config, self.label_names, self.number)


class Prefer(Frozen):
    """Train on a round's noisy scores."""

    step: Literal["prefer"] = "prefer"
    candidates: ArtifactRef
    scores: ArtifactRef
    adapter: ArtifactRef | None
    config: PreferenceOptimizationConfig
    number: int
    makes: ClassVar[tuple[str, ...]] = ("adapter",)

    def take(self, zone: Zone) -> ArtifactRef:
        """Run its task."""
        return prefer[zone](self.candidates, self.scores, self.adapter, self.config, self.number)


class Publish(Frozen):
    """Make the last policy a model."""

    step: Literal["publish"] = "publish"
    adapter: ArtifactRef
    config: PreferenceOptimizationConfig
    makes: ClassVar[tuple[str, ...]] = ("model",)

    def take(self, zone: Zone) -> ArtifactRef:
        """Run its task."""
        return publish[zone](self.adapter, self.config)


class WriteTexts(Frozen):
    """Write the synthetic texts, or without an adapter the public model's."""

    step: Literal["write-texts"] = "write-texts"
    adapter: ArtifactRef | None
    config: PreferenceOptimizationConfig
    label_names: tuple[str, ...]
    makes: ClassVar[tuple[str, ...]] = ("synthetic", "prompt-only")

    def take(self, zone: Zone) -> ArtifactRef:
        """Run its task."""
        return write_texts[zone](self.adapter, self.config, self.label_names)


Step = Annotated[Propose | Prefer | Publish | WriteTexts, Field(discriminator="step")]


def check_step(step: Step) -> None:
    """Refuse a step that this machine's memory cannot hold.

    Raises:
        InputError: with what to lower.
    """
    from understudy.methods.preference_optimization.peaks import check_fits

    check_fits(step.config)


SERVER: ServerSide[Step] = ServerSide(f"{METHOD}-server", TypeAdapter(Step), check_step)


@flow(name=METHOD, flow_run_name=name_of_deployed, persist_result=True, result_serializer="json")
def preference_optimization(request: RunRequest) -> Exported:
    """Texts of private clients in, synthetic texts and the model that wrote them out, with their statement."""
    zone = working_zone(request)
    with paid_run(request, PreferenceOptimizationConfig, *charged_code(zone)) as run:
        config, fixed, names, (rows, test_rows) = run.config, run.charged, run.plan.label_names, run.rows
        pool = embed_clients(rows, fixed, names, run.plan.n)
        adapters: list[ArtifactRef] = []
        proposed: list[ArtifactRef] = []
        scored: list[ArtifactRef] = []
        for number in range(config.rounds):
            last = adapters[-1] if adapters else None
            proposed.append(SERVER.in_zone(zone, Propose(adapter=last, config=fixed, label_names=names, number=number)))
            scored.append(score(pool, proposed[-1], run.receipt, fixed, number))
            learnt = Prefer(candidates=proposed[-1], scores=scored[-1], adapter=last, config=fixed, number=number)
            adapters.append(SERVER.in_zone(zone, learnt))
        model = finalize(run.receipt, SERVER.in_zone(zone, Publish(adapter=adapters[-1], config=fixed)))
        wanted = fixed.model_copy(update={"samples": config.samples})
        synthetic, public = (
            SERVER.in_zone(zone, WriteTexts(adapter=adapter, config=wanted, label_names=names))
            for adapter in (adapters[-1], None)
        )
        tables = MeasuredTables(synthetic=synthetic, prompt_only=public, train=rows, test=test_rows)
        rounds = {"candidates": tuple(proposed), "scores": tuple(scored), "adapters": tuple(adapters)}
        inputs = EvaluationRefs(tables=tables, pool=pool, **rounds)
        metrics = evaluate_rounds(inputs, fixed.model_copy(update={"costs": config.costs}), request.profile)
        return run.export(model, synthetic, metrics)


@flow(name=SERVER.name, persist_result=False, result_serializer="json")
def server_side(order: Signed) -> State[None]:
    """One step of the server zone; its last state's message is the signed reference to what it made."""
    return SERVER.answer(order)
