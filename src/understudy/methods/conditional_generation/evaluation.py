"""How likely held-out texts are to the language model: the test loss of the paper's Table 4; internal.

The base model, untrained, reads the same texts behind the same prompts, so the difference is what the private rows
taught. A text's loss is the mean over its own tokens, as in training, and as much of it is read as training reads. At
most `MOST_ROWS` texts are read, chosen by a public seed: the same ones at every epsilon. No figure is used for a
choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from understudy.auditing.row_losses import RowLosses
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.metrics import Metrics
from understudy.evaluation.statistics.paired import mean_difference, mean_interval
from understudy.methods.conditional_generation.metric_names import METRIC_NAMES, MODELS
from understudy.methods.conditional_generation.row_losses import row_losses
from understudy.methods.reading import RowsToRead
from understudy.progress import Progress, halves

MOST_ROWS: Final = 1000
# Of which progress tells for each model, however many rows there are: their number may be private.
_PARTS: Final = 10

Losses = npt.NDArray[np.float64]


def measure_held_out(asked: RowsToRead, settings: EvaluationConfig, *, progress: Progress | None = None) -> Metrics:
    """Losses of held-out texts under the base and the released model, and their difference, text by text.

    Args:
        asked: the held-out rows, private, and what the run released.
        settings: seed of the choice of rows, and of the intervals.
        progress: called with (parts read, parts), public numbers.
    """
    some = replace(asked, rows=chosen_rows(asked.rows, settings.public_seed))
    if some.rows.num_rows == 0:
        return Metrics(missing=("the language model's loss on held-out texts: there are none",))
    # One model at a time: two copies of a large one might not fit.
    models, losses = {"base": None, "released": asked.model}, dict[str, Losses]()
    for name, told in zip(MODELS, halves(progress), strict=True):
        losses[name] = _read(row_losses(replace(some, model=models[name])), told)
    return measure_losses(losses, settings)


def measure_losses(losses: Mapping[str, Losses], settings: EvaluationConfig) -> Metrics:
    """The figures of the losses `(n,)` of each model on the same texts, with intervals over texts."""
    found = {f"held_out.{name}.loss": mean_interval(values, **settings.bootstrap) for name, values in losses.items()}
    found["held_out.released_minus_base.loss"] = mean_difference(
        losses["released"], losses["base"], **settings.bootstrap
    )
    return Metrics(
        values={name: one.value for name, one in found.items()} | {"held_out.rows": float(len(losses["base"]))},
        intervals={name: (one.low, one.high) for name, one in found.items()},
        declared=METRIC_NAMES,
    )


def chosen_rows(rows: pa.Table, seed: int) -> pa.Table:
    """At most `MOST_ROWS` rows that have a text, by the public seed: their file may be sorted."""
    valid = rows.filter(rows["text"].is_valid())
    return valid.take(np.random.default_rng(seed).permutation(valid.num_rows)[:MOST_ROWS])


def _read(rows: RowLosses, progress: Progress | None) -> Losses:
    """The losses of all rows; progress is told in a fixed number of parts."""
    found, told = [], 0
    with torch.no_grad():
        for done, part in enumerate(rows.parts, start=1):
            found.append(part().double().cpu())
            while progress is not None and told < _PARTS * done // len(rows.parts):
                told += 1
                progress(told, _PARTS)
    losses: Losses = torch.cat(found).numpy()
    return losses
