"""More text from a released policy: post-processing, so nothing is charged and no private text is read.

The exported model is plain weights; which prompts it was drawn with stands in the run's internal folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.data.tables import named_labels
from understudy.errors import InputError
from understudy.methods.preference_optimization.config import EndpointConfig, PreferenceOptimizationConfig


def further_rows(folder: Path, record: dict[str, Any] | None, *, samples: int, seed_step: int) -> pa.Table:
    """Further texts from an exported model with the prompts and settings of the run; always in this process.

    Args:
        folder: the export folder.
        record: of the run; needed.
        samples: texts wanted.
        seed_step: added to the run's public seed.

    Raises:
        InputError: there is no released model, or no record of the run.
    """
    from understudy.methods.preference_optimization import rounds
    from understudy.methods.preference_optimization.seeds import read_seeds
    from understudy.models.loading import load_model

    if not (folder / "model").is_dir():
        raise InputError(f"--from {folder}: expected a folder `model` in it, found none")
    if record is None or not {"config", "label_names"} <= record.keys():
        raise InputError(
            f"--from {folder}: expected internal/run.json beside export/, for it says with which prompts this model is "
            "to be used; name the run's own --out folder, or repeat its `understudy run` command with a larger "
            "--samples, which charges nothing"
        )
    config, names = PreferenceOptimizationConfig.model_validate(record["config"]), tuple(record["label_names"])
    config = config.model_copy(
        update={
            "samples": samples,
            "public_seed": (config.public_seed + seed_step) % 2**63,
            "endpoint": EndpointConfig(),
        }
    )
    table, _ = rounds.write_texts(
        load_model(folder / "model"), read_seeds(config.seeds), config=config, label_names=names, trained=True
    )
    return named_labels(table, names)
