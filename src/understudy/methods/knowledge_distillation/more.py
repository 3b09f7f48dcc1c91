"""More pairs from a released model: post-processing, so nothing is charged and no private pair is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.data.tables import named_labels
from understudy.errors import InputError
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig


def further_rows(folder: Path, record: dict[str, Any] | None, *, samples: int, seed_step: int) -> pa.Table:
    """Further pairs from the exported model, by the run's own steps; the professional model must be at hand.

    Args:
        folder: the export folder.
        record: of the run; needed.
        samples: pairs wanted.
        seed_step: added to the run's public seed.

    Raises:
        InputError: there is no released model, or no record of the run.
    """
    from understudy.methods.knowledge_distillation.distil import synthesise
    from understudy.models.loading import load_model
    from understudy.settings import private_directory, settings

    if not (folder / "model").is_dir():
        raise InputError(f"--from {folder}: expected a folder `model` in it, found none")
    if record is None or "config" not in record:
        raise InputError(
            f"--from {folder}: expected internal/run.json beside export/, for it names the professional model; name "
            "the run's own --out folder, or repeat its `understudy run` command with a larger --samples, which charges "
            "nothing"
        )
    config = KnowledgeDistillationConfig.model_validate(record["config"])
    config = config.model_copy(update={"samples": samples, "public_seed": (config.public_seed + seed_step) % 2**63})
    answers = private_directory(settings().private_root / "endpoint-answers")
    return named_labels(synthesise(load_model(folder / "model"), config, answers=answers).table, ())
