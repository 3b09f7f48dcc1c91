"""Gradient matching as the framework sees it: what it charges, says about itself, and expects to need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from understudy.errors import InputError
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.queries import (
    LENGTH,
    TARGET,
    calibrations,
    queries_of,
    schedule_of,
    signal_to_noise_bound,
    signal_to_noise_warning,
)
from understudy.methods.method import LABELLED_EXAMPLES, Charging, Description, Method, Preparation, Promise, Reporting
from understudy.privacy.queries import Queries
from understudy.privacy.statement import FLOATING_POINT, TRAINING_FLOATS, Access, mechanism_facts
from understudy.settings import settings

if TYPE_CHECKING:
    from understudy.models.loading import LoadedModel


def charged_settings(config: GradientMatchingConfig) -> GradientMatchingConfig:
    """The settings that private rows meet: matching, projection and filters at their defaults (ADR 0005).

    Asking for more texts, more rounds, other filters or other words is post-processing of the same target and charges
    nothing, and neither does the size of a sketch where none is made.
    """
    plain = GradientMatchingConfig(profile=config.profile)
    unread = {} if config.target.kind == "sketch" else {"sketch_dimension": plain.target.sketch_dimension}
    # A public length shapes only the synthetic texts; `as_in_data` is a query of its own.
    length = config.length if config.length == "as_in_data" else min(int(plain.length), config.max_length)
    return config.model_copy(
        update={
            "matching": plain.matching.model_copy(update={"gradient": config.matching.gradient}),
            "target": config.target.model_copy(update=unread),
            "projection": plain.projection,
            "filter": plain.filter,
            "samples": plain.samples,
            "about": plain.about,
            "length": length,
            "length_share": config.length_share if length == "as_in_data" else plain.length_share,
        }
    )


def check_model(config: GradientMatchingConfig, label_names: Sequence[str]) -> LoadedModel:
    """Load the base model and refuse, before anything is charged, what would fail later.

    Raises:
        InputError: the machine's memory is too small; the model is unknown, or has no plain linear head or, where it is
            to be matched, no gradient of all layers; two labels share a verbaliser token; words, examples or the label
            check are for unknown labels; the context is too short for the padded length, with its template, its
            instruction or the label check's examples; or fewer tokens are allowed than k.
    """
    from understudy.methods.gradient_matching.filters import checked_labels, exemplars_of, few_shot_labels
    from understudy.methods.gradient_matching.full_gradient import check_full_gradient
    from understudy.methods.gradient_matching.memory import check_fits
    from understudy.methods.gradient_matching.optimise import check_matching
    from understudy.methods.gradient_matching.release import check_context
    from understudy.methods.gradient_matching.targets import check_head
    from understudy.methods.gradient_matching.verbalizer import build_verbalizer
    from understudy.models.loading import load_base

    check_fits(config, label_names)  # before the model is loaded, which may be too large itself
    loaded = load_base(config)
    verbalizer = build_verbalizer(loaded.tokenizer, label_names, config.verbalizer)
    check_head(loaded.model)
    check_context(loaded, verbalizer, config)
    check_matching(loaded, label_names, config=config)
    if config.matching.gradient == "full":
        check_full_gradient(loaded, verbalizer, config)
    _check_prompted(loaded, label_names, config)
    if checked_labels(config.filter, label_names) or config.filter.examples:
        exemplars = exemplars_of(config.filter, label_names)
        # No text to label: what is left of the call is its checks.
        few_shot_labels([], base=loaded, verbalizer=verbalizer, exemplars=exemplars, max_length=config.max_length)
    return loaded


def _check_prompted(base: LoadedModel, label_names: Sequence[str], config: GradientMatchingConfig) -> None:
    """Refuse an instruction after which the baseline's texts, as long as real ones may be, do not fit."""
    from understudy.methods.gradient_matching.optimise import instruction_of, instruction_prompts

    width = instruction_prompts(base.tokenizer, label_names, instruction_of(config))[0].shape[1]
    context = getattr(base.model.config, "max_position_embeddings", None)
    if context is not None and width + config.max_length > context:
        raise InputError(
            f"max_length={config.max_length}: texts of that length are also drawn by prompting, after an instruction "
            f"of {width} tokens, and the model's context holds {context}; expected at most {context - width}, lower "
            "max_length or shorten projection.instruction"
        )


def resolve(
    config: GradientMatchingConfig, _n: int, label_names: Sequence[str] = (), _epsilon: float = math.inf
) -> GradientMatchingConfig:
    """Words, template and label check in place of `auto`, chosen on texts that the public model wrote.

    They are part of the charge, so they are found on the CPU, wherever the run computes.

    Raises:
        InputError: fewer than two labels, words that do not fit them, or too little memory.
    """
    from understudy.methods.gradient_matching.calibration import resolve_for
    from understudy.methods.gradient_matching.memory import check_fits
    from understudy.models.loading import load_base

    def base() -> LoadedModel:
        check_fits(config, label_names)
        return load_base(config)

    return resolve_for(config, label_names, base=base, kept_in=settings().home / "calibrations")


def queries(config: GradientMatchingConfig, *, n: int, epsilon: float, delta: float) -> Queries:
    """`queries_of`, computed once per process: PLD takes seconds at a large epsilon."""
    return _queries(charged_settings(config).model_dump_json(), n, epsilon, delta)


@lru_cache(maxsize=32)
def _queries(charged: str, n: int, epsilon: float, delta: float) -> Queries:
    return queries_of(GradientMatchingConfig.model_validate_json(charged), n=n, epsilon=epsilon, delta=delta)


