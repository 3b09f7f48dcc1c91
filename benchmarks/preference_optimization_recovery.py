"""How many preferences survive the noise: the recovery cells of the preference-optimisation benchmark."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from preference_optimization_data import (
    PAPER_PROMPTS,
    PAPER_ROUNDS,
    Cell,
    FloatArray,
    Settings,
    charged,
    configure,
    first_candidates,
    planned,
    population_pool,
)
from simulation import noise_facts

from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.preferences import preference_pairs, recovery_rate
from understudy.methods.preference_optimization.queries import SENSITIVITY, QuerySchedule, signal_to_noise
from understudy.methods.preference_optimization.release import scores_without_noise
from understudy.methods.preference_optimization.scoring import as_query, unclipped_mean
from understudy.privacy.mechanisms import Mechanisms


def recovery(settings: Settings, cell: Cell) -> dict[str, Any]:
    """How many preferences of the first round survive the noise of one round out of T; no training.

    The first round's candidates are scored T times under one charge of T rounds, each time with other noise. `paper`:
    the same prompts as if among the paper's 1800 in 20 rounds. Standardised, a client's say is shared out equally over
    prompts, so that its scores of these are exactly sqrt(K / 1800) times what they are among K.
    """
    schedule = planned(settings, cell)
    pool = population_pool(settings, cell.population, cell.seed)
    embeddings = first_candidates(settings, cell).embeddings
    bound = signal_to_noise(schedule, candidates=settings.prompts * settings.per_prompt)
    facts: dict[str, Any] = {
        "signal_to_noise_bound": str(bound),
        "noise_multiplier": schedule.noise_multiplier,
        **noise_facts(schedule.queries, n=cell.population, epsilon=cell.epsilon),
    }
    for name, normalise in (("standardise", "standardise"), ("none", "none"), ("paper", "standardise")):
        config = configure(settings, cell)
        scoring = config.scoring.model_copy(update={"normalise": normalise, "over": "within", "scorer": "cosine"})
        everyone = np.ones(cell.population, dtype=bool)
        exact = scores_without_noise(
            pool, embeddings, everyone, labels=None, config=config.model_copy(update={"scoring": scoring})
        )
        used = schedule
        if name == "paper":
            used = planned(settings, cell, rounds=PAPER_ROUNDS)
            exact = exact * np.sqrt(settings.prompts / PAPER_PROMPTS)
        query = as_query(exact, slots=cell.population)
        wanted = unclipped_mean(pool.means, embeddings, everyone)
        mechanisms = charged(settings, cell, queries=used.queries, what=f"recovery {name}")
        facts[name] = survivors(query, wanted, schedule=used, mechanisms=mechanisms, config=config)
    return facts


def survivors(
    query: FloatArray,
    wanted: np.ndarray[Any, np.dtype[np.float64]],
    *,
    schedule: QuerySchedule,
    mechanisms: Mechanisms,
    config: PreferenceOptimizationConfig,
) -> dict[str, Any]:
    """Recovery rates against the unclipped scores, and against the query itself, once per round of noise."""
    rates, own = [], []
    for step in range(schedule.rounds):
        noisy = mechanisms.gaussian_sum(
            {"scores": torch.from_numpy(query)},
            sensitivity=SENSITIVITY,
            noise_multiplier=schedule.noise_multiplier,
            step=step,
            purpose="scores",
        )["scores"].numpy()
        pairs = preference_pairs(
            noisy, per_prompt=config.candidates.per_prompt, rejected_rank=config.preferences.rejected_rank
        )
        rates.append(recovery_rate(pairs, wanted))
        own.append(recovery_rate(pairs, query))
    norm = float(np.linalg.norm(query))
    return {"recovery": rates, "own_recovery": own, "norm": norm, "noise_multiplier": schedule.noise_multiplier}
