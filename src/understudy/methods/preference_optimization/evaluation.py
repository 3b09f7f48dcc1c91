"""What a run's texts and rounds are worth, measured against clients that took no part; internal.

POPri, section 5 and appendix E: next-token accuracy of a downstream model on held-out clients and the share of the gap
between epsilon 0 and infinity that is closed; per round the Frechet distance of the candidates to held-out samples, the
median distance to their medoid, and how many preferences survive the noise; what a round costs a client (`costs.py`).
Deviation: the last weights count, no checkpoint is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from torch import Tensor

from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.measure import (
    Embedder,
    measure_diversity,
    measure_fidelity,
    measure_identifiers,
    measure_memorization,
)
from understudy.evaluation.metrics import Metrics, merge
from understudy.evaluation.rows import texts_at_most
from understudy.evaluation.texts import fidelity
from understudy.evaluation.texts.encoder import FloatArray, embed_sets
from understudy.evaluation.texts.medoid import median_distance_to_medoid
from understudy.evaluation.texts.words import tokenize
from understudy.evaluation.utility.next_token import (
    NextTokenConfig,
    accuracy_difference,
    accuracy_interval,
    fine_tune,
    score_clients,
    share_of_gap_closed,
)
from understudy.methods.preference_optimization.clients import Clients, build_clients, build_texts
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.costs import measure_costs
from understudy.methods.preference_optimization.histogram import nearest_candidates
from understudy.methods.preference_optimization.metric_names import METRIC_NAMES
from understudy.methods.preference_optimization.pool import ClientPool
from understudy.methods.preference_optimization.preferences import drop_identical, preference_pairs, recovery_rate
from understudy.methods.preference_optimization.scoring import unclipped_mean
from understudy.methods.preference_optimization.stored import Candidates
from understudy.progress import Progress

# Fewer texts than this give no covariance worth a distance.
_FEWEST = 4


@dataclass(frozen=True)
class EvaluationInputs:
    """Everything that is looked at; private but for the texts and scores.

    Attributes:
        synthetic: texts of the last policy.
        prompt_only: texts of the public base model under the same prompts.
        train: checked private rows.
        test: held-out rows, of units that took no part.
        pool: embeddings of the units that took part.
        candidates: of each round.
        scores: (M,) noisy scores of each round.
        trained: pairs that each round's adapter was trained on.
    """

    synthetic: Sequence[str] = field(repr=False)
    prompt_only: Sequence[str] = field(repr=False)
    train: pa.Table = field(repr=False)
    test: pa.Table = field(repr=False)
    pool: ClientPool
    candidates: Sequence[Candidates]
    scores: Sequence[Tensor] = field(repr=False)
    trained: Sequence[int] = field(repr=False)


def evaluate_run(
    inputs: EvaluationInputs,
    *,
    config: PreferenceOptimizationConfig,
    profile: Literal["tiny", "paper"],
    tokenizer: Any,
    embedder: Embedder,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Metrics:
    """All figures of a run. Internal.

    Args:
        inputs: texts, rows and rounds.
        config: the run's settings.
        profile: sizes of the evaluation.
        tokenizer: of the base model, for cutting clients' documents into samples.
        embedder: texts -> embeddings, of the sentence encoder that the scores used; called once.
        device: torch device of the downstream models.
        progress: called with (downstream models trained, models).

    Returns:
        Every figure; without a synthetic text only those of the rounds and of what was cut, because the charge is paid
        by then.
    """
    measuring = EvaluationConfig(profile=profile)
    train, test = (_samples(table, config, tokenizer) for table in (inputs.train, inputs.test))
    seed = measuring.public_seed
    some = texts_at_most(test.samples, measuring.most_rows, seed=seed)
    texts = {"synthetic": inputs.synthetic, "prompt_only": inputs.prompt_only, "unseen": some}
    embedded = embed_sets(texts, embedder)
    unseen = embedded["unseen"]
    cut = float((train.dropped_tokens > 0).sum())
    rounds = merge(
        measure_rounds(inputs, unseen, config=config, measuring=measuring),
        Metrics(values={"cut.train.clients": cut}, declared=METRIC_NAMES),
        measure_costs(inputs.candidates[-1], config),
    )
    if not inputs.synthetic:
        return merge(rounds, Metrics(missing=("everything about the synthetic texts: none was kept",)))
    made, known, held = tokenize(inputs.synthetic, train.samples, test.samples)
    return merge(
        measure_next_token(inputs, train, test, measuring=measuring, device=device, progress=progress),
        measure_fidelity(embedded["synthetic"], unseen, embedded["prompt_only"], config=measuring),
        measure_diversity(made, held, seed=seed),
        measure_memorization(made, known, held, seed=seed, level=measuring.level),
        measure_identifiers(inputs.synthetic, train.samples, test.samples, level=measuring.level),
        rounds,
    )


def measure_next_token(
    inputs: EvaluationInputs,
    train: Clients,
    test: Clients,
    *,
    measuring: EvaluationConfig,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Metrics:
    """Accuracy of the downstream model on held-out units: as it is, and tuned on each set of texts.

    Of more real samples than `measuring.most_rows` so many are drawn to tune it on.
    """
    config, seed = NextTokenConfig(profile=measuring.profile), measuring.public_seed
    held_out = [samples for _, samples in test.by_slot()]
    conditions: dict[str, Sequence[str]] = {
        "prompt_only": inputs.prompt_only,
        "synthetic": inputs.synthetic,
        "real": texts_at_most(train.samples, measuring.most_rows, seed=seed),
    }
    scores = {}
    for done, (condition, texts) in enumerate(conditions.items(), start=1):
        tuned = fine_tune(texts, config=config, seed=seed, device=device)
        scores[condition] = score_clients(tuned, held_out, max_length=config.max_length)
        if progress is not None:
            progress(done, len(conditions) + 1)
    public = fine_tune(inputs.synthetic, config=config.model_copy(update={"epochs": 0}), seed=seed, device=device)
    scores["public"] = score_clients(public, held_out, max_length=config.max_length)
    values: dict[str, float] = {
        "utility.next_token.clients": float(len(held_out)),
        "utility.next_token.real_samples": float(len(conditions["real"])),
    }
    intervals: dict[str, tuple[float, float]] = {}
    for condition, found in scores.items():
        interval = accuracy_interval(found, seed=seed)
        values[f"utility.next_token.{condition}.accuracy"] = interval.value
        intervals[f"utility.next_token.{condition}.accuracy"] = (interval.low, interval.high)
        values[f"utility.next_token.{condition}.loss"] = found.loss_per_token
    difference = accuracy_difference(scores["synthetic"], scores["prompt_only"], seed=seed)
    values["utility.next_token.synthetic_minus_prompt_only.accuracy"] = difference.value
    intervals["utility.next_token.synthetic_minus_prompt_only.accuracy"] = (difference.low, difference.high)
    closed = share_of_gap_closed(*(scores[condition].accuracy for condition in ("synthetic", "public", "real")))
    if closed is None:
        return Metrics(values=values, intervals=intervals, missing=("gap closed: real texts help no more than none",))
    return Metrics(values=values | {"utility.next_token.gap_closed": closed}, intervals=intervals)


def measure_rounds(
    inputs: EvaluationInputs, unseen: Any, *, config: PreferenceOptimizationConfig, measuring: EvaluationConfig
) -> Metrics:
    """Per round: how near the candidates come, how far they spread, and how many preferences survive the noise."""
    values: dict[str, float] = {}
    missing: list[str] = []
    rounds = zip(inputs.candidates, inputs.scores, inputs.trained, strict=True)
    for number, (candidates, scores, trained) in enumerate(rounds, start=1):
        pairs = preference_pairs(
            scores.numpy(),
            per_prompt=config.candidates.per_prompt,
            rejected_rank=config.preferences.rejected_rank,
        )
        noiseless = unclipped_scores(inputs.pool, candidates, config)
        values[f"rounds.recovery.round_{number}"] = recovery_rate(pairs, noiseless)
        values[f"rounds.medoid_distance.round_{number}"] = median_distance_to_medoid(candidates.embeddings)
        differ = len(drop_identical(pairs, candidates.table["text"].to_pylist()).pairs)
        missing += _not_learnt(number, differ=differ, trained=trained)
    if len(unseen) < _FEWEST:
        missing.append(f"Frechet distance of rounds: {len(unseen)} held-out samples")
    else:
        values |= _frechet_of_rounds(inputs.candidates, unseen, measuring)
    return Metrics(values=values, missing=tuple(missing), declared=METRIC_NAMES)


def unclipped_scores(
    pool: ClientPool, candidates: Candidates, config: PreferenceOptimizationConfig
) -> npt.NDArray[np.float64]:
    """What all units together say of each candidate, by the run's own scorer, neither standardised nor clipped."""
    if config.scoring.scorer == "cosine":
        everyone = np.ones(pool.slots, dtype=bool)
        return unclipped_mean(pool.means, candidates.embeddings, everyone, labels=candidates.labels)
    labels = None if pool.labels is None or candidates.labels is None else (pool.labels, candidates.labels)
    nearest = nearest_candidates(pool.embeddings, candidates.embeddings, labels=labels)
    cast, samples = nearest >= 0, np.bincount(pool.owner, minlength=pool.slots)
    shares = 1.0 / samples[pool.owner[cast]]
    mean: npt.NDArray[np.float64] = (
        np.bincount(nearest[cast], weights=shares, minlength=len(candidates.embeddings)) / pool.slots
    )
    return mean


