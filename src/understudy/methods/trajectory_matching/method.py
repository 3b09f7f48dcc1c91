"""Trajectory matching as the framework sees it: what it charges, says about itself, and expects to need.

Without an epsilon the experts read the rows past every mechanism: nothing is charged, and real rows carry the result.
With one they are trained by DP-SGD, and everything after them is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from understudy.errors import InputError
from understudy.methods.method import INSTRUCTION_PAIRS, Charging, Description, Method, Preparation, Promise, Reporting
from understudy.methods.trajectory_matching.config import PUBLIC_CARRIERS, TrajectoryMatchingConfig, promised
from understudy.methods.trajectory_matching.queries import queries_of
from understudy.privacy.naming import named_table, without_place
from understudy.privacy.queries import Queries
from understudy.privacy.statement import FLOATING_POINT, TRAINING_FLOATS, Access, PretrainedModel, mechanism_facts
from understudy.settings import settings

if TYPE_CHECKING:
    from understudy.models.loading import LoadedModel


_MEASURED = Access.measuring("evaluate-tuning", reads="the held-out rows, and of the rows how many were cut")


def by_epsilon(config: TrajectoryMatchingConfig, has_epsilon: bool) -> TrajectoryMatchingConfig:
    """Private experts and public carriers exactly with an epsilon."""
    return promised(config, has_epsilon=has_epsilon)


def charged_settings(config: TrajectoryMatchingConfig) -> TrajectoryMatchingConfig:
    """The settings that the experts meet; everything else can be changed without training them again (ADR 0005)."""
    plain = TrajectoryMatchingConfig(profile=config.profile)
    return config.model_copy(
        update={
            "samples": None,
            "about": plain.about,
            "carriers": plain.carriers,
            "carriers_digest": plain.carriers_digest,
            "carrier": "written" if config.experts.private else "selected",
            "selection": plain.selection,
            "distil": plain.distil.model_copy(update={"max_start": 1, "span": 1}),
            "tuning": plain.tuning,
            "evaluation": plain.evaluation,
        }
    )


def check_model(config: TrajectoryMatchingConfig, label_names: Sequence[str]) -> LoadedModel:
    """Load the base model and the public files, and refuse before anything is charged what would fail later.

    Raises:
        InputError: the machine's memory is too small, the model is unknown, its context is too short, a layer gives no
            per-example gradients, a public file cannot be read, or more rows are wanted than it has.
    """
    from understudy.methods.trajectory_matching.preparation import check_model as check  # torch, only where needed

    return check(config)


def public_tables(config: TrajectoryMatchingConfig) -> dict[str, str]:
    """The rows that carry pseudo tokens, those that the chosen ones resemble, and those that stand before questions."""
    carriers = {} if config.carrier == "selected" else {"carriers": config.carriers}
    target, shots = config.selection.target, config.evaluation.shots_from
    resembled = {} if target is None else {"selection.target": target}
    return carriers | resembled | ({"evaluation.shots_from": shots} if shots else {})


def resolve(
    config: TrajectoryMatchingConfig, n: int, label_names: Sequence[str] = (), _epsilon: float = math.inf
) -> TrajectoryMatchingConfig:
    """A number in place of `distil.micro_batch=auto`, by the model's files, and the digests of what is named."""
    from understudy.evaluation.answers.digests import with_digests
    from understudy.methods.trajectory_matching.memory import resolve as numbers  # reads the model's folder

    tuning, selection = config.tuning, config.selection
    if tuning.transfer is not None and not tuning.transfer_digest:
        digest = _digest_of(tuning.transfer, setting="tuning.transfer")
        tuning = tuning.model_copy(update={"transfer_digest": digest})
    if selection.model and not selection.model_digest:
        digest = _digest_of(selection.model, setting="selection.model")
        selection = selection.model_copy(update={"model_digest": digest})
    found = {"tuning": tuning, "selection": selection, "evaluation": with_digests(config.evaluation)}
    return numbers(_with_pairs(config.model_copy(update=found)), n, label_names)


def _with_pairs(config: TrajectoryMatchingConfig) -> TrajectoryMatchingConfig:
    """The settings with the digests of the public pairs that the run will read, hours after they were looked at.

    Raises:
        InputError: naming the setting; a table cannot be read.
    """
    from understudy.data.public_tables import pairs_digest

    selection, carriers = config.selection, config.carriers_digest
    if selection.target is not None and not selection.target_digest:
        digest = pairs_digest(selection.target, setting="selection.target")
        selection = selection.model_copy(update={"target_digest": digest})
    if config.carrier != "selected" and not carriers:
        carriers = pairs_digest(config.carriers, setting="carriers")
    return config.model_copy(update={"selection": selection, "carriers_digest": carriers})


def _digest_of(model: str, *, setting: str) -> str:
    """Digest of the files of another model.

    Raises:
        InputError: naming the setting; there is no such model on this machine.
    """
    from understudy.models.folders import folder_digest, model_folder

    try:
        return folder_digest(model_folder(model))
    except InputError as error:
        raise InputError(f"{setting}={model}: {error}") from None


def queries(config: TrajectoryMatchingConfig, *, n: int, epsilon: float, delta: float) -> Queries:
    """`queries_of`, with earlier calibrations of the same public values reused."""
    return queries_of(config, n=n, epsilon=epsilon, delta=delta, cache=settings().home / "calibrations")


