"""Shares of right answers, and their differences on the same rows, with intervals.

Each interval is the wider, at each end, of a bootstrap, which knows the spread between seeds, and of a closed form,
which does not collapse where every row is right or rows are few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]
Correct = npt.NDArray[np.bool_]

# Test rows of every label that an interval of a difference of mean recalls asks for.
FEWEST_OF_A_LABEL = 10
# Clients or pairs below which percentiles of a bootstrap over them are not trusted alone.
FEWEST_RESAMPLED = 5
_CHUNK = 256  # bootstrap replicates at a time, to bound memory


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float


def accuracy_interval(correct: Correct, *, seed: int, replicates: int = 2000, level: float = 0.95) -> Interval:
    """Mean accuracy over seeds and rows, with an interval.

    The wider, at each end, of the bootstrap over rows and seeds and the Wilson interval of one seed's rows:
    the bootstrap knows the spread between seeds, the Wilson interval does not collapse when every row is
    right.

    Args:
        correct: (seeds, rows) or (rows,) bool.
        seed: of the bootstrap; public.
        replicates: bootstrap replicates.
        level: confidence.
    """
    table = np.atleast_2d(correct)
    low, high = _quantiles(_resampled_means(table, None, seed=seed, replicates=replicates), level)
    share = float(table.mean())
    below, above = wilson(share, table.shape[1], level)
    return Interval(share, max(0.0, min(low, below)), min(1.0, max(high, above)))


def mean_recall(
    correct: Correct, labels: Sequence[int] | Labels, *, seed: int, replicates: int = 2000, level: float = 0.95
) -> Interval:
    """Share of right answers among the rows of each label, averaged over labels, with an interval.

    Every label counts alike, so a classifier that only knows the commonest label gets no more than by guessing. The
    interval is, at each end, the wider of the bootstrap over seeds and over rows within each label, and of the Wilson
    intervals of the labels put together (Zou & Donner 2008), which do not collapse where a label has few rows.

    Args:
        correct: (seeds, rows) or (rows,) bool.
        labels: (rows,) the true labels.
        seed: of the bootstrap; public.
        replicates: bootstrap replicates.
        level: confidence.
    """
    table, truth = np.atleast_2d(correct), np.asarray(labels, dtype=np.int64)
    parts = [table[:, truth == label] for label in np.unique(truth)]
    shares = np.array([part.mean() for part in parts])
    low, high = _quantiles(_resampled_means(table, None, seed=seed, replicates=replicates, labels=truth), level)
    ends = np.array([wilson(share, part.shape[1], level) for share, part in zip(shares, parts, strict=True)])
    below, above = np.sqrt(((ends - shares[:, None]) ** 2).sum(0)) / len(shares)
    share = float(shares.mean())
    return Interval(share, max(0.0, min(low, share - below)), min(1.0, max(high, share + above)))


def paired_recall_difference(
    correct_a: Correct,
    correct_b: Correct,
    labels: Sequence[int] | Labels,
    *,
    seed: int,
    replicates: int = 2000,
    level: float = 0.95,
) -> Interval:
    """Difference a - b of two mean recalls on the same test rows, with an interval.

    The interval is, at each end, the wider of the bootstrap and of the closed forms of `paired_bootstrap` of the labels
    put together (Zou & Donner 2008). The bootstrap alone has no width where a side is always right or always wrong on
    a label.

    Args:
        correct_a: (seeds, rows) or (rows,) bool.
        correct_b: (seeds', rows) or (rows,) bool, same rows in the same order.
        labels: (rows,) the true labels.
        seed: of the bootstrap, which draws seeds, for each side on its own, and rows within each label, the same for
            both sides; public.
        replicates: bootstrap replicates.
        level: confidence.

    Raises:
        ValueError: when the sides have different rows.
    """
    a, b, truth = np.atleast_2d(correct_a), np.atleast_2d(correct_b), np.asarray(labels, dtype=np.int64)
    if a.shape[1] != b.shape[1] or a.shape[1] != truth.size:
        raise ValueError(f"expected {truth.size} test rows on both sides, found {a.shape[1]} and {b.shape[1]}")
    parts = [truth == label for label in np.unique(truth)]
    shares = np.array([a[:, part].mean() - b[:, part].mean() for part in parts])
    draws = _resampled_means(a, b, seed=seed, replicates=replicates, labels=truth)
    ends = np.array([_newcombe(a[:, part], b[:, part], level) for part in parts])
    below, above = np.sqrt(((ends - shares[:, None]) ** 2).sum(0)) / len(shares)
    share = float(shares.mean())
    return _widest(share, _quantiles(draws, level), (share - below, share + above))


def paired_bootstrap(
    correct_a: Correct, correct_b: Correct, *, seed: int, replicates: int = 2000, level: float = 0.95
) -> Interval:
    """Difference a - b of two accuracies on the same test rows, with an interval.

    The interval is, at each end, the wider of a percentile bootstrap and of Newcombe's closed form for paired shares.
    The bootstrap knows the spread between seeds. The closed form keeps its width with few rows or few disagreements.

    Each replicate draws test rows, the same for both sides (that is the pairing), and seeds, for each side on
    its own, since seed i of one side has nothing to do with seed i of the other. With one seed per side only
    rows vary and the interval says nothing about seeds.

    Args:
        correct_a: (seeds, rows) or (rows,) bool.
        correct_b: (seeds', rows) or (rows,) bool, same rows in the same order.
        seed: of the bootstrap; public.
        replicates: bootstrap replicates.
        level: confidence.

    Raises:
        ValueError: when the sides have different or no rows.
    """
    a, b = np.atleast_2d(correct_a), np.atleast_2d(correct_b)
    if a.shape[1] != b.shape[1] or a.shape[1] == 0:
        raise ValueError(f"expected the same test rows on both sides, found {a.shape[1]} and {b.shape[1]}")
    draws = _resampled_means(a, b, seed=seed, replicates=replicates)
    return _widest(float(a.mean() - b.mean()), _quantiles(draws, level), _newcombe(a, b, level))


def is_told_apart(advantage: tuple[float, float], auc: tuple[float, float]) -> bool:
    """Whether an attack tells members from others, whichever of them look more like members, by its intervals.

    Where members have the higher losses, the best threshold calls nobody a member, and the advantage is 0.
    """
    return not (advantage[0] <= 0 <= advantage[1] and auc[0] <= 0.5 <= auc[1])


def _quantiles(draws: npt.NDArray[np.float64], level: float) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def wilson(share: float, rows: int, level: float) -> tuple[float, float]:
    """Wilson's interval of a share of so many rows, which has a width even where all are right."""
    from scipy.stats import norm

    z = float(norm.ppf((1 + level) / 2))
    centre = (share + z**2 / (2 * rows)) / (1 + z**2 / rows)
    half = z / (1 + z**2 / rows) * math.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    return centre - half, centre + half


def difference_of_shares(first: tuple[float, int], second: tuple[float, int], level: float) -> tuple[float, float]:
    """Interval of the difference of two shares of other rows (Newcombe 1998, Stat. Med. 17:873, method 10).

    Args:
        first: a share, and of how many rows.
        second: the share that is taken off, and of how many rows.
        level: confidence.
    """
    (low_a, high_a), (low_b, high_b) = wilson(*first, level), wilson(*second, level)
    value = first[0] - second[0]
    below, above = math.hypot(first[0] - low_a, high_b - second[0]), math.hypot(high_a - first[0], second[0] - low_b)
    return value - below, value + above


def _newcombe(a: Correct, b: Correct, level: float) -> tuple[float, float]:
    """Interval of the difference of two paired shares (Newcombe 1998, Stat. Med. 17:2635, method 10).

    The two Wilson intervals are squared and added, less twice their product times the correlation of the sides.
    """
    rows = a.shape[1]
    first, second = float(a.mean()), float(b.mean())
    (low_a, high_a), (low_b, high_b) = wilson(first, rows, level), wilson(second, rows, level)
    correlation = _correlation(a, b)

    def together(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x**2 - 2 * correlation * x * y + y**2))

    value = first - second
    return value - together(first - low_a, high_b - second), value + together(high_a - first, second - low_b)


def _correlation(a: Correct, b: Correct) -> float:
    """Newcombe's phi of two sides over their common rows, corrected for continuity.

    With several seeds it is the correlation at which two single seeds had the variance that the difference of the
    seeds' means has over rows. With one seed per side that is phi of the two-by-two table.
    """
    rows, first, second = a.shape[1], float(a.mean()), float(b.mean())
    spread = math.sqrt(first * (1 - first) * second * (1 - second))
    if spread == 0:
        # Any table without a row on which the sides agree has phi -1; that is its limit here, where phi is 0 / 0.
        return -1.0 if abs(first - second) == 1 else 0.0
    variance = float((a.mean(0) - b.mean(0)).var())
    covariance = (first * (1 - first) + second * (1 - second) - variance) / 2
    if covariance > 0:
        covariance = max(0.0, covariance - 1 / (2 * rows))
    return max(-1.0, min(1.0, covariance / spread))


def _widest(value: float, *intervals: tuple[float, float]) -> Interval:
    """A difference of two shares with the widest of its intervals, at each end."""
    lows, highs = zip(*intervals, strict=True)
    return Interval(value, max(-1.0, float(min(lows))), min(1.0, float(max(highs))))


def _resampled_means(
    a: Correct, b: Correct | None, *, seed: int, replicates: int, labels: Labels | None = None
) -> npt.NDArray[np.float64]:
    """Bootstrap replicates of mean(a), or of mean(a) - mean(b) on common rows; (replicates,).

    With labels, rows are drawn within each label, and the mean is that of the labels' means.
    """
    generator = np.random.default_rng(seed)
    parts = [slice(None)] if labels is None else [labels == label for label in np.unique(labels)]
    draws = []
    for start in range(0, replicates, _CHUNK):
        size = min(_CHUNK, replicates - start)
        values = _drawn_seed_means(a, size, generator)
        if b is not None:
            values = values - _drawn_seed_means(b, size, generator)
        draws.append(np.mean([_drawn_row_means(values[:, part], generator) for part in parts], axis=0))
    return np.concatenate(draws)


def _drawn_row_means(values: npt.NDArray[np.float64], generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Per replicate, the mean over drawn rows; (size, rows) -> (size,)."""
    size, rows = values.shape
    drawn = generator.integers(rows, size=(size, rows))
    means: npt.NDArray[np.float64] = np.take_along_axis(values, drawn, axis=1).mean(axis=1)
    return means


def _drawn_seed_means(table: Correct, size: int, generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Per replicate, the mean over drawn seeds of each row; (size, rows)."""
    seeds = table.shape[0]
    weights = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=size) / seeds
    means: npt.NDArray[np.float64] = weights @ table.astype(np.float64)
    return means