def _not_learnt(number: int, *, differ: int, trained: int) -> list[str]:
    """What a round did not train on, in words.

    Args:
        number: of the round, from 1.
        differ: its pairs of different texts.
        trained: pairs that the adapter was trained on.
    """
    if not differ:
        return [
            f"training in round {number}: chosen and rejected text were the same for every prompt; raise "
            "candidates.sampling.temperature or candidates.per_prompt"
        ]
    if not trained:
        return [
            f"training in round {number}: no pair of two texts fits the model's context, or the adapter did not move "
            "or was not finite; lower candidates.seeds_per_prompt, seed_tokens or max_new_tokens, or change "
            "preferences.learning_rate"
        ]
    if trained < differ:
        left = differ - trained
        return [
            f"training in round {number}: {left} of {differ} pairs, which were longer than the model's context or of "
            "the same tokens; lower candidates.seeds_per_prompt, seed_tokens or max_new_tokens"
        ]
    return []


def _frechet_of_rounds(
    rounds: Sequence[Candidates], unseen: FloatArray, measuring: EvaluationConfig
) -> dict[str, float]:
    """The distance of each round's candidates, and that of real to real samples at the last round's size."""
    if not rounds:
        return {}
    sets = {f"rounds.frechet.round_{number}": found.embeddings for number, found in enumerate(rounds, start=1)}
    found = fidelity.compare(
        fidelity.FRECHET,
        dict(reversed(sets.items())),
        unseen,
        seed=measuring.public_seed,
        splits=measuring.floor_splits,
    )
    values = {name: found.sets[name].value for name in sets}
    return {**values, "rounds.frechet_floor": found.reference.value}


def _samples(table: pa.Table, config: PreferenceOptimizationConfig, tokenizer: Any) -> Clients:
    if config.variant == "federated":
        return build_clients(table, tokenizer, config.clients.sample_tokens)
    return build_texts([text if text and text.strip() else None for text in table["text"].to_pylist()])
