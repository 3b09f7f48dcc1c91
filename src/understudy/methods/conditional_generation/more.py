"""More text from a released model: post-processing, so nothing is charged and no private row is read."""

from __future__ import annotations

import json
from pathlib import Path

from understudy.errors import InputError
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.storage import load_trained
from understudy.methods.conditional_generation.synthesis import synthesize_stored
from understudy.runs.folders import EXPORT, INTERNAL, RUN_FILE, further_file, named_labels, write_further

# Streams of earlier draws are named by the run's public seed; further ones start at a seed of their own.
_SEED_STEP = 1_000_003


def generate_more(origin: Path, *, samples: int, out: Path | None = None, draw: int = 1) -> tuple[Path, int]:
    """Draw further rows from DIR/export/model.

    Args:
        origin: the --out folder of a run, or its export folder, wherever it was taken.
        samples: rows wanted.
        out: Parquet file; default `synthetic-SAMPLES-DRAW.parquet` beside the exported one.
        draw: number of this further draw: another number gives other texts, the same number the same texts,
            of which a smaller `samples` takes fewer per label.

    Returns:
        The file, and how many rows it holds.

    Raises:
        InputError: when there is no released model, or the file exists.
    """
    folder = next((f for f in (origin / EXPORT, origin) if (f / "model").is_dir()), None)
    if folder is None:
        raise InputError(_no_model(origin))
    stored = load_trained(folder / "model")
    config = _generation_config(origin) or stored.settings
    config = config.model_copy(
        update={"samples": samples, "public_seed": (config.public_seed + draw * _SEED_STEP) % 2**63}
    )
    if isinstance(config.class_sizes, dict):
        config = config.model_copy(update={"class_sizes": "balanced"})
    path = further_file(folder, samples=samples, draw=draw, out=out)
    table = named_labels(synthesize_stored(stored, config).table, stored.trained.label_names)
    write_further(path, table)
    return path, table.num_rows


def _no_model(origin: Path) -> str:
    """What to do instead where there is nothing to draw from."""
    if any((f / "target").is_dir() for f in (origin / EXPORT, origin)):
        return (
            f"--from {origin}: this run released a target, to which its texts were matched, and no model to draw from; "
            "for more texts repeat its `understudy run` command with a larger --samples: the target is kept, so that "
            "charges nothing"
        )
    return f"--from {origin}: expected the folder of a finished run with {EXPORT}/model, found none"


def _generation_config(origin: Path) -> ConditionalGenerationConfig | None:
    """The run's own generation settings, where its internal folder is at hand."""
    path = origin / INTERNAL / RUN_FILE
    if not path.is_file():
        return None
    return ConditionalGenerationConfig.model_validate(json.loads(path.read_text())["config"])
