"""How likely the tuned generator, or the public one, finds texts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from understudy.evaluation.language_model import text_losses
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.reading import RowsToRead
from understudy.models.loading import load_base, load_model


def row_losses(asked: RowsToRead) -> npt.NDArray[np.float64]:
    """Mean negative log-likelihood per token of each text without a prompt, `(n,)` in nats.

    Raises:
        InputError: the folder holds no model.
    """
    config = asked.settings(PreferenceOptimizationConfig)
    loaded = load_model(asked.model, compute=asked.compute) if asked.model else load_base(config, asked.compute)
    return text_losses(loaded, asked.rows["text"].to_pylist())
