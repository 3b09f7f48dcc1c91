"""The conditions of the trajectory-matching benchmark that see ag_news through a charge only, at one epsilon.

All of them tune on equally many rows, each a question about a text with its topic, that no row of ag_news is part of:

- `dp_carriers`: texts that the public model writes for each topic; nothing is asked of the private rows;
- `dp_mean_tokens`: the same rows behind k unlearned mean tokens; nothing is asked either;
- `dp_nacd`: the same rows behind pseudo tokens learned from an expert that DP-SGD trained;
- `dp_conditional`: texts of conditional generation at the same epsilon, at its defaults.

Trained states are kept in the cache; nothing made here is exported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from cells import short_digest, temporary

from understudy.data.private_rows import PrivateRows
from understudy.generation.instructions import Pair, PairEncoder
from understudy.methods.conditional_generation.class_sizes import sizes_of
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.fitting import train_on_table
from understudy.methods.conditional_generation.method import resolve
from understudy.methods.conditional_generation.queries import Asked, schedule_of
from understudy.methods.conditional_generation.queries import queries_of as conditional_queries
from understudy.methods.conditional_generation.synthesis import synthesize_stored, synthesize_untrained
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.experts import (
    Trajectory,
    expert_student,
    load_trajectory,
    save_trajectory,
    train_private_expert,
)
from understudy.methods.trajectory_matching.queries import plan_of_expert, queries_of
from understudy.models.loading import load_model
from understudy.privacy.accounting import default_delta
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.queries import Queries

CONDITIONS = ("dp_carriers", "dp_mean_tokens", "dp_nacd", "dp_conditional")
ABOUT = "short news reports"


def private_config(config: TrajectoryMatchingConfig) -> TrajectoryMatchingConfig:
    """The settings of a cell with experts under a charge."""
    experts = config.experts.model_copy(update={"private": True})
    return config.model_copy(update={"experts": experts, "carrier": "public"})


def private_expert(pairs: list[Pair], config: TrajectoryMatchingConfig, *, epsilon: float, cache: Path) -> Trajectory:
    """An expert by DP-SGD at the default delta: read, or trained from its last checkpoint."""
    asked = private_config(config)
    facts = {"config": asked.experts.model_dump(), "model": asked.model, "seed": asked.public_seed}
    name = short_digest({**facts, "length": asked.max_length, "epsilon": epsilon, "pairs": len(pairs)})
    folder = cache / f"private-expert-{name}"
    path = folder / "trajectory.safetensors"
    if not path.exists():
        queries = queries_of(asked, n=len(pairs), epsilon=epsilon, delta=default_delta(len(pairs)))
        base = load_model(asked.model)
        trajectory = train_private_expert(
            expert_student(base.model, asked, 0),
            PairEncoder(base.tokenizer, asked.template).encode(pairs, max_length=asked.max_length),
            asked,
            plan=plan_of_expert(asked, queries, 0),
            mechanisms=mechanisms_of(queries, name),
            folder=folder / "checkpoints",
        )
        save_trajectory(path, trajectory)
    return load_trajectory(path)


def mechanisms_of(queries: Queries, charge: str) -> Mechanisms:
    """The mechanisms of a simulated charge, with a key that is no secret: a cell is repeated with its own noise."""
    return Mechanisms(KeyMaterial(b"b" * 32, charge, b"t" * 32, queries))


def conditional_config(config: TrajectoryMatchingConfig, rows: int) -> ConditionalGenerationConfig:
    """Conditional generation at its defaults, of as many rows and tokens."""
    return ConditionalGenerationConfig.model_validate(
        {
            "model": config.model,
            "about": ABOUT,
            "samples": rows,
            "public_seed": config.public_seed,
            "train": {"max_length": config.max_length},
            "generate": {"sampling": {"max_new_tokens": config.max_length}},
        }
    )


def written(config: TrajectoryMatchingConfig, names: tuple[str, ...], *, rows: int, cache: Path) -> Any:
    """Texts of the public model with their topics, as a table: read, or drawn."""
    asked = conditional_config(config, rows)
    path = cache / f"written-{short_digest(asked.model_dump(mode='json'))}.parquet"
    if not path.exists():
        keep(path, synthesize_untrained(asked, names, sizes=sizes_of(asked, names, None)).table)
    return pq.read_table(path)


def conditional(
    texts: list[str],
    labels: list[int],
    names: tuple[str, ...],
    config: TrajectoryMatchingConfig,
    *,
    rows: int,
    epsilon: float,
    cache: Path,
) -> Any:
    """Texts of conditional generation with their topics, as a table: read, or made by a simulated charge."""
    asked, n = conditional_config(config, rows), len(texts)
    name = short_digest({"config": asked.model_dump(mode="json"), "epsilon": epsilon, "rows": n})
    path = cache / f"conditional-{name}.parquet"
    if not path.exists():
        asked = resolve(asked, n, names, epsilon)
        queries = conditional_queries(asked, n=n, epsilon=epsilon, delta=default_delta(n))
        charged = Asked(asked, schedule_of(queries), mechanisms_of(queries, name))
        keep(path, synthesize_stored(train_on_table(PrivateRows(texts, labels, names), charged), asked).table)
    return pq.read_table(path)


def keep(path: Path, table: Any) -> None:
    """Write a table as a whole or not at all."""
    with temporary(path) as part:
        pq.write_table(table, part)


def noise_of(config: TrajectoryMatchingConfig, *, rows: int, epsilon: float) -> dict[str, float]:
    """What a cell says about the charge of its expert."""
    delta = default_delta(rows)
    (query,) = queries_of(private_config(config), n=rows, epsilon=epsilon, delta=delta)
    return {"delta": delta, "noise_multiplier": query.noise_multiplier, "expert_steps": query.steps}
