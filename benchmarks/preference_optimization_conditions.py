"""What each condition of the preference-optimisation benchmark does, and what is measured of it.

Every condition ends in as many synthetic texts; the same downstream model is tuned on them and tested on held-out
clients. Private Evolution prompts and samples exactly as POPri does (`candidates`), so that only the use of scores
differs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import temporary
from preference_optimization_data import (
    Cell,
    Settings,
    charged,
    clients_of,
    configure,
    digest_of,
    encoder,
    first_candidates,
    planned,
    population_pool,
    seed_texts,
)
from preference_optimization_evolution import evolution
from preference_optimization_measures import distance, final_texts, next_token
from preference_optimization_recovery import recovery
from simulation import model_of, noise_facts

from understudy.evaluation.texts.medoid import median_distance_to_medoid
from understudy.methods.preference_optimization import rounds
from understudy.methods.preference_optimization.evaluation import unclipped_scores
from understudy.methods.preference_optimization.pool import ClientPool
from understudy.methods.preference_optimization.preferences import preference_pairs, recovery_rate
from understudy.methods.preference_optimization.queries import signal_to_noise
from understudy.methods.preference_optimization.release import release_scores
from understudy.methods.preference_optimization.stored import Candidates
from understudy.models.adapters import Adapter, load_adapter, save_adapter, with_adapter
from understudy.models.loading import LoadedModel

_ADAPTER, _FACTS = "adapter.safetensors", "facts.json"


def figures(settings: Settings, cell: Cell) -> dict[str, Any]:
    """All figures of a cell; synthetic texts under `texts`, which is never published."""
    if cell.condition == "recovery":
        return recovery(settings, cell)
    texts: Sequence[str]
    facts: dict[str, Any] = {}
    if cell.condition in ("popri", "popri-shuffled"):
        texts, facts = popri(settings, cell)
    elif cell.condition in ("pe", "pe+sft"):
        texts, facts = evolution(settings, cell)
    elif cell.condition.startswith("real"):
        texts = clients_of(settings, "train").samples
        if cell.condition == "real-as-many":
            texts = some(texts, settings.samples, seed=cell.seed)
    elif cell.condition == "public-seeds":
        texts = some(seed_texts(settings), settings.samples, seed=cell.seed)
    elif cell.condition == "epsilon-0":
        texts = seed_texts(settings)[:1]  # not tuned on
    else:  # prompt-only: what the public model writes
        texts = final_texts(settings, cell, model_of(configure(settings, cell).model))
    if cell.condition not in ("epsilon-0", "real", "real-as-many"):
        facts["final"] = distance(settings, encoder().encode(list(texts)))
        facts["texts"] = list(texts)
    return facts | {"rows": len(texts)} | next_token(settings, cell, texts)


def some(texts: Sequence[str], count: int, *, seed: int) -> list[str]:
    """So many of the texts, without replacement, or all."""
    places = np.random.default_rng(seed).permutation(len(texts))[:count]
    return [texts[place] for place in sorted(places)]


def popri(settings: Settings, cell: Cell) -> tuple[list[str], dict[str, Any]]:
    """T rounds of candidates, noisy scores and DPO; a killed cell goes on after its last whole round."""
    config, schedule = configure(settings, cell), planned(settings, cell)
    mechanisms = charged(settings, cell, queries=schedule.queries, what="scores")
    pool = population_pool(settings, cell.population, cell.seed, samples=config.scoring.scorer == "histogram")
    base, folder = model_of(config.model), rounds_folder(settings, cell)
    adapter: Adapter | None = None
    found: list[dict[str, Any]] = []
    for number in range(config.rounds):
        kept = folder / str(number)
        if not kept.exists():
            candidates = proposed(settings, cell, base, adapter, number)
            scores = release_scores(
                pool,
                candidates.embeddings,
                labels=None,
                config=config,
                schedule=schedule,
                mechanisms=mechanisms,
                round=number,
            )
            keep_round(settings, cell, kept, base, adapter, candidates, pool=pool, scores=scores)
        adapter = load_adapter(kept / _ADAPTER)
        found.append(json.loads((kept / _FACTS).read_text()))
    texts = final_texts(settings, cell, with_adapter(base, adapter, alpha=config.preferences.lora_alpha))
    return texts, {
        "rounds": found,
        "signal_to_noise_bound": str(signal_to_noise(schedule, candidates=settings.prompts * settings.per_prompt)),
        "noise_multiplier": schedule.noise_multiplier,
        **noise_facts(schedule.queries, n=cell.population, epsilon=cell.epsilon),
    }


def proposed(settings: Settings, cell: Cell, base: LoadedModel, adapter: Adapter | None, number: int) -> Candidates:
    """The candidates of a round."""
    if number == 0:
        return first_candidates(settings, cell)
    config = configure(settings, cell)
    policy = with_adapter(base, adapter, alpha=config.preferences.lora_alpha)
    return rounds.propose(
        policy, seed_texts(settings), config=config, label_names=(), round=number, encode=encoder().encode
    )


def keep_round(
    settings: Settings,
    cell: Cell,
    kept: Path,
    base: LoadedModel,
    adapter: Adapter | None,
    candidates: Candidates,
    *,
    pool: ClientPool,
    scores: torch.Tensor,
) -> None:
    """DPO on a round's scores; its adapter and facts in a folder that is whole or not there.

    The shuffled control permutes each prompt's scores, so that its pairs are of the same texts in random order.
    """
    config, number = configure(settings, cell), int(kept.name)
    if cell.condition == "popri-shuffled":
        scores = shuffled(scores, per_prompt=config.candidates.per_prompt, seed=[cell.seed, number])
    facts = round_facts(settings, cell, pool, candidates, scores)
    with temporary(kept, folder=True) as part:
        trainer = part / "trainer"
        adapter, pairs = rounds.prefer(base, adapter, candidates, scores, config=config, round=number, folder=trainer)
        shutil.rmtree(trainer, ignore_errors=True)
        save_adapter(part / _ADAPTER, adapter)
        (part / _FACTS).write_text(json.dumps(facts | pairs) + "\n")


def rounds_folder(settings: Settings, cell: Cell) -> Path:
    """Where a cell keeps its finished rounds until it is done."""
    return settings.cache / "rounds" / f"{cell.name}-{digest_of(settings, cell)}"


def round_facts(
    settings: Settings, cell: Cell, pool: ClientPool, candidates: Candidates, scores: torch.Tensor
) -> dict[str, Any]:
    """How near a round's candidates come to held-out clients, how far they spread, how many pairs survive noise."""
    config = configure(settings, cell)
    pairs = preference_pairs(
        scores.numpy(),
        per_prompt=config.candidates.per_prompt,
        rejected_rank=config.preferences.rejected_rank,
    )
    return {
        **distance(settings, candidates.embeddings),
        "medoid_distance": median_distance_to_medoid(candidates.embeddings),
        "recovery": recovery_rate(pairs, unclipped_scores(pool, candidates, config)),
    }


def shuffled(scores: torch.Tensor, *, per_prompt: int, seed: Sequence[int]) -> torch.Tensor:
    """Each prompt's scores in a random order."""
    by_prompt = scores.numpy().reshape(-1, per_prompt)
    return torch.from_numpy(np.random.default_rng(list(seed)).permuted(by_prompt, axis=1).reshape(-1))
