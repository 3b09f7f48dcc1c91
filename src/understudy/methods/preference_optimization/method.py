"""Preference optimisation as the framework sees it: what it charges, says about itself, and expects to need."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from understudy.addresses import public_address
from understudy.errors import InputError
from understudy.methods.method import (
    LABELLED_EXAMPLES,
    Charging,
    Description,
    Method,
    Preparation,
    Promise,
    Protected,
    Reporting,
)
from understudy.methods.preference_optimization.config import PUBLIC_SAMPLE, PreferenceOptimizationConfig, public_words
from understudy.methods.preference_optimization.queries import (
    noise_multiplier_by_rdp,
    queries_of,
    schedule_of,
    signal_to_noise,
)
from understudy.models.folders import has_chat_template, model_folder
from understudy.privacy.naming import named_table
from understudy.privacy.queries import Queries
from understudy.privacy.statement import Access, PretrainedModel, mechanism_facts
from understudy.settings import settings

if TYPE_CHECKING:
    from understudy.models.loading import LoadedModel


def charged_settings(config: PreferenceOptimizationConfig) -> PreferenceOptimizationConfig:
    """The settings that clients' texts meet: all but the number of texts drawn in the end and the report's (ADR 0005).

    Every round's query is about candidates that all other settings have shaped, and so have the seed texts: their
    digest is among the settings. What the chosen scores, loss and place of the model do not read is at its default.
    """
    from understudy.methods.preference_optimization.seeds import read_seeds, seeds_digest

    plain = PreferenceOptimizationConfig(profile=config.profile)
    scoring, preferences = config.scoring, config.preferences
    masked = {name: getattr(plain.scoring, name) for name in ("fractional_bits", "colluding", "survivors")}
    unread = {} if scoring.aggregation == "masked" else masked
    smoothing = preferences.label_smoothing if preferences.loss == "conservative" else plain.preferences.label_smoothing
    return config.model_copy(
        update={
            "samples": plain.samples,
            "costs": plain.costs,
            "scoring": scoring.model_copy(update=unread),
            "preferences": preferences.model_copy(update={"label_smoothing": smoothing}),
            "endpoint": config.endpoint if config.endpoint.url else plain.endpoint,
            "seeds_digest": seeds_digest(read_seeds(config.seeds)),
        }
    )


def resolve(
    config: PreferenceOptimizationConfig, _n: int, label_names: Sequence[str] = (), _epsilon: float = math.inf
) -> PreferenceOptimizationConfig:
    """How prompts are written and in which words, and how fast preferences may train the model.

    And the digest of the seed texts: `generate` reads them again, maybe years later and in another folder.

    Raises:
        InputError: no such model or seeds, or prompts that cannot be made of the seeds.
    """
    from understudy.methods.preference_optimization.seeds import read_seeds, seeds_digest

    asked = config.candidates
    style, shown, words = asked.style, asked.seeds_per_prompt, asked.instruction
    if style == "auto":
        style = "chat" if has_chat_template(model_folder(config.model)) else "plain"
    if shown == "auto":
        shown = 0 if style == "chat" and config.seeds == PUBLIC_SAMPLE else asked.examples
    if not words.strip() and (style == "chat" or config.about.strip()):
        words = public_words(style, config.about, labelled=config.variant == "central_conditional")
    decided = {"style": style, "seeds_per_prompt": shown, "instruction": words}
    digest = seeds_digest(read_seeds(config.seeds, digest=config.seeds_digest))
    decided_on = config.model_copy(update={"candidates": asked.model_copy(update=decided), "seeds_digest": digest})
    return decided_on if config.preferences.learning_rate != "auto" else _with_rate(decided_on, label_names)


def _with_rate(config: PreferenceOptimizationConfig, label_names: Sequence[str]) -> PreferenceOptimizationConfig:
    """The learning rate that the model's own texts allow; part of the charge, so it is found on the CPU."""
    from understudy.methods.preference_optimization.rate import chosen_rate
    from understudy.methods.preference_optimization.seeds import read_seeds

    rate = chosen_rate(config, read_seeds(config.seeds), label_names, kept_in=settings().home / "calibrations")
    return config.model_copy(update={"preferences": config.preferences.model_copy(update={"learning_rate": rate})})


def public_tables(config: PreferenceOptimizationConfig) -> dict[str, str]:
    """The seed texts that prompts show."""
    return {"seeds": config.seeds}


