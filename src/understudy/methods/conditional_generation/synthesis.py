"""From a stored model to a synthetic table: class sizes, generation, filter. Post-processing, no private row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq

from understudy.artifacts.access import TABLE, VALUE
from understudy.compute import ON_CPU, Compute
from understudy.methods.conditional_generation.class_sizes import sizes_of
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.encode import prompts_of
from understudy.methods.conditional_generation.generate import Synthesis, synthesize
from understudy.methods.conditional_generation.model import MultitaskModel, TrainedModel
from understudy.methods.conditional_generation.storage import StoredModel
from understudy.models.loading import load_base
from understudy.progress import Progress


def synthesize_stored(
    stored: StoredModel, config: ConditionalGenerationConfig, *, progress: Progress | None = None
) -> Synthesis:
    """Draw the rows that `config` asks for from a trained model.

    Raises:
        InputError: sizes as in the data are asked for, and the model was released without class counts.
    """
    sizes = sizes_of(config, stored.trained.label_names, stored.class_counts)
    return synthesize(
        stored.trained,
        sizes,
        config=config,
        means=stored.class_means,
        topic_counts=stored.topic_counts,
        progress=progress,
    )


def synthesize_untrained(
    config: ConditionalGenerationConfig,
    label_names: tuple[str, ...],
    *,
    sizes: Mapping[str, int],
    compute: Compute = ON_CPU,
    progress: Progress | None = None,
) -> Synthesis:
    """Draw so many rows of each label from the base model with the same prompts, unsteered and unfiltered.

    Of topics it draws as many rows each: how many the private rows have is part of what they add.
    """
    base = load_base(config, compute)
    prompts = prompts_of(base.tokenizer, label_names, config)
    trained = TrainedModel(MultitaskModel(base.model).eval(), base.tokenizer, label_names, prompts)
    filters = config.filter.model_copy(update={"enabled": False})
    plain = config.model_copy(update={"variant": "naive", "filter": filters})
    return synthesize(trained, sizes, config=plain, progress=progress)


def write_synthesis(synthesis: Synthesis, folder: Path) -> None:
    """Write the rows and, beside them, how many were drawn and why some were dropped."""
    pq.write_table(synthesis.table.combine_chunks(), folder / TABLE, compression="zstd")
    (folder / VALUE).write_text(json.dumps(synthesis.report(), sort_keys=True) + "\n")