def describe(config: TrajectoryMatchingConfig, promise: Promise) -> Description:
    """What the run says about itself; public values only."""
    experts, distil = config.experts, config.distil
    sizes = {
        "experts": experts.count,
        "epochs": experts.epochs,
        "pseudo_tokens": distil.tokens,
        "distillation_steps": distil.steps,
        "inner_steps": distil.inner_steps,
        "carrier": config.carrier,
    }
    public: dict[str, Any] = {"padded length in tokens": config.max_length}
    if config.carrier != "selected":
        public[PUBLIC_CARRIERS] = f"{named_table(config.carriers, digest=config.carriers_digest)}, {config.carrier}"
    if (target := config.selection.target) is not None:
        public["rows that the chosen ones resemble"] = named_table(target, digest=config.selection.target_digest)
    if not experts.private:
        return Description(
            mechanisms=(),
            contributions="Nothing bounds the contribution of a row.",
            released=("nothing, unless --share-real-rows is given: then real rows with learned pseudo tokens",),
            accesses=(
                Access(task="train-expert", reads="the rows", through="none: no noise is added"),
                Access(task="select-rows", reads="the rows", through="none: real rows are chosen"),
            ),
            choices="Settings and defaults were fixed before the run; the last weights are used.",
            declared_public=public,
            pretrained_models=_selector(config),
            dry_run=sizes,
            warnings=(
                "this run has no epsilon: real rows carry the result, and nothing is promised; give --epsilon for "
                "experts with noise and rows of the public model",
            )
            if config.carrier == "selected"
            else ("this run has no epsilon: the result depends on real rows, and nothing is promised",),
            evaluations=(_MEASURED,),
        )
    part = _part_of_rows(config, promise)
    return Description(
        mechanisms=tuple(mechanism_facts(query, asks=_ASKS) for query in promise.queries),
        contributions="One example is one pair. Its gradient by an expert's adapters is clipped to the stated norm and "
        "added once to each step's sum in which it takes part; all steps of all experts are composed.",
        released=("the experts' adapters after every epoch", "public rows behind pseudo tokens that follow from them"),
        accesses=(
            Access(task="train-expert", reads="the rows", through="the mechanisms' Poisson sampling and Gaussian sums"),
        ),
        choices="Settings and defaults were fixed before the run; no snapshot was chosen, all are used.",
        declared_public=public,
        pretrained_models=_selector(config),
        dry_run=sizes | ({} if part is None else {"part_of_rows_in_an_expert": float(f"{part:.2g}")}),
        warnings=() if part is None or part >= _TOO_LITTLE else (_drowned(part, promise.n),),
        evaluations=(_MEASURED,),
        floating_point=FLOATING_POINT + TRAINING_FLOATS,
    )


def _selector(config: TrajectoryMatchingConfig) -> tuple[PretrainedModel, ...]:
    """The model whose gradients chose the released rows, where it is not the run's."""
    chosen_by = config.selection
    if not chosen_by.model:
        return ()
    role = "selector, whose gradients choose the rows that carry pseudo tokens"
    return (PretrainedModel(role=role, name=chosen_by.model, digest=chosen_by.model_digest),)


def _part_of_rows(config: TrajectoryMatchingConfig, promise: Promise) -> float | None:
    """`part_of_rows` of the run; None for a model whose files do not say how large its adapters are."""
    from understudy.methods.trajectory_matching.queries import part_of_rows
    from understudy.models.shape import model_shape

    shape = model_shape(config.model)
    if shape is None:
        return None
    return part_of_rows(config, promise.queries, dimension=shape.adapter_parameters(config.experts.lora_rank))


def _drowned(part: float, n: int) -> str:
    return (
        f"at most about {part:.1%} of the squared length of an expert's way can come from the rows, the rest is noise; "
        "a student hardly follows that, and pseudo tokens learned from such an expert did harm where it was tried. Use "
        f"more than {n} rows, a larger epsilon or a smaller experts.lora_rank, or choose conditional-generation"
    )


# Below this the experts are mostly noise. With 1.4 % a student's matching loss stayed at 0.998 (docs/results).
_TOO_LITTLE = 0.2

_ASKS = "sum of per-example gradients of the response's loss by an expert's adapters"


def report_facts(config: TrajectoryMatchingConfig) -> dict[str, str]:
    """What the report names of the settings."""
    distil = config.distil
    return {
        "experts": f"{config.experts.count}, {config.experts.epochs} epochs",
        "carrier": f"{config.carrier}, chosen by {config.selection.strategy}"
        + (f" with {without_place(config.selection.model)}" if config.selection.model else ""),
        "pseudo tokens": f"{distil.tokens} a row, {distil.steps} steps of {distil.inner_steps} inner steps",
    }


def estimate(config: TrajectoryMatchingConfig, promise: Promise) -> dict[str, Any]:
    """Expected time and memory, from single steps on made-up rows of the run's public shape."""
    from understudy.methods.trajectory_matching.preparation import expected_cost

    return expected_cost(config, promise)


METHOD = Method(
    config=TrajectoryMatchingConfig,
    charge=Charging(
        lambda _: INSTRUCTION_PAIRS,
        settings=charged_settings,
        queries=queries,
        releases="trajectories",
        by_epsilon=by_epsilon,
    ),
    preparation=Preparation(
        check_model, describe=describe, estimate=estimate, resolve=resolve, public_tables=public_tables
    ),
    report=Reporting(report_facts, sections="understudy.methods.trajectory_matching.report:sections"),
    flow="understudy.flows.trajectory_matching:trajectory_matching",
    row_losses="understudy.methods.trajectory_matching.row_losses:row_losses",
)