def signal_to_noise(config: GradientMatchingConfig, promise: Promise) -> float:
    """`signal_to_noise_bound` of the run; infinity without noise."""
    schedule, (dimension, _) = schedule_of(promise.queries), _dimensions(config, promise.label_names)
    return signal_to_noise_bound(noise_multiplier=schedule.noise_multiplier, n=schedule.n, dimension=dimension)


def describe(config: GradientMatchingConfig, promise: Promise) -> Description:
    """What the run says about itself; public values only."""
    from understudy.methods.gradient_matching.filters import checked_labels
    from understudy.methods.gradient_matching.verbalizer import template_of

    schedule, label_names = schedule_of(promise.queries), promise.label_names
    dimension, width = _dimensions(config, label_names)
    bound = signal_to_noise(config, promise)
    warning = signal_to_noise_warning(schedule, dimension=dimension, directions=width)
    charged_length = schedule.length_noise_multiplier is not None
    declared_words = dict(zip(label_names, words_of(config, label_names), strict=True))
    return Description(
        mechanisms=tuple(mechanism_facts(query, asks=_ASKS[query.name]) for query in promise.queries),
        contributions=(
            "One example is one row of the table. The gradient of its label's loss is clipped to the stated norm and "
            "added to the sum of its own label only, so that it adds at most that much to all sums together."
            + (" It counts once, with its length, in the noised length." if charged_length else "")
        ),
        released=("any number of texts matched to it", *(("the noised mean length",) if charged_length else ())),
        accesses=(Access(task="release-target", reads="the rows", through="the mechanisms' Gaussian sums"),),
        choices=f"Settings and defaults were fixed before the run; {_EMITTED[config.matching.emit]}, and no private "
        "score chose any.",
        declared_public={
            "tokens read of a text": config.max_length,
            "verbaliser": declared_words,
            "template": template_of(config.verbalizer),
            "what prompts say of the rows": config.about,
            "length of a synthetic text": "released with noise" if charged_length else config.length,
        },
        dry_run={
            "words": ", ".join(f"{name}: {word}" for name, word in declared_words.items()),
            "template": template_of(config.verbalizer),
            "label_check": ", ".join(checked_labels(config.filter, label_names)) or "off",
            "target": config.target.kind if config.matching.gradient == "closed_form" else "all parameters",
            "target_dimension": dimension,
            "signal_to_noise_bound": "infinite" if math.isinf(bound) else float(f"{bound:.3g}"),
            "calibrations": [
                f"{c.formula}: sigma {c.sigma_sum:.4g} on the sum, {c.sigma_mean:.3g} on the mean"
                for c in calibrations(config, n=promise.n, epsilon=promise.epsilon, delta=promise.delta)
            ],
        },
        warnings=() if warning is None else (warning,),
        evaluations=(Access.measuring("evaluate"), Access.measuring("evaluate-matching")),
        floating_point=FLOATING_POINT + (TRAINING_FLOATS if config.matching.gradient == "full" else ""),
    )


_EMITTED = {
    "nearest": "of all rounds the text nearest to the released target is used",
    "last": "the last round's text is used",
}
_ASKS = {
    TARGET: "per label, sum of per-example gradients of the label's loss",
    LENGTH: "summed length of the texts as a share of the longest, and their number",
}


def words_of(config: GradientMatchingConfig, label_names: Sequence[str]) -> tuple[str, ...]:
    """The word that stands for each label."""
    words = config.verbalizer.words
    return tuple(words.get(name, name) if isinstance(words, dict) else name for name in label_names)


def report_facts(config: GradientMatchingConfig) -> dict[str, str]:
    """What the report names of the settings."""
    matching = config.matching
    return {
        "target": config.target.kind if matching.gradient == "closed_form" else "all parameters",
        "matching": f"{matching.rounds} rounds of {matching.inner_steps} steps, penalty {matching.penalty:g}",
        "projection": config.projection.kind,
    }


def estimate(config: GradientMatchingConfig, promise: Promise) -> dict[str, Any]:
    """Expected time and memory, from made-up rows of the padded length and a short matching of one batch."""
    from understudy.methods.gradient_matching.estimate import expected_cost

    return expected_cost(config, promise, charged=charged_settings(config))


def _dimensions(config: GradientMatchingConfig, label_names: Sequence[str]) -> tuple[int, int]:
    """(numbers in one label's target, width of the head's input)."""
    from understudy.methods.gradient_matching.release import target_dimension
    from understudy.methods.gradient_matching.targets import target_space
    from understudy.methods.gradient_matching.verbalizer import build_verbalizer
    from understudy.models.loading import load_base

    loaded = load_base(config)
    verbalizer = build_verbalizer(loaded.tokenizer, label_names, config.verbalizer)
    space = target_space(loaded.model, verbalizer, config.target, public_seed=config.public_seed)
    head: Any = loaded.model.get_output_embeddings()
    return target_dimension(loaded.model, space, config), int(head.weight.shape[1])


METHOD = Method(
    config=GradientMatchingConfig,
    charge=Charging(lambda _: LABELLED_EXAMPLES, settings=charged_settings, queries=queries, releases="target"),
    preparation=Preparation(check_model, describe=describe, estimate=estimate, resolve=resolve),
    report=Reporting(report_facts, sections="understudy.methods.gradient_matching.report:sections"),
    flow="understudy.flows.gradient_matching:gradient_matching",
    left_over="understudy.methods.gradient_matching.left_over:left_over",
)
