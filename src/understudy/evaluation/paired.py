"""Means and paired differences with percentile intervals from a bootstrap over rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from understudy.evaluation.utility import Interval

Floats = npt.NDArray[np.float64]


def mean_interval(values: Floats, *, seed: int, replicates: int = 2000, level: float = 0.95) -> Interval:
    """The mean over rows.

    Args:
        values: `(n,)`, at least one.
        seed: of the bootstrap; public.
        replicates: bootstrap replicates.
        level: confidence.

    Raises:
        ValueError: there is no row.
    """
    if len(values) == 0:
        raise ValueError("expected at least one row, found none")
    rows = np.random.default_rng(seed).integers(len(values), size=(replicates, len(values)))
    low, high = np.quantile(values[rows].mean(1), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(values.mean()), float(low), float(high))


def mean_difference(a: Floats, b: Floats, *, seed: int, replicates: int = 2000, level: float = 0.95) -> Interval:
    """The mean of `a - b` over the same rows, each replicate drawing the same rows for both.

    Raises:
        ValueError: the two are not of the same rows.
    """
    if len(a) != len(b):
        raise ValueError(f"expected the same rows on both sides, found {len(a)} and {len(b)}")
    return mean_interval(a - b, seed=seed, replicates=replicates, level=level)
