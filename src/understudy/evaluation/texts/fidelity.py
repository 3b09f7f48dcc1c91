"""How close the distribution of synthetic text is to that of real text, in an embedding space.

Frechet distance: Dowson & Landau 1982; used for text by Semeniuta et al. 2018 (Frechet InferSent distance). With
d x d factors F_a, F_b of the sample covariances, F^T F = S, the trace of the square root of S_a S_b is the sum of the
singular values of F_a F_b^T, since the nonzero eigenvalues of S_a S_b are those of (F_a F_b^T)(F_a F_b^T)^T. That is
symmetric in its arguments, and a product of covariances, whose usual sqrtm turns complex where it is singular, is never
formed. A covariance is summed over blocks of rows, so time is linear and memory flat in their number; of fewer rows
than dimensions the centred rows are themselves the factor, and the result is exact.
*Bias*: the estimate from n rows lies above the distance of the distributions, the more so the fewer the rows
and the more the dimensions. It is therefore only compared at equal sizes, with a real-against-real floor
beside it.

MAUVE: Pillutla et al. 2021, sections 2 and 3: quantise both sets jointly by k-means, trace the divergence
frontier of the two histograms, take the area under it. The package mauve-text is not used: it imports faiss
for the k-means and loads GPT-2 features, both far bigger than the forty lines that the formula needs.
Constants are those of the paper and its code: rows normalised, PCA keeping 90 % of the variance, k = n / 10,
five restarts, scaling constant 5. (The code averages the areas along both axes; of one polygon from axis to
axis they are equal.)
*Deviations*: k-means needs time that grows with the square of the rows, as k does with the rows, so `MAUVE` compares
random subsamples of at most 2,000 rows per set (k = 200), where the paper takes 5,000 texts once, and averages them;
smaller sets are compared whole. The function `mauve` itself takes all rows it is given, with k capped at 500 (the
paper's value for 5000 texts). The frontier is traced at 1000 instead of 25 points, so that two disjoint sets score
1/252 (the exact integral) to four digits; features are those of the sentence encoder, not GPT-2's, so values compare
within this project and not with published ones. MAUVE also depends on size: 1 is reached only by identical histograms,
and a real-against-real ceiling is given beside it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.floating[Any]]
FloatArray = npt.NDArray[np.float64]
Histogram = FloatArray
Summary = TypeVar("Summary")

MAUVE_SCALING = 5.0
MAUVE_POINTS = 1000
MAUVE_MAX_BUCKETS = 500
MAUVE_EXPLAINED_VARIANCE = 0.9
MAUVE_MOST_ROWS = 2000

_CHUNK = 4096  # rows at a time in float64, to bound memory


@dataclass(frozen=True)
class Gaussian:
    """The Gaussian fitted to a set of rows.

    Attributes:
        mean: (d,).
        factor: (k, d), k <= d, with factor^T factor the sample covariance.
    """

    mean: FloatArray
    factor: FloatArray


@dataclass(frozen=True)
class Measure(Generic[Summary]):
    """A measure between two sets of rows, in two steps, so that a set that is compared often is summarised once.

    Attributes:
        summarise: (n, d) features -> what of them is compared.
        between: of two summaries.
        most_rows: rows per set of the largest comparison; larger sets are subsampled. None: no limit.
        greatest: greatest value possible; the least is 0.
    """

    summarise: Callable[[Features], Summary]
    between: Callable[[Summary, Summary], float]
    most_rows: int | None = None
    greatest: float = np.inf


@dataclass(frozen=True)
class Estimate:
    """A measure averaged over random draws of rows.

    Attributes:
        value: mean over the draws.
        interval: Student's interval of that mean over draws, cut off at the measure's bounds; None for one draw. It
            says what other draws from the same rows would change, and nothing about other rows.
        rows: rows per set in each draw.
    """

    value: float
    interval: tuple[float, float] | None
    rows: int


@dataclass(frozen=True)
class Compared:
    """A measure of several sets against real rows, and of real against real rows.

    Attributes:
        sets: name -> estimate.
        reference: between two disjoint real sets: what a perfect synthesiser would reach.
    """

    sets: dict[str, Estimate]
    reference: Estimate


def fit_gaussian(features: Features) -> Gaussian:
    """Mean and sample covariance of (n, d) features, n >= 2, in float64; O(n d^2 + d^3) time, O(d^2) memory."""
    n, d = features.shape
    mean: FloatArray = features.mean(axis=0, dtype=np.float64)
    if n <= d:
        return Gaussian(mean, (features.astype(np.float64) - mean) / np.sqrt(n - 1))
    covariance = np.zeros((d, d))
    for start in range(0, n, _CHUNK):
        centred = features[start : start + _CHUNK].astype(np.float64) - mean
        covariance += centred.T @ centred
    values, axes = np.linalg.eigh(covariance / (n - 1))
    # What rounding leaves of an axis without variance, or takes from it, is nothing.
    values[values < d * np.finfo(np.float64).eps * values[-1]] = 0.0
    return Gaussian(mean, np.sqrt(values)[:, None] * axes.T)


def gaussian_distance(a: Gaussian, b: Gaussian) -> float:
    """Squared Frechet (2-Wasserstein) distance of two Gaussians of equal dimension; >= 0. Biased, see the module.

    |mean_a - mean_b|^2 + tr(S_a + S_b - 2 (S_a S_b)^(1/2)), in float64.
    """
    cross = np.linalg.svd(a.factor @ b.factor.T, compute_uv=False).sum()
    spread = np.square(a.factor).sum() + np.square(b.factor).sum() - 2 * cross
    # Rounding can take the spread of two equal covariances a hair below zero.
    return float(np.square(a.mean - b.mean).sum() + max(0.0, float(spread)))


def mauve(a: Features, b: Features, *, seed: int = 0) -> float:
    """Area under the divergence frontier of the jointly quantised sets.

    1 for equal histograms, 1/252 for disjoint ones.

    Args:
        a: (n, d) features, n >= 2.
        b: (m, d) features, m >= 2; use n = m, the value depends on sizes.
        seed: of k-means.

    Raises:
        ValueError: when a set has fewer than two rows, or the dimensions differ.
    """
    _check_pair(a, b)
    return frontier_area(*_quantise(a, b, seed=seed))


def frontier_area(p: Histogram, q: Histogram) -> float:
    """Area under {(exp(-c KL(q|r)), exp(-c KL(p|r))): r = w p + (1 - w) q, 0 < w < 1}.

    Pillutla et al. 2021, equation 1, with c = 5.

    Args:
        p: (k,) probabilities.
        q: (k,) probabilities.
    """
    filled = p + q > 0
    p, q = p[filled], q[filled]
    weights = np.linspace(0, 1, MAUVE_POINTS + 2)[1:-1, None]
    logs = np.log(weights * p + (1 - weights) * q)
    divergences = np.stack([_kl(q, logs), _kl(p, logs)], axis=1)
    # As w grows, x falls from the extreme point (1, 0) and y rises to the other, (0, 1).
    curve = np.exp(-MAUVE_SCALING * np.concatenate([[(0.0, np.inf)], divergences, [(np.inf, 0.0)]]))
    return float(-np.trapezoid(curve[:, 1], curve[:, 0]))


FRECHET: Measure[Gaussian] = Measure(fit_gaussian, gaussian_distance)
MAUVE: Measure[Features] = Measure(lambda features: features, mauve, most_rows=MAUVE_MOST_ROWS, greatest=1.0)


def compare(
    measure: Measure[Summary],
    sets: Mapping[str, Features],
    real: Features,
    *,
    seed: int,
    splits: int,
    level: float = 0.95,
) -> Compared:
    """Measure sets against real rows beside real against real, all of them at one size.

    Both measures depend on the number of rows, so each split draws two disjoint real sets and one set of each of `sets`
    of the greatest size that all of these and the measure allow.

    Args:
        measure: `FRECHET` or `MAUVE`.
        sets: name -> (n, d), for example of synthetic text; at least one.
        real: (m, d) of real text that the synthesiser never saw.
        seed: of the splits; public.
        splits: number of random splits averaged.
        level: confidence of the intervals over splits.

    Raises:
        ValueError: when fewer than 4 real rows or fewer than 2 of a set are given.
    """
    size = min(_rows_of(measure, features, real) for features in sets.values())
    values: dict[str, list[float]] = {name: [] for name in sets}
    references = []
    for split in range(splits):
        order = np.random.default_rng([seed, split]).permutation(len(real))
        first = measure.summarise(real[order[:size]])
        for name, features in sets.items():
            generator = np.random.default_rng([seed, split, 1])  # a draw does not depend on what else is compared
            drawn = generator.permutation(len(features))[:size]
            values[name].append(measure.between(measure.summarise(features[drawn]), first))
        references.append(measure.between(measure.summarise(real[order[size : 2 * size]]), first))
    return Compared(
        {name: _estimate(measure, found, size, level) for name, found in values.items()},
        _estimate(measure, references, size, level),
    )


def _rows_of(measure: Measure[Summary], features: Features, real: Features) -> int:
    rows = min(len(features), len(real) // 2)
    if rows < 2:
        raise ValueError(
            f"expected at least 2 rows and at least 4 real rows to compare with, found {len(features)} and {len(real)}"
        )
    return rows if measure.most_rows is None else min(rows, measure.most_rows)


def _estimate(measure: Measure[Summary], found: list[float], rows: int, level: float) -> Estimate:
    from scipy.stats import t

    value = float(np.mean(found))
    if len(found) < 2:
        return Estimate(value, None, rows)
    half = float(t.ppf((1 + level) / 2, len(found) - 1) * np.std(found, ddof=1) / np.sqrt(len(found)))
    # Rounding can take the value itself a hair beyond a bound.
    return Estimate(value, (min(value, max(0.0, value - half)), max(value, min(measure.greatest, value + half))), rows)


def _check_pair(a: Features, b: Features) -> None:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ValueError(
            f"expected two (rows >= 2, dimensions) arrays of equal dimensions, found {a.shape} and {b.shape}"
        )


def _quantise(a: Features, b: Features, *, seed: int) -> tuple[Histogram, Histogram]:
    """Histograms of both sets over the cells of a k-means fitted to their union."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import normalize

    union = normalize(np.concatenate([a, b]).astype(np.float64))
    buckets = min(MAUVE_MAX_BUCKETS, max(2, round(min(len(a), len(b)) / 10)))
    # Of few distinct rows scikit-learn warns, and how many there are: a log would keep a figure of private rows.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pca = PCA(svd_solver="full").fit(union)
        share = np.cumsum(pca.explained_variance_ratio_)
        kept = int(np.searchsorted(share, MAUVE_EXPLAINED_VARIANCE)) + 1
        cells = KMeans(buckets, n_init=5, random_state=seed).fit_predict(pca.transform(union)[:, :kept])
    p = np.bincount(cells[: len(a)], minlength=buckets) / len(a)
    q = np.bincount(cells[len(a) :], minlength=buckets) / len(b)
    return p, q


def _kl(p: Histogram, logs: FloatArray) -> FloatArray:
    """Divergence of `p` from distributions with these logarithms `(points, k)`; `(points,)`."""
    own = float(np.sum(p[p > 0] * np.log(p[p > 0])))
    return np.maximum(own - logs @ p, 0.0)  # rounding can take none a hair below zero
