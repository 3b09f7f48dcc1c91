"""How close the distribution of synthetic text is to that of real text, in an embedding space.

Frechet distance: Dowson & Landau 1982; used for text by Semeniuta et al. 2018 (Frechet InferSent distance).
With A, B the centred embeddings divided by sqrt(n - 1), the trace of the square root of S_a S_b is the sum of
the singular values of A B^T, since the nonzero eigenvalues of A^T A B^T B are those of (A B^T)(A B^T)^T. That
needs no square root of a matrix, is symmetric in its arguments, and is exact when there are fewer rows than
dimensions, where the usual sqrtm of the product turns complex.
*Bias*: the estimate from n rows lies above the distance of the distributions, the more so the fewer the rows
and the more the dimensions. It is therefore only compared at equal sizes, with a real-against-real floor
beside it.

MAUVE: Pillutla et al. 2021, sections 2 and 3: quantise both sets jointly by k-means, trace the divergence
frontier of the two histograms, take the area under it. The package mauve-text is not used: it imports faiss
for the k-means and loads GPT-2 features, both far bigger than the forty lines that the formula needs.
Constants are those of the paper and its code: rows normalised, PCA keeping 90 % of the variance, k = n / 10,
five restarts, scaling constant 5. (The code averages the areas along both axes; of one polygon from axis to
axis they are equal.)
*Deviations*: k is capped at 500 (the paper's value for 5000 texts); the frontier is traced at 1000 instead of
25 points, so that two disjoint sets score 1/252 (the exact integral) to four digits; features are those of
the sentence encoder, not GPT-2's, so values compare within this project and not with published ones. MAUVE
also depends on size: 1 is reached only by identical histograms, and a real-against-real ceiling is given
beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.floating[Any]]
Histogram = npt.NDArray[np.float64]

MAUVE_SCALING = 5.0
MAUVE_POINTS = 1000
MAUVE_MAX_BUCKETS = 500
MAUVE_EXPLAINED_VARIANCE = 0.9


@dataclass(frozen=True)
class Compared:
    """A measure between two sets, and between two real sets of the same size.

    Attributes:
        value: measure between the sets, mean over the splits.
        reference: the same between two disjoint real sets: what a perfect synthesiser would reach.
        rows: rows per set.
    """

    value: float
    reference: float
    rows: int


def frechet_distance(a: Features, b: Features) -> float:
    """|mean_a - mean_b|^2 + tr(S_a + S_b - 2 (S_a S_b)^(1/2)), in float64.

    Args:
        a: (n, d) features, n >= 2.
        b: (m, d) features, m >= 2.

    Returns:
        The squared Frechet (2-Wasserstein) distance of the Gaussians fitted to both sets; >= 0. Biased
        upwards, see the module.

    Raises:
        ValueError: when a set has fewer than two rows, or the dimensions differ.
    """
    _check_pair(a, b)
    mean_a, factor_a = _gaussian_factor(a)
    mean_b, factor_b = _gaussian_factor(b)
    cross = np.linalg.svd(factor_a @ factor_b.T, compute_uv=False).sum()
    spread = np.square(factor_a).sum() + np.square(factor_b).sum() - 2 * cross
    # Rounding can take the spread of two equal covariances a hair below zero.
    return float(np.square(mean_a - mean_b).sum() + max(0.0, float(spread)))


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
    weights = np.linspace(0, 1, MAUVE_POINTS + 2)[1:-1]
    divergences = [(_kl(q, mixed), _kl(p, mixed)) for mixed in (w * p + (1 - w) * q for w in weights)]
    # As w grows, x falls from the extreme point (1, 0) and y rises to the other, (0, 1).
    curve = np.exp(-MAUVE_SCALING * np.asarray([(0.0, np.inf), *divergences, (np.inf, 0.0)]))
    return float(-np.trapezoid(curve[:, 1], curve[:, 0]))


def compare(
    measure: Callable[[Features, Features], float],
    features: Features,
    real: Features,
    *,
    seed: int,
    splits: int,
) -> Compared:
    """Measure features against real ones beside real against real, all sets of one size.

    Each split draws two disjoint real sets and one set of `features`, of the greatest size that all three
    allow.

    Args:
        measure: `frechet_distance` or `mauve`.
        features: (n, d), for example of synthetic text.
        real: (m, d) of real text that the synthesiser never saw.
        seed: of the splits.
        splits: number of random splits averaged.

    Raises:
        ValueError: when fewer than 4 real rows or fewer than 2 others are given.
    """
    rows = min(len(features), len(real) // 2)
    if rows < 2:
        raise ValueError(
            f"expected at least 2 rows and at least 4 real rows to compare with, found {len(features)} and {len(real)}"
        )
    values, references = [], []
    for split in range(splits):
        generator = np.random.default_rng([seed, split])
        order = generator.permutation(len(real))
        first, second = real[order[:rows]], real[order[rows : 2 * rows]]
        drawn = features[generator.permutation(len(features))[:rows]]
        values.append(measure(drawn, first))
        references.append(measure(second, first))
    return Compared(float(np.mean(values)), float(np.mean(references)), rows)


def _check_pair(a: Features, b: Features) -> None:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ValueError(
            f"expected two (rows >= 2, dimensions) arrays of equal dimensions, found {a.shape} and {b.shape}"
        )


def _gaussian_factor(features: Features) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean (d,) and a factor F (min(n, d), d) with F^T F = sample covariance."""
    rows = features.astype(np.float64)
    mean = rows.mean(axis=0)
    factor: npt.NDArray[np.float64] = np.linalg.qr((rows - mean) / np.sqrt(len(rows) - 1)).R
    return mean, factor


def _quantise(a: Features, b: Features, *, seed: int) -> tuple[Histogram, Histogram]:
    """Histograms of both sets over the cells of a k-means fitted to their union."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import normalize

    union = normalize(np.concatenate([a, b]).astype(np.float64))
    pca = PCA(svd_solver="full").fit(union)
    share = np.cumsum(pca.explained_variance_ratio_)
    kept = int(np.searchsorted(share, MAUVE_EXPLAINED_VARIANCE)) + 1
    buckets = min(MAUVE_MAX_BUCKETS, max(2, round(min(len(a), len(b)) / 10)))
    cells = KMeans(buckets, n_init=5, random_state=seed).fit_predict(pca.transform(union)[:, :kept])
    p = np.bincount(cells[: len(a)], minlength=buckets) / len(a)
    q = np.bincount(cells[len(a) :], minlength=buckets) / len(b)
    return p, q


def _kl(p: Histogram, r: Histogram) -> float:
    support = p > 0  # r > 0 there, as r is a mixture that contains p
    return float(np.sum(p[support] * np.log(p[support] / r[support])))
