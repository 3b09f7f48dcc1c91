"""Private Evolution and PE + SFT in the preference-optimisation benchmark.

They prompt and sample exactly as POPri does (`candidates`), so that only the use of scores differs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from cells import write
from preference_optimization_data import (
    Cell,
    FloatArray,
    Settings,
    charged,
    configure,
    digest_of,
    encoder,
    evolution_config,
    first_candidates,
    population_pool,
    seed_texts,
)
from preference_optimization_measures import distance, final_texts
from simulation import model_of, noise_facts

from understudy.baselines import private_evolution, supervised
from understudy.baselines.votes import Samples
from understudy.evaluation.texts.medoid import median_distance_to_medoid
from understudy.methods.preference_optimization.candidates import continue_prompts
from understudy.methods.preference_optimization.prompts import RoundSeed, round_prompts
from understudy.models.loading import load_model
from understudy.privacy.accounting import default_delta


def evolution(settings: Settings, cell: Cell) -> tuple[list[str], dict[str, Any]]:
    """Private Evolution: the last survivors as examples of further prompts, or as texts to fine-tune on."""
    config, (last, facts) = configure(settings, cell), evolved(settings, cell)
    if cell.condition == "pe":
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
        seed=RoundSeed(config.rounds - 1, cell.seed),
        about=config.about,
    )
    tuned = supervised.fine_tune(
        load_model(config.model),
        # In a list a text begins with the space that follows the prompt's colon.
        [
            (prompt, text if config.candidates.in_chat else f" {text}")
            for prompt, text in zip(prompts, survivors, strict=True)
        ],
        config=supervised.SupervisedConfig(),
        public_seed=cell.seed,
    )
    return final_texts(settings, cell, tuned), {name: fact for name, fact in facts.items() if name != "rounds"}


def evolved(settings: Settings, cell: Cell) -> tuple[private_evolution.Generation, dict[str, Any]]:
    """The last generation and its facts; one run for both conditions that need it, kept in the cache."""
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
            first_examples(settings, shared),
            config=config,
            plan=plan,
            mechanisms=charged(settings, shared, queries=plan.queries, what="votes"),
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
            "noise_multiplier": plan.streams[0].noise_multiplier,
            **noise_facts(plan.queries, n=shared.population, epsilon=shared.epsilon),
        }
        last = history[-1]
        write(path, {"texts": last.texts, "probabilities": last.probabilities.tolist(), "facts": facts})
    found = json.loads(path.read_text())
    return private_evolution.Generation(tuple(found["texts"]), np.array(found["probabilities"])), found["facts"]


def first_examples(settings: Settings, cell: Cell) -> Sequence[str]:
    """What the first prompts show: public seeds, or what the model writes without any where POPri's show none."""
    if configure(settings, cell).candidates.examples:
        return seed_texts(settings)
    return [text for text in first_candidates(settings, cell).table["text"].to_pylist() if text.strip()]


def prompt_of(settings: Settings, cell: Cell, examples: Sequence[str]) -> str:
    """The method's own prompt around given examples; public seeds take the place of examples without words."""
    config = configure(settings, cell)
    shown = [text for text in examples if text.strip()] or list(seed_texts(settings)[: len(examples)])
    shape = config.candidates.model_copy(update={"prompts": 1, "seeds_per_prompt": len(shown)})
    seed = RoundSeed(0, cell.seed)
    return round_prompts(shown, shape, loaded=model_of(config.model), seed=seed, about=config.about)[0]


def generate(settings: Settings, cell: Cell, prompts: Sequence[str], count: int, number: int) -> list[str]:
    """Continuations by the public model, as the method draws them."""
    config = configure(settings, cell)
    shape = config.candidates.model_copy(update={"per_prompt": count})
    return continue_prompts(model_of(config.model), prompts, shape, seed=RoundSeed(number, cell.seed))
