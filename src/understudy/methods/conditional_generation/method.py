"""Conditional generation as the framework sees it: what it charges, says about itself, and expects to need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from understudy.methods.conditional_generation.config import ConditionalGenerationConfig, SelectionConfig
from understudy.methods.conditional_generation.queries import (
    CLASS_MEANS,
    TOPICS,
    QuerySchedule,
    queries_of,
    schedule_of,
)
from understudy.methods.conditional_generation.topics_config import TopicsConfig
from understudy.methods.method import LABELLED_EXAMPLES, Charging, Description, Method, Preparation, Promise, Reporting
from understudy.privacy.queries import Queries, Query
from understudy.privacy.statement import FLOATING_POINT, TRAINING_FLOATS, Access, PretrainedModel, mechanism_facts
from understudy.settings import settings

if TYPE_CHECKING:
    from understudy.models.loading import LoadedModel


def charged_settings(config: ConditionalGenerationConfig) -> ConditionalGenerationConfig:
    """The settings that private rows meet: generation, filtering and sizes at their defaults (ADR 0005).

    The training task receives this object and nothing more, so asking for more samples or stronger steering
    charges nothing. What the variant does not read is at its default too: another value would be paid for and
    change nothing.
    """
    plain = ConditionalGenerationConfig(profile=config.profile)
    looks = config.class_sizes == "as_in_data"
    means = config.selects and config.trains
    return config.model_copy(
        update={
            **_trained_with(config, plain),
            "generate": plain.generate,
            "samples": plain.samples,
            "class_sizes": "as_in_data" if looks else "balanced",
            "class_sizes_share": config.class_sizes_share if looks else plain.class_sizes_share,
            # How many are drawn is post-processing; whether the means are asked for is not.
            "selection": SelectionConfig(
                draws=min(config.selection.draws, 2), share=config.selection.share if means else plain.selection.share
            ),
            "topics": _charged_topics(config.topics),
        }
    )


def _trained_with(config: ConditionalGenerationConfig, plain: ConditionalGenerationConfig) -> dict[str, Any]:
    """Sections of the settings that a training reads, of each of them what the variant's own does."""
    if not config.trains:
        return {name: getattr(plain, name) for name in ("update", "lora", "discriminator", "train", "filter")}
    multitask, filters = config.variant == "multitask", config.variant == "naive_filter"
    joint = multitask and config.update == "joint"
    rank = config.filter.lora_rank if filters else plain.filter.lora_rank
    weight = config.discriminator.loss_weight if joint else plain.discriminator.loss_weight
    # One stream has one noise and one rate.
    alone = {"noise_ratio": plain.train.noise_ratio, "discriminator_learning_rate": config.train.learning_rate}
    return {
        "update": config.update if multitask else plain.update,
        "lora": config.lora if config.lora.rank or (filters and rank) else plain.lora.model_copy(update={"rank": 0}),
        "discriminator": plain.discriminator
        if config.variant == "naive"
        else config.discriminator.model_copy(update={"loss_weight": weight}),
        "train": config.train.model_copy(update=alone if joint or config.variant == "naive" else {}),
        "filter": plain.filter.model_copy(update={"lora_rank": rank}),
    }


def _charged_topics(topics: TopicsConfig) -> TopicsConfig:
    """The words and their share; how they were found has no part once they are."""
    if not topics.active:
        return TopicsConfig()
    if topics.keywords == "auto":
        return topics
    return TopicsConfig(number=len(topics.keywords), share=topics.share, keywords=topics.keywords)


def resolve(
    config: ConditionalGenerationConfig, n: int, label_names: Sequence[str], epsilon: float
) -> ConditionalGenerationConfig:
    """Values in place of `auto`: the generation batch by the model's files, the others by its own texts.

    Topics, norm and rates are part of the charge, so they are found on the CPU, wherever the run computes. The
    micro-batch is charged as `auto`: what that stands for follows from the device.
    """
    from understudy.methods.conditional_generation.memory import resolve as numbers  # reads the model's folder

    sized, kept_in = numbers(config), settings().home / "calibrations"
    if config.topics.active:
        from understudy.methods.conditional_generation.topics import resolve_topics
        from understudy.models.loading import load_base

        # Before norm and rates, whose training sees the prompts with their words.
        sized = resolve_topics(sized, label_names, base=lambda: load_base(config), kept_in=kept_in)
    if not config.trains or "auto" not in (sized.train.l2_clip_norm, sized.train.learning_rate):
        return sized
    from understudy.methods.conditional_generation.twin import resolve_for
    from understudy.models.loading import load_base

    return resolve_for(sized, n, label_names, base=lambda: load_base(sized), kept_in=kept_in, epsilon=epsilon)


def check_model(config: ConditionalGenerationConfig, label_names: Sequence[str]) -> LoadedModel:
    """Load the base model and refuse, before anything is charged, what would fail later.

    Raises:
        InputError: the model is unknown, cannot tell the labels apart, has too short a context, or has a trainable
            layer that cannot give per-example gradients (named).
    """
    from understudy.methods.conditional_generation.fitting import (
        check_model as check,  # torch, only for a well-formed request
    )

    return check(config, label_names)


def queries(config: ConditionalGenerationConfig, *, n: int, epsilon: float, delta: float) -> Queries:
    """`queries_of`, with earlier calibrations of the same public values reused."""
    return queries_of(config, n=n, epsilon=epsilon, delta=delta, cache=settings().home / "calibrations")