def check_model(config: PreferenceOptimizationConfig, label_names: Sequence[str]) -> LoadedModel:
    """Load the base model and the public seeds and refuse, before anything is charged, what would fail later.

    Raises:
        InputError: the machine's memory is too small, the model is unknown or its tokenizer cannot cut clients' texts,
            the seeds are too few or cannot be read, a prompt does not fit the context, or settings exclude each other.
    """
    from understudy.methods.preference_optimization.clients import check_tokenizer
    from understudy.methods.preference_optimization.peaks import check_fits
    from understudy.methods.preference_optimization.prompts import RoundSeed, round_prompts
    from understudy.methods.preference_optimization.seeds import read_seeds
    from understudy.models.loading import load_base

    check_fits(config)  # before the model is loaded, which may be too large itself
    loaded = load_base(config)
    if config.variant == "federated":
        check_tokenizer(loaded.tokenizer)
    seeds, first = read_seeds(config.seeds), RoundSeed(0, config.public_seed)
    for label in label_names or (None,):
        round_prompts(seeds, config.candidates, loaded=loaded, seed=first, label=label, about=config.about)
    return loaded


def queries(config: PreferenceOptimizationConfig, *, n: int, epsilon: float, delta: float) -> Queries:
    """`queries_of`, with earlier calibrations of the same public values reused.

    Raises:
        InputError: without noise, the policy is as private as the texts: an endpoint would have to serve it, or the
            memory is too small for the server zone's steps, which are taken here then.
    """
    if math.isinf(epsilon) and config.endpoint.url is not None:
        raise InputError(
            f"endpoint.url={public_address(config.endpoint.url)}: expected a finite --epsilon, found inf, at "
            "which each round's policy is as private as the texts and may not be served elsewhere; give a "
            "finite one, or leave endpoint.url out"
        )
    if math.isinf(epsilon) and settings().zone == "client":
        from understudy.methods.preference_optimization.peaks import check_fits

        check_fits(config, zone="both")
    return queries_of(config, n=n, epsilon=epsilon, delta=delta, cache=settings().home / "calibrations")


def describe(config: PreferenceOptimizationConfig, promise: Promise) -> Description:
    """What the run says about itself; public values only.

    Raises:
        InputError: no masked round can be planned with these settings, which the noise and the labels decide.
    """
    from understudy.evaluation.texts.encoder import DEFAULT_ENCODER, encoder_digest

    schedule, n = schedule_of(promise.queries), promise.n
    candidates = config.candidates.prompts * config.candidates.per_prompt * max(len(promise.label_names), 1)
    if schedule.masked:
        from understudy.methods.preference_optimization.release import check_masking  # torch, only where needed

        check_masking(config, schedule, candidates=candidates)
    ratio = signal_to_noise(schedule, candidates=candidates)
    grid = 2.0**-config.scoring.fractional_bits if schedule.masked else None
    by_rdp: dict[str, float] = {}
    if math.isfinite(promise.epsilon):
        found = noise_multiplier_by_rdp(schedule, epsilon=promise.epsilon, delta=promise.delta)
        by_rdp["noise_multiplier_by_rdp"] = float(f"{found:.4g}")
    warnings: tuple[str, ...] = ()
    if ratio < 1:
        warnings = (
            f"signal-to-noise ratio of a round at most {ratio:.2g}: even if all {n} units agreed, the noise on the "
            f"{candidates} scores would outweigh them, so preferences are mostly random; use more clients, fewer "
            "rounds or candidates, or a larger epsilon",
        )
    return Description(
        mechanisms=tuple(mechanism_facts(query, asks=_ASKS, grid=grid) for query in promise.queries),
        contributions=_contributions(config),
        released=(
            "any number of texts generated from it",
            "the noisy scores of every round, and what follows from them",
        ),
        accesses=(
            Access(task="embed-clients", reads="the texts", through="none: embeddings stay in the client zone"),
            Access(task="score", reads="the embeddings", through="the mechanism interface, once per round"),
        ),
        choices="Settings and defaults were fixed before the run; the last round's policy is used, none was chosen by "
        "a private score.",
        declared_public={
            **({"public seed texts": _seed_table(config)} if config.candidates.examples else {}),
            **({"words of the prompts": config.candidates.instruction} if config.candidates.instruction else {}),
            "tokens of a sample": config.clients.sample_tokens,
            "candidates per round": candidates,
        },
        dry_run={
            "rounds": schedule.rounds,
            "candidates": candidates,
            "signal_to_noise_bound": float(f"{ratio:.3g}") if math.isfinite(ratio) else "infinite",
            **by_rdp,
        },
        warnings=warnings,
        pretrained_models=(PretrainedModel(role="sentence encoder", name=DEFAULT_ENCODER, digest=encoder_digest()),),
        evaluations=(Access.measuring("evaluate-rounds"),),
        trust=_TRUST[config.scoring.aggregation],
        against=_AGAINST,
    )


_ASKS = "sum of the units' clipped score vectors over the candidates of a round"
_AGAINST = (
    "Everyone who sees the noisy scores, the exported model and texts, and this statement, but not who took part in a "
    "round. Against someone who does, such as the server that collects answers, sampling does not count: "
    "epsilon_without_amplification holds then."
)
_TRUST = {
    "trusted": "Whoever runs the client zone sees the texts and adds up the scores there; the server zone receives "
    "sums with noise only.",
    "masked": "Each client sees its own texts; the server receives masked integers, and no one holds a sum without "
    "noise unless as many clients as the threshold collude with it. Here all clients are played by one process.",
}


