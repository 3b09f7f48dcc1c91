"""What each arm of the preference-optimisation benchmark does, and what is measured of it.

Every arm ends in as many synthetic texts; the same downstream model is tuned on them and tested on held-out clients.
Private Evolution prompts and samples exactly as POPri does (`candidates`), so that only the use of scores differs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finished_cells import aside
from preference_optimization_data import (
    PAPER_PROMPTS,
    PAPER_ROUNDS,
    Cell,
    FloatArray,
    Settings,
    charge,
    clients_of,
    configure,
    digest_of,
    downstream_config,
    encoder,
    evolution_config,
    first_candidates,
    model_of,
    noise_facts,
    planned,
    population_pool,
    seed_texts,
    unseen,
)

from understudy.baselines import private_evolution, supervised
from understudy.baselines.votes import Samples
from understudy.evaluation import fidelity
from understudy.evaluation.medoid import median_distance_to_medoid
from understudy.evaluation.next_token import fine_tune, score_clients
from understudy.methods.preference_optimization import rounds
from understudy.methods.preference_optimization.candidates import continue_prompts, round_prompts
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.policy import Adapter, load_adapter, load_policy, save_adapter
from understudy.methods.preference_optimization.pool import ClientPool
from understudy.methods.preference_optimization.preferences import preference_pairs, recovery_rate
from understudy.methods.preference_optimization.queries import SENSITIVITY, Plan, signal_to_noise
from understudy.methods.preference_optimization.release import release_scores, scores_without_noise
from understudy.methods.preference_optimization.scoring import as_query, unclipped_mean
from understudy.models.loading import LoadedModel, load_model
from understudy.privacy.accounting import default_delta
from understudy.privacy.mechanisms import Gateway

_ADAPTER, _FACTS = "adapter.safetensors", "facts.json"


def figures(settings: Settings, cell: Cell) -> dict[str, Any]:
    """All figures of a cell; synthetic texts under `texts`, which is never published."""
    if cell.arm == "recovery":
        return recovery(settings, cell)
    texts: Sequence[str]
    facts: dict[str, Any] = {}
    if cell.arm in ("popri", "popri-shuffled"):
        texts, facts = popri(settings, cell)
    elif cell.arm in ("pe", "pe+sft"):
        texts, facts = evolution(settings, cell)
    elif cell.arm == "real":
        texts = clients_of(settings, "train").samples
    elif cell.arm == "epsilon-0":
        texts = seed_texts(settings)[:1]  # not tuned on
    else:  # prompt-only: what the public model writes
        texts = write(settings, cell, model_of(configure(settings, cell).model))
    if cell.arm not in ("epsilon-0", "real"):
        facts["final"] = distance(settings, encoder().encode(list(texts)))
        facts["texts"] = list(texts)
    return facts | {"rows": len(texts)} | next_token(settings, cell, texts)


def popri(settings: Settings, cell: Cell) -> tuple[list[str], dict[str, Any]]:
    """T rounds of candidates, noisy scores and DPO; a killed cell goes on after its last whole round.

    The shuffled control permutes each prompt's scores, so that its pairs are of the same texts in random order.
    """
    config, plan = configure(settings, cell), planned(settings, cell)
    gateway = charge(settings, cell, queries=plan.queries, what="scores")
    pool = population_pool(settings, cell.population, cell.seed, samples=config.scoring.scorer == "histogram")
    base, folder = model_of(config.model), rounds_folder(settings, cell)
    adapter: Adapter | None = None
    found: list[dict[str, Any]] = []
    for number in range(config.rounds):
        kept = folder / str(number)
        if not kept.exists():
            policy = load_policy(base, adapter, alpha=config.preferences.lora_alpha)
            candidates = first_candidates(settings, cell)
            if number:
                candidates = rounds.propose(
                    policy,
                    seed_texts(settings),
                    config=config,
                    label_names=(),
                    round=number,
                    encode=encoder().encode,
                )
            scores = release_scores(
                pool, candidates.embeddings, labels=None, config=config, plan=plan, gateway=gateway, round=number
            )
            if cell.arm == "popri-shuffled":
                scores = shuffled(scores, per_prompt=config.candidates.per_prompt, seed=[cell.seed, number])
            facts = round_facts(settings, cell, pool, candidates.embeddings, scores)
            with aside(kept, folder=True) as part:
                trainer = part / "trainer"
                adapter, pairs = rounds.prefer(
                    base, adapter, candidates, scores, config=config, round=number, folder=trainer
                )
                shutil.rmtree(trainer, ignore_errors=True)
                save_adapter(part / _ADAPTER, adapter)
                (part / _FACTS).write_text(json.dumps(facts | pairs) + "\n")
        adapter = load_adapter(kept / _ADAPTER)
        found.append(json.loads((kept / _FACTS).read_text()))
    texts = write(settings, cell, load_policy(base, adapter, alpha=config.preferences.lora_alpha))
    return texts, {
        "rounds": found,
        "signal_to_noise_bound": str(signal_to_noise(plan, candidates=settings.prompts * settings.per_prompt)),
        **noise_facts(cell, plan.event, plan.noise_multiplier),
    }


def rounds_folder(settings: Settings, cell: Cell) -> Path:
    """Where a cell keeps its finished rounds until it is done."""
    return settings.cache / "rounds" / f"{cell.name}-{digest_of(settings, cell)}"


def round_facts(
    settings: Settings, cell: Cell, pool: ClientPool, embeddings: FloatArray, scores: torch.Tensor
) -> dict[str, Any]:
    """How near a round's candidates come to held-out clients, how far they spread, how many pairs survive noise."""
    config = configure(settings, cell)
    everyone = np.ones(pool.slots, dtype=bool)
    pairs = preference_pairs(
        scores.numpy(),
        per_prompt=config.candidates.per_prompt,
        rejected_rank=config.preferences.rejected_rank,
    )
    return {
        **distance(settings, embeddings),
        "medoid_distance": median_distance_to_medoid(embeddings),
        "recovery": recovery_rate(pairs, unclipped_mean(pool.means, embeddings, everyone)),
    }


