"""Knowledge distillation as the framework sees it: what it charges, says about itself, and expects to need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from understudy.addresses import public_address
from understudy.errors import InputError
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.queries import queries_of, schedule_of
from understudy.methods.method import INSTRUCTION_PAIRS, Charging, Description, Method, Preparation, Promise, Reporting
from understudy.privacy.naming import named_table
from understudy.privacy.queries import Queries
from understudy.privacy.statement import FLOATING_POINT, TRAINING_FLOATS, Access, PretrainedModel, mechanism_facts
from understudy.settings import settings

if TYPE_CHECKING:
    from understudy.models.loading import LoadedModel


def charged_settings(config: KnowledgeDistillationConfig) -> KnowledgeDistillationConfig:
    """The settings that private pairs meet: model, seed set, template, adapter and training (ADR 0005).

    Everything behind the adapter reads the adapter alone, so another professional model, other filters or more pairs
    charge nothing.
    """
    plain = KnowledgeDistillationConfig(profile=config.profile)
    met = {"profile", "model", "model_digest", "public_seed", "method", "template", "lora", "train", "seed"}
    others = {name: getattr(plain, name) for name in type(config).model_fields if name not in met}
    if not config.seed.pairs:
        return config.model_copy(update={**others, "seed": plain.seed})
    # The seed set is tuned on with these.
    tune = {"max_length": config.tune.max_length, "batch_size": config.tune.batch_size}
    return config.model_copy(update={**others, "tune": plain.tune.model_copy(update=tune)})


def resolve(
    config: KnowledgeDistillationConfig, _n: int, _label_names: Sequence[str] = (), _epsilon: float = math.inf
) -> KnowledgeDistillationConfig:
    """The digests of the public tables and, where it is in this process, of the professional model."""
    from understudy.evaluation.answers.digests import with_digests
    from understudy.methods.knowledge_distillation.base import seed_digest
    from understudy.methods.knowledge_distillation.public_texts import instructions_digest

    if settings().zone == "both":
        config = with_professional(config)
    seed = config.seed.model_copy(update={"digest": config.seed.digest or seed_digest(config)})
    shown, compared = config.instructions, config.filters
    of_shown = shown.examples_digest or instructions_digest(shown.examples, setting="instructions.examples")
    of_compared = compared.against_digest or instructions_digest(compared.against, setting="filters.against")
    return config.model_copy(
        update={
            "seed": seed,
            "instructions": shown.model_copy(update={"examples_digest": of_shown}),
            "filters": compared.model_copy(update={"against_digest": of_compared}),
            "evaluation": with_digests(config.evaluation),
        }
    )


def with_professional(config: KnowledgeDistillationConfig) -> KnowledgeDistillationConfig:
    """The settings with the digest of the professional model that this process has; as they are where one is there.

    Raises:
        InputError: the model is not on this machine.
    """
    from understudy.models.folders import folder_digest, model_folder

    professional = config.professional
    if professional.url is not None or professional.model_digest:
        return config
    try:
        digest = folder_digest(model_folder(professional.model))
    except InputError as error:
        raise InputError(f"professional.model: {error}") from None
    return config.model_copy(update={"professional": professional.model_copy(update={"model_digest": digest})})


def public_tables(config: KnowledgeDistillationConfig) -> dict[str, str]:
    """Seed set, examples, what synthetic instructions must not copy, and pairs that stand before questions."""
    named = {
        "seed.pairs": config.seed.pairs,
        "instructions.examples": config.instructions.examples,
        "filters.against": config.filters.against,
        "evaluation.shots_from": config.evaluation.shots_from,
    }
    return {name: table for name, table in named.items() if table not in ("", "builtin")}


def check_model(config: KnowledgeDistillationConfig, _label_names: Sequence[str]) -> LoadedModel:
    """Load the base model and refuse, before anything is charged, what would fail later.

    Raises:
        InputError: the machine's memory is too small; a model, public table or setting is wrong; a layer cannot give
            per-example gradients; the context is too short for pairs, examples or answers; or the other zone's key is
            not known.
    """
    from understudy.methods.knowledge_distillation.checks import check

    return check(config)


def queries(config: KnowledgeDistillationConfig, *, n: int, epsilon: float, delta: float) -> Queries:
    """`queries_of`, with earlier calibrations of the same public values reused.

    Raises:
        InputError: without noise, what is written is as private as the pairs: an endpoint would see it, or the memory
            is too small for the server zone's steps, which are taken here then.
    """
    if math.isinf(epsilon) and config.professional.url is not None:
        raise InputError(
            f"professional.url={public_address(config.professional.url)}: expected a finite --epsilon, found inf, "
            "at which the instructions are as private as the pairs and may not be sent to an endpoint; give a finite "
            "--epsilon, or leave professional.url out and name a professional.model of this machine"
        )
    if math.isinf(epsilon) and settings().zone == "client":
        from understudy.methods.knowledge_distillation.peaks import check_fits

        check_fits(config, zone="both")
    return queries_of(config, n=n, epsilon=epsilon, delta=delta, cache=settings().home / "calibrations")


def describe(config: KnowledgeDistillationConfig, promise: Promise) -> Description:
    """What the run says about itself; public values only."""
    from understudy.methods.knowledge_distillation.memory import pairs_per_pass
    from understudy.models.shape import model_shape

    (query,), plan = promise.queries, schedule_of(promise.queries)
    professional, shown, seed = config.professional, config.instructions, config.seed
    pairs = pairs_per_pass(
        config, expected=plan.expected_batch, shape=model_shape(config.model), device=settings().device_type
    )
    served = (f"the endpoint {professional.url} sees released instructions",) if professional.url else ()
    return Description(
        mechanisms=(mechanism_facts(query, asks="sum of per-example gradients of the responses' loss"),),
        contributions="One example is one pair of instruction and response. The gradient of its loss is clipped to the "
        "stated norm; it adds at most that much to each noised sum.",
        released=(
            "the DP adapter, sealed for the server zone",
            "any number of pairs written with it, with the professional model's responses",
            "the adapter tuned on these pairs",
            *served,
        ),
        accesses=(
            Access(task="train", reads="the pairs", through="the mechanisms' Poisson sampling and Gaussian sums"),
        ),
        choices="Settings and defaults were fixed before the run; no checkpoint was chosen, the last one is used.",
        declared_public={
            "padded length in tokens": config.train.max_length,
            "public examples": named_table(shown.examples, digest=shown.examples_digest),
            **({"what the pairs are about": config.about} if config.about else {}),
            **({"public seed set": named_table(seed.pairs, digest=seed.digest)} if seed.pairs else {}),
        },
        dry_run={"steps": plan.steps, "micro_batch": pairs},
        pretrained_models=(_professional(config),),
        evaluations=(Access.measuring("evaluate-pairs"),),
        against="Everyone who sees only what is exported, and the server zone: both see the adapter and what follows "
        "from it, never a pair.",
        floating_point=FLOATING_POINT + TRAINING_FLOATS,
    )


def _professional(config: KnowledgeDistillationConfig) -> PretrainedModel:
    """Whose answers the released pairs hold."""
    asked = config.professional
    role = "professional model, whose responses the pairs hold"
    if asked.url:
        return PretrainedModel(role=role, name=f"{asked.served_name} at {asked.url}", digest="")
    return PretrainedModel(role=role, name=asked.model, digest=asked.model_digest)


def report_facts(config: KnowledgeDistillationConfig) -> dict[str, str]:
    """What the report names of the settings."""
    professional = config.professional
    return {
        "professional": f"{professional.served_name} at {professional.url}" if professional.url else professional.model,
        "adapter": f"rank {config.lora.rank} on {config.lora.targets}",
        "pairs ranked by": config.filters.rank,
    }


def estimate(config: KnowledgeDistillationConfig, promise: Promise) -> dict[str, Any]:
    """Expected time and memory: a micro-batch and a few tokens are timed on made-up pairs; the peak is predicted."""
    from understudy.methods.knowledge_distillation.checks import expected_cost, expected_peak

    peak = expected_peak(config)  # before anything else is held
    return expected_cost(config, promise) | peak


METHOD = Method(
    config=KnowledgeDistillationConfig,
    charge=Charging(lambda _: INSTRUCTION_PAIRS, settings=charged_settings, queries=queries, releases="model"),
    preparation=Preparation(
        check_model, describe=describe, estimate=estimate, resolve=resolve, public_tables=public_tables
    ),
    report=Reporting(report_facts, sections="understudy.methods.knowledge_distillation.report:sections"),
    flow="understudy.flows.knowledge_distillation:knowledge_distillation",
    generate="understudy.methods.knowledge_distillation.more:further_rows",
    row_losses="understudy.methods.knowledge_distillation.row_losses:row_losses",
)
