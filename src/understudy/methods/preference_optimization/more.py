"""More text from a released policy: post-processing, so nothing is charged and no private text is read.

The exported model is plain weights; which prompts it was drawn with stands in the run's internal folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from understudy.errors import InputError
from understudy.methods.preference_optimization.config import EndpointConfig, PreferenceOptimizationConfig
from understudy.runs.folders import EXPORT, INTERNAL, RUN_FILE, further_file, named_labels, write_further

METHOD = "preference-optimization"
# Streams are named by the public seed, its successors by the labels; further draws start at a seed of their own.
_SEED_STEP = 1_000_003


def is_policy(origin: Path) -> bool:
    """Whether a run of this method left the folder: says its record or, where that is not at hand, its statement.

    Args:
        origin: the --out folder of a run, or its export folder, wherever it was taken.
    """
    record = _read(_record_path(origin))
    if record:
        return bool(record.get("method") == METHOD)
    folder = _exported(origin)
    mechanisms = _read(folder / "statement.json").get("mechanisms", ())
    return (folder / "model").is_dir() and [mechanism.get("name") for mechanism in mechanisms] == ["scores"]


def generate_more(origin: Path, *, samples: int, out: Path | None = None, draw: int = 1) -> tuple[Path, int]:
    """Draw further texts from DIR/export/model with the prompts and settings of the run; always in this process.

    Args:
        origin: the --out folder of a run, or its export folder beside `internal/`.
        samples: texts wanted.
        out: Parquet file; default `synthetic-SAMPLES-DRAW.parquet` beside the exported one.
        draw: number of this further draw: another number gives other texts, the same number the same texts; 0 is the
            run's own.

    Returns:
        The file, and how many texts it holds.

    Raises:
        InputError: when there is no released model or no record of the run, or the file exists.
    """
    from understudy.methods.preference_optimization import rounds
    from understudy.methods.preference_optimization.seeds import read_seeds
    from understudy.models.loading import load_model

    folder = _exported(origin)
    if not (folder / "model").is_dir():
        raise InputError(f"--from {origin}: expected the folder of a finished run with {EXPORT}/model, found none")
    record = _read(_record_path(origin))
    if not {"config", "label_names"} <= record.keys():
        raise InputError(
            f"--from {origin}: expected {INTERNAL}/{RUN_FILE} beside {EXPORT}/, for it says with which prompts this "
            "model is to be used; name the run's own --out folder, or repeat its `understudy run` command with a "
            "larger --samples, which charges nothing"
        )
    path = further_file(folder, samples=samples, draw=draw, out=out)
    config, names = PreferenceOptimizationConfig.model_validate(record["config"]), tuple(record["label_names"])
    config = config.model_copy(
        update={
            "samples": samples,
            "public_seed": (config.public_seed + draw * _SEED_STEP) % 2**63,
            "endpoint": EndpointConfig(),
        }
    )
    table, _ = rounds.write_texts(
        load_model(folder / "model"), read_seeds(config.seeds), config=config, label_names=names, trained=True
    )
    write_further(path, named_labels(table, names))
    return path, table.num_rows


def _exported(origin: Path) -> Path:
    return origin / EXPORT if (origin / EXPORT).is_dir() else origin


def _record_path(origin: Path) -> Path:
    """Beside the export folder, where it is still at its place."""
    return _exported(origin).absolute().parent / INTERNAL / RUN_FILE


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; one that is missing or broken says nothing, and whoever needs it refuses."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
