"""Claim: the tiny profile's learning rate, epochs and way to standardise are the best of those tried on public text.

    python benchmarks/preference_defaults.py --data ../shared/data --cache out/preference-defaults

Public text stands in for private clients. DPO: the candidates of 32 prompts of 6 texts are ranked, without noise, by
their cosine to the mean of 150 public responses; a setting is good if that cosine rises over three rounds and the texts
stay distinct. Scoring: the share of 64 prompts whose chosen text is still nearer to the clients than the rejected one
when scores are noised, 20 draws, by how scores are standardised. One seed; at most eleven minutes of one core.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from cells import Benchmark, Call, Value, arguments, complete, parse, settings_from, temporary
from simulation import model_of
from tables import Row, print_table, write_figures

from understudy.evaluation.texts.encoder import embed, load_encoder
from understudy.generation.config import SamplingConfig
from understudy.methods.preference_optimization.candidates import continue_prompts
from understudy.methods.preference_optimization.client_vectors import FloatArray, Rows, unit_rows
from understudy.methods.preference_optimization.config import (
    CandidateConfig,
    PreferenceConfig,
    PreferenceOptimizationConfig,
)
from understudy.methods.preference_optimization.dpo import train_round
from understudy.methods.preference_optimization.dpo_pairs import Pairs, encode_pairs
from understudy.methods.preference_optimization.prompts import RoundSeed, round_prompts
from understudy.methods.preference_optimization.queries import queries_of, schedule_of
from understudy.methods.preference_optimization.scoring import exact_sum
from understudy.models.adapters import with_adapter
from understudy.privacy.accounting import default_delta

MODEL = "tiny-llama"
SETTINGS = ((5e-4, 2), (5e-4, 4), (1e-3, 2), (1e-3, 4), (2e-3, 2))  # learning rate, epochs
ROUNDS, PROMPTS, PER_PROMPT, RESPONSES, WORDS = 3, 32, 6, 150, 45
WAYS = {
    "clipped only": {"normalise": "none", "over": "all"},
    **{over: {"normalise": "standardise", "over": over} for over in ("all", "within", "prompt")},
}


@dataclass(frozen=True)
class Cell:
    """One setting of DPO, or one population whose preferences meet noise.

    Attributes:
        condition: `dpo`, or the clients: `responses` or `public text`.
        epsilon: infinite for DPO.
        clients: their number; 0 for DPO.
        learning_rate: of DPO; else 0.
        epochs: of DPO; else 0.
        seed: of everything.
    """

    condition: str
    epsilon: float = math.inf
    clients: int = 0
    learning_rate: float = 0.0
    epochs: int = 0
    seed: int = 0

    @property
    def name(self) -> str:
        """A file name."""
        said = (
            f"{self.learning_rate:g}-x-{self.epochs}"
            if self.condition == "dpo"
            else f"{self.clients}-eps-{self.epsilon:g}"
        )
        return f"{self.condition.replace(' ', '-')}-{said}-seed-{self.seed}"


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(seeds=[0])
    options = parse(parser)
    noised = product(("responses", "public text"), (750, 100), (1.0, 7.0), options.seeds)
    cells = [
        *(Cell(condition, epsilon, clients, seed=seed) for condition, clients, epsilon, seed in noised),
        *(Cell("dpo", learning_rate=rate, epochs=epochs, seed=s) for s in options.seeds for rate, epochs in SETTINGS),
    ]
    found = complete(Benchmark(settings_from(Settings, options), figures, shared=shared), cells, options)
    tables = {"scoring": scoring_rows(found), "dpo": dpo_rows(found)}
    print_table(tables["scoring"], "Preferences that are right under noise")
    print_table(tables["dpo"], "DPO on public responses")
    write_figures(options.figures, tables)


@dataclass(frozen=True)
class Settings:
    """Where the public text lies, in public_text and public_instructions, and where finished cells do."""

    data: Path
    cache: Path


def figures(settings: Settings, cell: Cell) -> Value:
    """What a setting of DPO does, or how many preferences a population keeps."""
    return moved(settings, cell) if cell.condition == "dpo" else survival(settings, cell)


@lru_cache(maxsize=1)
def public_texts(data: Path) -> tuple[list[str], list[str]]:
    """Seeds of prompts, and responses."""
    seeds = pq.read_table(data / "public_text" / "train.parquet")["text"].to_pylist()
    return seeds, pq.read_table(data / "public_instructions" / "train.parquet")["response"].to_pylist()


@lru_cache(maxsize=1)
def encoder() -> Any:
    """The sentence encoder."""
    return load_encoder()


def shared(settings: Settings, cells: Sequence[Cell]) -> list[list[Call]]:
    """Candidates and clients of the noised cells."""
    noised = {(cell.condition, cell.seed) for cell in cells if cell.condition != "dpo"}
    calls = [partial(candidates, settings, seed) for seed in sorted({seed for _, seed in noised})]
    return [
        [
            *calls,
            *(partial(everyone, settings, condition) for condition in sorted({condition for condition, _ in noised})),
        ]
    ]


def kept(path: Path, texts: Sequence[str]) -> Rows:
    """Embeddings of texts, written once."""
    with temporary(path) as part, part.open("wb") as file:
        np.save(file, embed(list(texts), encoder()))
    found: Rows = np.load(path)
    return found


def candidates(settings: Settings, seed: int) -> Rows:
    """Embeddings of 64 prompts' 10 texts, from the cache or now."""
    path = settings.cache / f"candidates-seed-{seed}.npy"
    if path.exists():
        found: Rows = np.load(path)
        return found
    sampling = SamplingConfig(max_new_tokens=48, top_p=1.0)
    asked = CandidateConfig(prompts=64, per_prompt=10, seed_tokens=32, sampling=sampling)
    base = model_of(MODEL)
    prompts = round_prompts(public_texts(settings.data)[0], asked, loaded=base, seed=RoundSeed(0, seed))
    policy = with_adapter(base, None, alpha=32)
    return kept(path, continue_prompts(policy, prompts, asked, seed=RoundSeed(0, seed)))


