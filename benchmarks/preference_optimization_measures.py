"""What every condition of the preference-optimisation benchmark ends in: its texts, and what is measured of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from preference_optimization_data import (
    Cell,
    FloatArray,
    Settings,
    clients_of,
    configure,
    downstream_config,
    seed_texts,
    unseen,
)

from understudy.evaluation.texts import fidelity
from understudy.evaluation.utility.next_token import fine_tune, score_clients
from understudy.methods.preference_optimization import rounds
from understudy.models.loading import LoadedModel


def final_texts(settings: Settings, cell: Cell, policy: LoadedModel) -> list[str]:
    """As many texts as are wanted, one per prompt of public seeds."""
    table, _ = rounds.write_texts(
        policy, seed_texts(settings), config=configure(settings, cell), label_names=(), trained=False
    )
    texts: list[str] = table["text"].to_pylist()
    return texts


def distance(settings: Settings, embeddings: FloatArray) -> dict[str, Any]:
    """Frechet distance to held-out samples beside that of real samples to real ones, split by split.

    All sets have one size, the same in every round and condition: the estimate depends on it.
    """
    real = unseen(settings)
    rows = min(len(real) // 2, settings.prompts * settings.per_prompt, settings.samples)
    real = real[np.random.default_rng(0).permutation(len(real))[: 2 * rows]]
    found = [
        fidelity.compare(fidelity.FRECHET, {"": embeddings}, real, seed=split, splits=1)
        for split in range(settings.splits)
    ]
    return {
        "frechet": [one.sets[""].value for one in found],
        "frechet_floor": [one.reference.value for one in found],
        "frechet_rows": [one.reference.rows for one in found],
    }


def next_token(settings: Settings, cell: Cell, texts: Sequence[str]) -> dict[str, Any]:
    """Tokens predicted right of each held-out client, after tuning on the texts; epsilon 0 is not tuned."""
    config = downstream_config(settings)
    if cell.condition == "epsilon-0":
        config = config.model_copy(update={"epochs": 0})
    tuned = fine_tune(texts, config=config, seed=cell.seed)
    held_out = [samples for _, samples in clients_of(settings, "test").by_slot()]
    found = score_clients(tuned, held_out, max_length=config.max_length)
    return {"tokens": found.tokens.tolist(), "correct": found.correct.tolist(), "loss": found.loss.tolist()}
