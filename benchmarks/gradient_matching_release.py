"""Targets for the gradient-matching benchmark: noised under a simulated charge, or exact.

The text is public and nothing made here is exported: a simulation is recorded in the ledger, not counted. Exact sums,
and what compares with them, read real rows that no mechanism stands before: internal.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gradient_matching_data import (
    DATASETS,
    Cell,
    Settings,
    configure,
    read,
    save,
    space_of,
    states,
    taken,
    words_key,
)
from simulation import charge, model_of, noise_facts, register
from torch import Tensor

from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.method import charged_settings
from understudy.methods.gradient_matching.method import queries as queries_of
from understudy.methods.gradient_matching.queries import schedule_of, signal_to_noise_bound
from understudy.methods.gradient_matching.release import Target
from understudy.methods.gradient_matching.targets import clipped_sum, factors
from understudy.privacy.accounting import default_delta
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.queries import Queries

_ROWS_AT_A_TIME = 256


def exact_sums(settings: Settings, cell: Cell, config: GradientMatchingConfig) -> Tensor:
    """Sums of clipped gradients of each label's rows before any noise, `(K, *shape)` float32; internal."""
    space, base = space_of(config, cell.dataset, seed=config.public_seed), model_of(config.model)
    chosen = torch.from_numpy(taken(settings, cell))
    hidden, labels = states(settings, cell), torch.from_numpy(read(settings.data, cell.dataset, "train").labels)
    total: Tensor | None = None
    for part in chosen.split(_ROWS_AT_A_TIME):
        with torch.no_grad():
            left, right = factors(space, hidden[part], base.model.get_output_embeddings()(hidden[part]), labels[part])
        valid = torch.ones(len(part), dtype=torch.bool)
        total = clipped_sum(space, left, right, labels[part], valid, config.target.l2_clip_norm, into=total)
    assert total is not None, "every cell that releases reads at least one row"
    return total.float()


def yardstick(settings: Settings, cell: Cell) -> Target:
    """The exact head gradient of all training rows: one measure for every condition and target kind; internal."""
    head = Cell(cell.dataset, "yardstick", None, target="head", seed=cell.seed if settings.about else 0)
    config = configure(settings, head)
    path = settings.cache / f"{cell.dataset}-head-{model_of(config.model).digest[:8]}{words_key(settings, head)}.npy"
    if not path.exists():
        save(path, exact_sums(settings, head, config).numpy())
    return as_target(torch.from_numpy(np.load(path)), config, cell.dataset)


def release(settings: Settings, cell: Cell, config: GradientMatchingConfig) -> tuple[Target, dict[str, Any]]:
    """Charge a simulation and release the target through the interface, as `release_target` does; with its facts."""
    n = len(taken(settings, cell))
    queries = queries_of(config, n=n, epsilon=cell.epsilon, delta=default_delta(n))
    schedule, mechanisms = schedule_of(queries), charged(settings, cell, config, queries)
    exact = exact_sums(settings, cell, config)
    released = mechanisms.gaussian_sum(
        {f"label-{index:04d}": part for index, part in enumerate(exact)},
        sensitivity=schedule.l2_clip_norm,
        noise_multiplier=schedule.noise_multiplier,
        step=0,
        purpose="target",
    )
    noised = torch.stack(list(released.values()))
    dimension = space_of(config, cell.dataset, seed=config.public_seed).dimension
    bound = signal_to_noise_bound(noise_multiplier=schedule.noise_multiplier, n=n, dimension=dimension)
    cosines = torch.nn.functional.cosine_similarity(exact.flatten(1), noised.flatten(1), dim=1)
    facts = {
        **noise_facts(queries, n=n, epsilon=cell.epsilon),
        "noise_multiplier": schedule.noise_multiplier,
        "target_dimension": dimension,
        "signal_to_noise_bound": bound if math.isfinite(cell.epsilon) else None,
        "target_cosines": cosines.tolist(),  # released with exact, per label; internal
    }
    return as_target(noised, config, cell.dataset), facts


def charged(
    settings: Settings, cell: Cell, config: GradientMatchingConfig, queries: Queries, *words: str
) -> Mechanisms:
    """Charge a simulation of a list of queries; further words tell requests of one cell apart."""
    return charge(
        source_name(cell),
        unit="example",
        n=len(taken(settings, cell)),
        epsilon=cell.epsilon,
        queries=queries,
        request=(cell.name, *words, charged_settings(config).model_dump_json()),
    )


def as_target(stacked: Tensor, config: GradientMatchingConfig, dataset: str) -> Target:
    """Sums as `match_shard` takes them."""
    assert config.length != "as_in_data", "the benchmark's texts have a public length"
    return Target(
        tensors=dict(zip(DATASETS[dataset].label_names, stacked, strict=True)),
        length=config.length,
        model_digest=model_of(config.model).digest,
        settings=charged_settings(config),
    )


def source_name(cell: Cell) -> str:
    """The ledger's source of a cell: each number of rows is a table of its own."""
    return f"benchmark-{cell.dataset}-{'all' if cell.real is None else cell.real}"


def register_source(settings: Settings, cell: Cell) -> None:
    """The cell's source as the ledger knows it."""
    n = len(taken(settings, cell))
    register(source_name(cell), unit="example", n=n, label_names=DATASETS[cell.dataset].label_names)
