"""The clients, public declarations and caches that the cells of the preference-optimisation benchmark share.

The embeddings of real clients in the cache are internal: nothing made here is exported.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from cells import short_digest, temporary
from simulation import charge, model_of, register

from understudy.baselines.private_evolution import EvolutionConfig
from understudy.baselines.supervised import SupervisedConfig
from understudy.evaluation.utility.next_token import NextTokenConfig
from understudy.methods.preference_optimization.clients import Clients, build_clients
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.method import queries as queries_of
from understudy.methods.preference_optimization.method import resolve
from understudy.methods.preference_optimization.pool import ClientPool, build_pool, load_pool, save_pool
from understudy.methods.preference_optimization.queries import QuerySchedule, schedule_of
from understudy.methods.preference_optimization.rounds import propose
from understudy.methods.preference_optimization.stored import Candidates, load_candidates, save_candidates
from understudy.privacy.accounting import default_delta
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.queries import Queries
from understudy.runs.overrides import apply_overrides

FloatArray = npt.NDArray[np.float32]
PAPER_PROMPTS, PAPER_ROUNDS = 1800, 20


@dataclass(frozen=True)
class Settings:
    """What all cells of one run have in common.

    Attributes:
        data: folder with pubmed_abstracts and public_text.
        cache: folder of finished cells and of what they share.
        clients: first clients of the training file; fewer for a trial.
        prompts: K.
        per_prompt: J.
        rounds: T.
        tokens: of a candidate at most.
        rejected_rank: l.
        samples: synthetic texts that a downstream model is trained on.
        epochs: of the downstream model.
        splits: random halves of the held-out samples that a Frechet distance is computed on.
        overrides: further settings of the method, `path=value`.
    """

    data: Path
    cache: Path
    clients: int = 750
    prompts: int = 64
    per_prompt: int = 10
    rounds: int = 6
    tokens: int = 48
    rejected_rank: int = 5
    samples: int = 1000
    epochs: int = 2
    splits: int = 5
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One line of work.

    Attributes:
        condition: what is done.
        epsilon: of all rounds together; infinite where nothing is noised, 0 where no private text is read.
        population: client slots; more than there are clients: drawn from them with replacement.
        seed: of everything public, and of which clients are drawn.
    """

    condition: str
    epsilon: float
    population: int
    seed: int = 0

    @property
    def name(self) -> str:
        """A file name."""
        return f"{self.condition.replace('+', '-')}-eps-{self.epsilon:g}-clients-{self.population}-seed-{self.seed}"


def configure(settings: Settings, cell: Cell) -> PreferenceOptimizationConfig:
    """The method's settings of a cell; its defaults but for what is asked for."""
    config = PreferenceOptimizationConfig.model_validate(
        {
            "samples": settings.samples,
            "public_seed": cell.seed,
            "rounds": settings.rounds,
            "seeds": str(settings.data / "public_text" / "train.parquet"),
            "candidates": {
                "prompts": settings.prompts,
                "per_prompt": settings.per_prompt,
                "sampling": {"max_new_tokens": settings.tokens, "top_p": 1.0},
            },
            "preferences": {"rejected_rank": settings.rejected_rank},
        }
    )
    return resolve(apply_overrides(config, list(settings.overrides)), settings.clients)


def evolution_config(settings: Settings, cell: Cell) -> EvolutionConfig:
    """Private Evolution with as many rounds and candidates as the method."""
    config = configure(settings, cell)
    return EvolutionConfig(
        rounds=config.rounds,
        prompts=config.candidates.prompts,
        per_prompt=config.candidates.per_prompt,
        examples_per_prompt=config.candidates.examples or 3,
        sampling_probability=config.clients.sampling_probability,
        public_seed=cell.seed,
    )


def downstream_config(settings: Settings) -> NextTokenConfig:
    """The model whose next tokens count."""
    return NextTokenConfig(profile="tiny", epochs=settings.epochs)


def digest_of(settings: Settings, cell: Cell) -> str:
    """Short digest of every setting that a cell's figures depend on: a cell of other settings is done again."""
    config, downstream = configure(settings, cell), downstream_config(settings)
    facts = {
        "config": config.model_dump(mode="json", exclude={"seeds", "model_digest"}),  # a path says nothing
        "evolution": evolution_config(settings, cell).model_dump() if cell.condition.startswith("pe") else None,
        "supervised": SupervisedConfig().model_dump() if cell.condition == "pe+sft" else None,
        "downstream": None if cell.condition == "recovery" else downstream.model_dump(),
        "paper": [PAPER_PROMPTS, PAPER_ROUNDS] if cell.condition == "recovery" else None,
        "splits": settings.splits,
        "clients": settings.clients,
        "models": [model_of(config.model).digest, model_of(downstream.base).digest],
    }
    return short_digest(facts)


@lru_cache(maxsize=1)
def encoder() -> Any:
    """The sentence encoder that scores and distances use."""
    from understudy.evaluation.texts.encoder import load_encoder

    return load_encoder()