def distance(settings: Settings, embeddings: FloatArray) -> dict[str, Any]:
    """Frechet distance to held-out samples beside that of real samples to real ones, split by split.

    All sets have one size, the same in every round and arm: the estimate depends on it.
    """
    real = unseen(settings)
    rows = min(len(real) // 2, settings.prompts * settings.per_prompt, settings.samples)
    real = real[np.random.default_rng(0).permutation(len(real))[: 2 * rows]]
    found = [
        fidelity.compare(fidelity.frechet_distance, embeddings, real, seed=split, splits=1)
        for split in range(settings.splits)
    ]
    return {
        "frechet": [one.value for one in found],
        "frechet_floor": [one.reference for one in found],
        "frechet_rows": [one.rows for one in found],
    }


def shuffled(scores: torch.Tensor, *, per_prompt: int, seed: Sequence[int]) -> torch.Tensor:
    """Each prompt's scores in a random order."""
    by_prompt = scores.numpy().reshape(-1, per_prompt)
    return torch.from_numpy(np.random.default_rng(list(seed)).permuted(by_prompt, axis=1).reshape(-1))


def write(settings: Settings, cell: Cell, policy: LoadedModel) -> list[str]:
    """As many texts as are wanted, one per prompt of public seeds."""
    table, _ = rounds.write_texts(
        policy, seed_texts(settings), config=configure(settings, cell), label_names=(), trained=False
    )
    texts: list[str] = table["text"].to_pylist()
    return texts


def evolution(settings: Settings, cell: Cell) -> tuple[list[str], dict[str, Any]]:
    """Private Evolution: the last survivors as examples of further prompts, or as texts to fine-tune on."""
    config, (last, facts) = configure(settings, cell), evolved(settings, cell)
    if cell.arm == "pe":
        prompts = private_evolution.next_prompts(
            last,
            settings.samples,
            config=evolution_config(settings, cell),
            round=config.rounds,
            to_prompt=lambda examples: prompt_of(settings, cell, examples),
        )
        return generate(settings, cell, prompts, 1, config.rounds), facts
    survivors = [text for text in last.survivors if text]
    prompts = round_prompts(
        seed_texts(settings),
        config.candidates.model_copy(update={"prompts": len(survivors)}),
        loaded=model_of(config.model),
        round=config.rounds - 1,
        public_seed=cell.seed,
    )
    tuned = supervised.fine_tune(
        load_model(config.model),
        # A text begins with the space that follows the prompt's colon.
        [(prompt, f" {text}") for prompt, text in zip(prompts, survivors, strict=True)],
        config=supervised.SupervisedConfig(),
        public_seed=cell.seed,
    )
    return write(settings, cell, tuned), {name: fact for name, fact in facts.items() if name != "rounds"}


def evolved(settings: Settings, cell: Cell) -> tuple[private_evolution.Generation, dict[str, Any]]:
    """The last generation and its facts; one run for both arms that need it, kept in the cache."""
    shared = Cell("pe", cell.epsilon, cell.population, cell.seed)
    path = settings.cache / f"survivors-{digest_of(settings, shared)}-{shared.name}.json"
    if not path.exists():
        config = evolution_config(settings, shared)
        plan = private_evolution.plan(
            config, n=cell.population, epsilon=cell.epsilon, delta=default_delta(cell.population)
        )
        pool = population_pool(settings, cell.population, cell.seed, samples=True)
        seen: list[FloatArray] = []

        def embed(texts: Sequence[str]) -> FloatArray:
            seen.append(encoder().encode(list(texts)))
            return seen[-1]

        history = private_evolution.evolve(
            Samples(pool.embeddings, pool.owner, pool.slots),
            seed_texts(settings),
            config=config,
            plan=plan,
            gateway=charge(settings, shared, queries=plan.queries, what="votes"),
            generate=lambda prompts, count, number: generate(settings, shared, prompts, count, number),
            embed=embed,
            to_prompt=lambda examples: prompt_of(settings, shared, examples),
        )
        facts = {
            "rounds": [
                distance(settings, embeddings)
                | {"medoid_distance": median_distance_to_medoid(embeddings), "survivors": len(generation.survivors)}
                for generation, embeddings in zip(history, seen, strict=True)
            ],
            **noise_facts(shared, plan.event, plan.streams[0].noise_multiplier),
        }
        last = history[-1]
        with aside(path) as part:
            part.write_text(
                json.dumps({"texts": last.texts, "probabilities": last.probabilities.tolist(), "facts": facts})
            )
    found = json.loads(path.read_text())
    return private_evolution.Generation(tuple(found["texts"]), np.array(found["probabilities"])), found["facts"]


def prompt_of(settings: Settings, cell: Cell, examples: Sequence[str]) -> str:
    """The method's own prompt around given examples; public seeds take the place of examples without words."""
    config = configure(settings, cell)
    shown = [text for text in examples if text.strip()] or list(seed_texts(settings)[: len(examples)])
    shape = config.candidates.model_copy(update={"prompts": 1, "seeds_per_prompt": len(shown)})
    return round_prompts(shown, shape, loaded=model_of(config.model), round=0, public_seed=cell.seed)[0]


def generate(settings: Settings, cell: Cell, prompts: Sequence[str], count: int, number: int) -> list[str]:
    """Continuations by the public model, as the method draws them."""
    config = configure(settings, cell)
    return continue_prompts(
        model_of(config.model),
        prompts,
        per_prompt=count,
        sampling=config.candidates.sampling,
        public_seed=cell.seed,
        round=number,
    )


def next_token(settings: Settings, cell: Cell, texts: Sequence[str]) -> dict[str, Any]:
    """Tokens predicted right of each held-out client, after tuning on the texts; epsilon 0 is not tuned."""
    config = downstream_config(settings)
    if cell.arm == "epsilon-0":
        config = config.model_copy(update={"epochs": 0})
    tuned = fine_tune(texts, config=config, seed=cell.seed)
    held_out = [samples for _, samples in clients_of(settings, "test").by_slot()]
    found = score_clients(tuned, held_out, max_length=config.max_length)
    return {"tokens": found.tokens.tolist(), "correct": found.correct.tolist(), "loss": found.loss.tolist()}


def recovery(settings: Settings, cell: Cell) -> dict[str, Any]:
    """How many preferences of the first round survive the noise of one round out of T; no training.

    The first round's candidates are scored T times under one charge of T rounds, each time with other noise. `paper`:
    the same prompts as if among the paper's 1800 in 20 rounds. Standardised, a client's say is shared out equally over
    prompts, so that its scores of these are exactly sqrt(K / 1800) times what they are among K.
    """
    plan = planned(settings, cell)
    pool = population_pool(settings, cell.population, cell.seed)
    embeddings = first_candidates(settings, cell).embeddings
    bound = signal_to_noise(plan, candidates=settings.prompts * settings.per_prompt)
    facts: dict[str, Any] = {"signal_to_noise_bound": str(bound)} | noise_facts(cell, plan.event, plan.noise_multiplier)
    for name, normalise in (("standardise", "standardise"), ("none", "none"), ("paper", "standardise")):
        config = configure(settings, cell)
        scoring = config.scoring.model_copy(update={"normalise": normalise, "over": "within", "scorer": "cosine"})
        everyone = np.ones(cell.population, dtype=bool)
        exact = scores_without_noise(
            pool, embeddings, everyone, labels=None, config=config.model_copy(update={"scoring": scoring})
        )
        used = plan
        if name == "paper":
            used = planned(settings, cell, rounds=PAPER_ROUNDS)
            exact = exact * np.sqrt(settings.prompts / PAPER_PROMPTS)
        query = as_query(exact, slots=cell.population)
        wanted = unclipped_mean(pool.means, embeddings, everyone)
        gateway = charge(settings, cell, queries=used.queries, what=f"recovery {name}")
        facts[name] = survivors(query, wanted, plan=used, gateway=gateway, config=config)
    return facts


def survivors(
    query: FloatArray,
    wanted: np.ndarray[Any, np.dtype[np.float64]],
    *,
    plan: Plan,
    gateway: Gateway,
    config: PreferenceOptimizationConfig,
) -> dict[str, Any]:
    """Recovery rates against the unclipped scores, and against the query itself, once per round of noise."""
    rates, own = [], []
    for step in range(plan.rounds):
        noisy = gateway.gaussian_sum(
            {"scores": torch.from_numpy(query)},
            sensitivity=SENSITIVITY,
            noise_multiplier=plan.noise_multiplier,
            step=step,
            purpose="scores",
        )["scores"].numpy()
        pairs = preference_pairs(
            noisy, per_prompt=config.candidates.per_prompt, rejected_rank=config.preferences.rejected_rank
        )
        rates.append(recovery_rate(pairs, wanted))
        own.append(recovery_rate(pairs, query))
    norm = float(np.linalg.norm(query))
    return {"recovery": rates, "own_recovery": own, "norm": norm, "noise_multiplier": plan.noise_multiplier}