def _seed_table(config: PreferenceOptimizationConfig) -> str:
    """Which seed texts prompts show."""
    from understudy.methods.preference_optimization.seeds import read_seeds, seeds_digest

    return named_table(config.seeds, digest=config.seeds_digest or seeds_digest(read_seeds(config.seeds)))


def _contributions(config: PreferenceOptimizationConfig) -> str:
    unit = {
        "federated": "One client is all rows with its identifier; its samples are averaged into one vector of scores",
        "central": "One example is one row; it gives one vector of scores",
        "central_conditional": "One example is one row; it scores the candidates of its own label",
    }[config.variant]
    return f"{unit}, which is clipped to L2 norm 1 and added once per round in which the unit takes part."


def report_facts(config: PreferenceOptimizationConfig) -> dict[str, str]:
    """What the report names of the settings."""
    candidates = config.candidates
    return {
        "variant": config.variant,
        "rounds": f"{config.rounds} of {candidates.prompts} prompts with {candidates.per_prompt} texts",
        "scores": f"{config.scoring.scorer}, {config.scoring.normalise}, {config.scoring.aggregation} aggregation",
        "preferences": f"{config.preferences.loss}, rank 1 over rank {config.preferences.rejected_rank}",
    }


def estimate(config: PreferenceOptimizationConfig, promise: Promise) -> dict[str, Any]:
    """Expected time, by candidates of two prompts and as many pairs as pass at once; and the predicted peak."""
    from understudy.hardware import chosen
    from understudy.methods.preference_optimization.candidates import continue_prompts
    from understudy.methods.preference_optimization.dpo import train_round, trainer_class
    from understudy.methods.preference_optimization.dpo_pairs import encode_pairs, pass_of
    from understudy.methods.preference_optimization.prompts import RoundSeed, round_prompts
    from understudy.methods.preference_optimization.seeds import read_seeds
    from understudy.models.loading import load_base

    label_names, rounds = promise.label_names, schedule_of(promise.queries).rounds
    loaded = load_base(config, chosen())
    peak = _peak(loaded, config)
    prompts = round_prompts(
        read_seeds(config.seeds),
        config.candidates,
        loaded=loaded,
        seed=RoundSeed(0, config.public_seed),
        label=label_names[0] if label_names else None,
        about=config.about,
    )[:2]
    began = time.perf_counter()
    texts = continue_prompts(loaded, prompts, config.candidates, seed=RoundSeed(0, config.public_seed))
    drawn = time.perf_counter()
    step = config.candidates.per_prompt
    pairs = pass_of(
        loaded,
        prompts,
        [f"{text} a" for text in texts[::step]],
        texts[1::step],
        config=config.preferences,
        in_chat=config.candidates.in_chat,
    )
    trainer_class()  # trl is slow to load, once
    loaded_at = time.perf_counter()
    with TemporaryDirectory() as folder:
        train_round(
            loaded,
            None,
            rows=encode_pairs(loaded, pairs),
            config=config.preferences.model_copy(update={"epochs": 1}),
            public_seed=config.public_seed,
            round=0,
            folder=Path(folder),
        )
    trained = time.perf_counter() - loaded_at
    asked = config.candidates.prompts * max(len(label_names), 1) * rounds
    passes = config.preferences.epochs * asked / len(pairs.prompts)
    return {
        "expected_candidate_minutes": round((drawn - began) * asked / len(prompts) / 60, 1),
        "expected_preference_minutes": round(trained * passes / 60, 1),
        **peak,
    }


def _peak(loaded: LoadedModel, config: PreferenceOptimizationConfig) -> dict[str, int]:
    """The expected peak of memory in this process's zones; nothing where the model's files do not say its shape."""
    from understudy.methods.preference_optimization.peaks import phases
    from understudy.models.room import expected_mib

    found = loaded.shape
    return {} if found is None else {"expected_peak_memory_mib": expected_mib(loaded.model, phases(config, found))}


_BY_VARIANT = {
    "federated": Protected("clients", "client", "add_or_remove_one"),
    "central": Protected("texts", "example", "replace_special"),
    "central_conditional": LABELLED_EXAMPLES,
}

METHOD = Method(
    config=PreferenceOptimizationConfig,
    charge=Charging(
        lambda config: _BY_VARIANT[config.variant], settings=charged_settings, queries=queries, releases="model"
    ),
    preparation=Preparation(
        check_model, describe=describe, estimate=estimate, resolve=resolve, public_tables=public_tables
    ),
    report=Reporting(report_facts, sections="understudy.methods.preference_optimization.report:sections"),
    flow="understudy.flows.preference_optimization:preference_optimization",
    generate="understudy.methods.preference_optimization.more:further_rows",
    row_losses="understudy.methods.preference_optimization.row_losses:row_losses",
    left_over="understudy.methods.preference_optimization.left_over:left_over",
)