def everyone(settings: Settings, condition: str) -> FloatArray:
    """Unit vectors of all that may be clients, from the cache or now."""
    path = settings.cache / f"{condition.replace(' ', '-')}-embedded.npy"
    if path.exists():
        return unit_rows(np.load(path))
    seeds, responses = public_texts(settings.data)
    owned = seeds[:1500] if condition == "public text" else [" ".join(text.split()[:100]) for text in responses]
    return unit_rows(kept(path, owned))


def survival(settings: Settings, cell: Cell) -> Value:
    """How many preferences are right under noise, for each way to standardise."""
    owned, texts = everyone(settings, cell.condition), candidates(settings, cell.seed)
    means = owned[np.random.default_rng(cell.seed).permutation(len(owned))[: cell.clients]]
    config = PreferenceOptimizationConfig(rounds=6)
    asked = queries_of(config, n=cell.clients, epsilon=cell.epsilon, delta=default_delta(cell.clients))
    noise = schedule_of(asked).noise_multiplier
    return {"shares": {name: survivors(means, texts, way, noise) for name, way in WAYS.items()}}


def survivors(means: FloatArray, texts: Rows, way: Mapping[str, str], noise: float) -> float:
    """Share of prompts whose noisy first is truly nearer to the clients than the noisy fifth."""
    truth = (means @ unit_rows(texts).T).mean(0).reshape(64, 10)
    mask = np.ones(len(means), dtype=bool)
    exact = exact_sum(means, texts, mask, per_prompt=10, **way)  # type: ignore[arg-type]
    found = []
    for draw in range(20):
        noisy = exact + noise * np.random.default_rng(draw).normal(size=exact.shape)
        order = np.argsort(-noisy.reshape(64, 10), axis=1)
        first, fifth = (np.take_along_axis(truth, order[:, rank, None], axis=1) for rank in (0, 4))
        found.append(np.mean(first > fifth))
    return float(np.mean(found))


def moved(settings: Settings, cell: Cell) -> Value:
    """Mean cosine to the responses' mean before the first round and after each, and how many last texts differ."""
    seeds, responses = public_texts(settings.data)
    wanted = embed([" ".join(text.split()[:WORDS]) for text in responses[:RESPONSES]], encoder())
    target, adapter, cosines = wanted.mean(0), None, []
    config = PreferenceConfig(learning_rate=cell.learning_rate, epochs=cell.epochs)
    sampling, base = SamplingConfig(max_new_tokens=32, top_p=1.0), model_of(MODEL)
    asked = CandidateConfig(prompts=PROMPTS, per_prompt=PER_PROMPT, seed_tokens=32, sampling=sampling)
    for number in range(ROUNDS + 1):
        prompts = round_prompts(seeds, asked, loaded=base, seed=RoundSeed(number, cell.seed))
        policy = with_adapter(base, adapter, alpha=config.lora_alpha)
        texts = continue_prompts(policy, prompts, asked, seed=RoundSeed(number, cell.seed))
        scores = (embed(texts, encoder()) @ target).reshape(PROMPTS, PER_PROMPT)
        cosines.append(float(scores.mean()))
        if number < ROUNDS:
            rows = encode_pairs(base, pairs_of(prompts, texts, scores, rank=config.rejected_rank))
            with tempfile.TemporaryDirectory() as folder:
                adapter = train_round(
                    base, adapter, rows=rows, config=config, public_seed=cell.seed, round=number, folder=Path(folder)
                )
    own = float((wanted @ target).mean())
    return {"cosines": cosines, "distinct": len(set(texts)), "cosine_of_a_response": own}


def pairs_of(prompts: Sequence[str], texts: Sequence[str], scores: FloatArray, *, rank: int) -> Pairs:
    """Each prompt's first text before the one of the given rank."""
    order = np.argsort(-scores, axis=1)
    first, rejected = (
        [texts[k * PER_PROMPT + order[k, place]] for k in range(len(prompts))] for place in (0, rank - 1)
    )
    return Pairs(list(prompts), first, rejected)


def scoring_rows(found: Mapping[Cell, Value]) -> list[Row]:
    """One row per population and epsilon."""
    return [
        {"clients": f"{cell.clients} {cell.condition}", "epsilon": f"{cell.epsilon:g}"}
        | {way: f"{share:.3f}" for way, share in value["shares"].items()}
        for cell, value in found.items()
        if cell.condition != "dpo"
    ]


def dpo_rows(found: Mapping[Cell, Value]) -> list[Row]:
    """One row per learning rate and number of epochs."""
    return [
        {
            "learning rate": f"{cell.learning_rate:g}",
            "epochs": str(cell.epochs),
            "mean cosine per round": ", ".join(f"{cosine:.3f}" for cosine in value["cosines"]),
            "distinct at the end": f"{value['distinct']} of {PROMPTS * PER_PROMPT}",
            "a response's own cosine": f"{value['cosine_of_a_response']:.3f}",
        }
        for cell, value in found.items()
        if cell.condition == "dpo"
    ]


if __name__ == "__main__":
    main()
