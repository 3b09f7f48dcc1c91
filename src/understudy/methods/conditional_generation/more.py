"""More text from a released model: post-processing, so nothing is charged and no private row is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.data.tables import named_labels
from understudy.errors import InputError
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.storage import load_trained
from understudy.methods.conditional_generation.synthesis import synthesize_stored


def further_rows(folder: Path, record: dict[str, Any] | None, *, samples: int, seed_step: int) -> pa.Table:
    """Further rows from an exported model; a smaller `samples` takes fewer of the same texts per label.

    Args:
        folder: the export folder.
        record: of the run, whose generation settings are taken; without it, those stored with the model.
        samples: rows wanted.
        seed_step: added to the run's public seed.

    Raises:
        InputError: there is no released model.
    """
    if not (folder / "model").is_dir():
        raise InputError(f"--from {folder}: expected a folder `model` in it, found none")
    stored = load_trained(folder / "model")
    config = ConditionalGenerationConfig.model_validate(record["config"]) if record else stored.settings
    config = config.model_copy(update={"samples": samples, "public_seed": (config.public_seed + seed_step) % 2**63})
    if isinstance(config.class_sizes, dict):
        config = config.model_copy(update={"class_sizes": "balanced"})
    return named_labels(synthesize_stored(stored, config).table, stored.trained.label_names)