@lru_cache(maxsize=4)
def read(settings: Settings, split: str) -> pa.Table:
    """Rows of the first clients of a split; held-out clients are limited in proportion."""
    table = pq.read_table(settings.data / "pubmed_abstracts" / f"{split}.parquet")
    most = settings.clients if split == "train" else max(4, round(settings.clients * 100 / 750))
    first = list(dict.fromkeys(table["client_id"].to_pylist()))[:most]
    if split == "train" and len(first) < most:
        raise SystemExit(f"--clients {most}: expected at most {len(first)}, the clients of {split}.parquet")
    return table.filter(pc.is_in(table["client_id"], pa.array(first)))


@lru_cache(maxsize=1)
def seed_texts(settings: Settings) -> tuple[str, ...]:
    """The public texts that prompts show."""
    return tuple(pq.read_table(settings.data / "public_text" / "train.parquet")["text"].to_pylist())


@lru_cache(maxsize=2)
def clients_of(settings: Settings, split: str) -> Clients:
    """Clients and their samples."""
    config = configure(settings, Cell("shared", math.inf, settings.clients))
    return build_clients(read(settings, split), model_of(config.model).tokenizer, config.clients.sample_tokens)


@lru_cache(maxsize=1)
def real_pool(settings: Settings) -> ClientPool:
    """Embeddings of the real clients, computed once."""
    folder = settings.cache / f"clients-{settings.clients}"
    if not folder.exists():
        config = configure(settings, Cell("shared", math.inf, settings.clients))
        pool = build_pool(
            read(settings, "train"),
            config=config,
            classes=0,
            tokenizer=model_of(config.model).tokenizer,
            encode=encoder().encode,
            dimension=encoder().dimension,
        )
        with temporary(folder, folder=True) as part:
            save_pool(pool, part)
    return load_pool(folder)


@lru_cache(maxsize=1)
def population_pool(settings: Settings, population: int, seed: int, *, samples: bool = False) -> ClientPool:
    """The clients of a simulated population: slots hold clients drawn with replacement, so only scoring changes.

    Two slots with the same text are two clients to every mechanism. The real population is the clients as they are.

    Args:
        settings: which clients there are.
        population: slots.
        seed: of the draw.
        samples: whether embeddings of samples are wanted too; the cosine scorer needs means only.
    """
    pool = real_pool(settings)
    if population == pool.slots:
        return pool
    drawn = np.random.default_rng([seed, population]).integers(pool.slots, size=population)
    if not samples:
        return replace(pool, means=pool.means[drawn], embeddings=pool.embeddings[:0], owner=pool.owner[:0])
    counts = np.bincount(pool.owner, minlength=pool.slots)
    first = np.cumsum(counts) - counts
    rows = np.concatenate([np.arange(first[i], first[i] + counts[i]) for i in drawn])
    owner = np.repeat(np.arange(population, dtype=np.int64), counts[drawn])
    return ClientPool(pool.means[drawn], pool.embeddings[rows], owner, None)


@lru_cache(maxsize=1)
def unseen(settings: Settings) -> FloatArray:
    """(N, d) embeddings of the held-out clients' samples."""
    path = settings.cache / f"unseen-{settings.clients}.npy"
    if not path.exists():
        found = encoder().encode(clients_of(settings, "test").samples)
        with temporary(path) as part, part.open("wb") as file:
            np.save(file, found)
    loaded: FloatArray = np.load(path)
    return loaded


def first_candidates(settings: Settings, cell: Cell) -> Candidates:
    """Round 0 of a seed, which no private text has touched: one for every epsilon and population."""
    shape = configure(settings, cell).model_copy(update={"rounds": 1, "samples": 1})
    digest = hashlib.sha256(f"{shape.candidates} {shape.model} {settings.data.name}".encode()).hexdigest()[:8]
    folder = settings.cache / f"candidates-{digest}-seed-{cell.seed}"
    if not folder.exists():
        found = propose(
            model_of(shape.model),
            seed_texts(settings),
            config=shape,
            label_names=(),
            round=0,
            encode=encoder().encode,
        )
        with temporary(folder, folder=True) as part:
            save_candidates(found, part)
    return load_candidates(folder)


def charged(settings: Settings, cell: Cell, *, queries: Queries, what: str) -> Mechanisms:
    """Charge a simulation: one source for each number of clients."""
    n = cell.population
    register(f"benchmark-{n}", unit="client", n=n)
    return charge(
        f"benchmark-{n}",
        unit="client",
        n=n,
        epsilon=cell.epsilon,
        queries=queries,
        request=(f"{what} {cell.name}", digest_of(settings, cell)),
    )


def planned(settings: Settings, cell: Cell, *, rounds: int | None = None) -> QuerySchedule:
    """The method's list of queries for a cell, for another number of rounds if given."""
    config, n = configure(settings, cell), cell.population
    config = config.model_copy(update={"rounds": rounds or config.rounds})
    return schedule_of(queries_of(config, n=n, epsilon=cell.epsilon, delta=default_delta(n)))