def describe(config: ConditionalGenerationConfig, promise: Promise) -> Description:
    """What the run says about itself; public values only."""
    from understudy.methods.conditional_generation.memory import rows_per_pass
    from understudy.models.shape import model_shape

    schedule, topics = schedule_of(promise.queries), _in_words(config.topics)
    return Description(
        mechanisms=tuple(mechanism_facts(query, asks=_asks(query)) for query in promise.queries),
        contributions=_contributions(schedule),
        released=(
            "any number of texts generated from it",
            *(("the noised class histogram",) if schedule.histogram_sigma is not None else ()),
            *(("the noised histogram of labels and topics",) if schedule.topics_sigma is not None else ()),
            *(("the noised class means",) if schedule.means_noise is not None else ()),
        ),
        accesses=(Access(task="train", reads="the rows", through=_through(schedule)),),
        evaluations=(
            Access.measuring("evaluate"),
            *((Access.measuring("evaluate-loss", reads="the held-out rows"),) if config.trains else ()),
        ),
        choices="Settings and defaults were fixed before the run"
        + ("; topics and their words are public and were fixed before it too" if topics else "")
        + f"; {_weights(config)}.",
        declared_public={
            **({"padded length in tokens": config.train.max_length} if config.trains else {}),
            "what prompts say of the rows": config.about,
            **({"topics": topics} if topics else {}),
        },
        dry_run={
            "steps": schedule.steps,
            **(
                {
                    "micro_batch": rows_per_pass(
                        config, promise.n, model_shape(config.model), device=settings().device_type
                    ),
                    "clip_norm": config.train.clip,
                    "learning_rate": config.train.rates[0],
                }
                if config.trains
                else {}
            ),
            "steering_kl_budget": config.generate.steering.kl_budget if config.steers else 0,
            **({"class_means_noise_multiplier": round(noise, 2)} if (noise := schedule.means_noise) else {}),
            **({"topics": topics} if topics else {}),
        },
        pretrained_models=_encoder() if schedule.means_noise is not None or topics else (),
        floating_point=FLOATING_POINT + (TRAINING_FLOATS if config.trains else ""),
    )


def _through(schedule: QuerySchedule) -> str:
    """The mechanisms that rows are read through, in words."""
    counted = schedule.histogram_sigma is not None or schedule.topics_sigma is not None
    named = [
        *(["Poisson sampling"] if schedule.trainings else []),
        *(["Gaussian sums"] if schedule.trainings or schedule.means_noise is not None else []),
        *(["histograms with discrete Gaussian noise"] if counted else []),
    ]
    return f"the mechanisms' {' and '.join(named)}"


def _weights(config: ConditionalGenerationConfig) -> str:
    """Which of a training's weights are released, in words."""
    if not config.trains:
        return "no model was trained"
    last = "the last one is used" if not config.train.averaging else "an average over all steps is used"
    return f"no checkpoint was chosen, {last}"


def _in_words(topics: TopicsConfig) -> str:
    """The words of all topics, numbered; empty without topics."""
    return "; ".join(f"{number} {', '.join(words)}" for number, words in enumerate(topics.found, start=1))


def _encoder() -> tuple[PretrainedModel, ...]:
    """In whose space the class means lie, and rows near to the words of a topic."""
    from understudy.evaluation.texts.encoder import DEFAULT_ENCODER, encoder_digest

    return (PretrainedModel(role="sentence encoder", name=DEFAULT_ENCODER, digest=encoder_digest()),)


def _contributions(schedule: QuerySchedule) -> str:
    """How much of one example each query adds up, in words."""
    said = ["One example is one row of the table."]
    if schedule.trainings:
        said.append(
            "Each gradient of one example is clipped to the stated norm; an example adds at most that much to each "
            "noised sum of gradients."
        )
    if schedule.histogram_sigma is not None:
        said.append("It counts once in the class histogram.")
    if schedule.topics_sigma is not None:
        said.append("It counts once in the histogram of labels and topics.")
    if schedule.means_noise is not None:
        said.append(
            "To the class means it adds its sentence embedding, scaled to norm 1, and a half for its class's count, "
            "scaled to norm 1 together."
        )
    return " ".join(said)


def _asks(query: Query) -> str:
    """What a query adds up, in words."""
    if query.name == TOPICS:
        return "number of rows of each label and topic"
    if query.kind == "histogram":
        return "number of rows of each label"
    if query.name == CLASS_MEANS:
        return "sum of sentence embeddings and number of rows of each label"
    return f"sum of per-example gradients of the {query.name.rpartition('/')[2]} loss"


def report_facts(config: ConditionalGenerationConfig) -> dict[str, str]:
    """What the report names of the settings."""
    chosen = f"the nearest to its class mean of {config.selection.draws}" if config.selects else "every text"
    variant = f"{config.variant}, {config.update} update" if config.trains else config.variant
    topics = {"topics": f"{len(found)}, public: {_in_words(config.topics)}"} if (found := config.topics.found) else {}
    return {"variant": variant, "texts kept": chosen, **topics}


def estimate(config: ConditionalGenerationConfig, promise: Promise) -> dict[str, Any]:
    """Expected time and memory, from one micro-batch and a few tokens of made-up rows of the run's public shape."""
    from understudy.methods.conditional_generation.estimate import expected_cost

    return expected_cost(config, promise)


METHOD = Method(
    config=ConditionalGenerationConfig,
    charge=Charging(lambda _: LABELLED_EXAMPLES, settings=charged_settings, queries=queries, releases="model"),
    preparation=Preparation(check_model, describe=describe, estimate=estimate, resolve=resolve),
    report=Reporting(report_facts, sections="understudy.methods.conditional_generation.report:sections"),
    flow="understudy.flows.conditional_generation:conditional_generation",
    generate="understudy.methods.conditional_generation.more:further_rows",
    row_losses="understudy.methods.conditional_generation.row_losses:row_losses",
    left_over="understudy.methods.conditional_generation.left_over:left_over",
)
