"""Small subsets of real rows, chosen by their features: what synthetic text is compared with.

Paper: GRADMM, section 5.1 (herding, k-center, random). Herding: Welling 2009 in the greedy form of
Rebuffi et al. 2017 (iCaRL, Algorithm 4): each choice brings the mean of the chosen closest to the mean of all.
k-center: Gonzalez 1985, farthest first; its radius is at most twice the best possible. *Deviation*: the papers leave
the start of k-center open; here it is the row nearest to the class mean, so that nothing is random.

The output is real rows: it is **private**, whatever chose it, and nothing here spends or gives any privacy. Within a
class every function returns at most `per_class` rows, all of them where the class has fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.floating[Any]]
Rows = npt.NDArray[np.int64]


def herding(features: Features, labels: Sequence[int] | Rows, *, classes: int, per_class: int) -> list[Rows]:
    """Greedily chosen rows of each class whose mean stays closest to the class mean.

    Args:
        features: (n, d), for example sentence embeddings; private.
        labels: (n,) ints in [0, classes).
        classes: number of declared labels.
        per_class: rows wanted per class, at least 1.

    Returns:
        Per class (at most per_class,) row numbers in the order of choice; private. Ties go to the lower row.

    Raises:
        ValueError: when features and labels do not match or a label is out of range.
    """
    return _per_class(features, labels, _herd, classes=classes, per_class=per_class)


def k_center(features: Features, labels: Sequence[int] | Rows, *, classes: int, per_class: int) -> list[Rows]:
    """Rows of each class chosen farthest first, from the row nearest to the class mean.

    Takes, returns and raises what `herding` does.
    """
    return _per_class(features, labels, _farthest_first, classes=classes, per_class=per_class)


def random_rows(
    labels: Sequence[int] | Rows, *, classes: int, per_class: int, generator: np.random.Generator
) -> list[Rows]:
    """Rows of each class drawn without replacement.

    Args:
        labels: (n,) ints in [0, classes).
        classes: number of declared labels.
        per_class: rows wanted per class, at least 1.
        generator: the only source of randomness.

    Returns:
        Per class (at most per_class,) row numbers in the order drawn; private.

    Raises:
        ValueError: when a label is out of range.
    """
    members = _members(labels, classes=classes, per_class=per_class)
    return [generator.permutation(rows)[:per_class] for rows in members]


def _per_class(
    features: Features,
    labels: Sequence[int] | Rows,
    choose: Callable[[npt.NDArray[np.float64], int], Rows],
    *,
    classes: int,
    per_class: int,
) -> list[Rows]:
    members = _members(labels, classes=classes, per_class=per_class)
    if features.ndim != 2 or len(features) != len(labels):
        raise ValueError(f"expected (n, d) features and n labels, found {features.shape} and {len(labels)}")
    points = features.astype(np.float64)
    return [rows[choose(points[rows], min(per_class, len(rows)))] for rows in members]


def _members(labels: Sequence[int] | Rows, *, classes: int, per_class: int) -> list[Rows]:
    """Rows of each class, ascending."""
    truth = np.asarray(labels, dtype=np.int64)
    if per_class < 1 or (truth.size and not 0 <= truth.min() <= truth.max() < classes):
        raise ValueError(f"expected per_class >= 1, found {per_class}, and labels in 0..{classes - 1}")
    return [np.flatnonzero(truth == label) for label in range(classes)]


def _herd(points: npt.NDArray[np.float64], count: int) -> Rows:
    """`count` of the points (n, d), n >= count, by herding."""
    mean = points.mean(0) if count else np.zeros(points.shape[1])
    chosen: list[int] = []
    total = np.zeros(points.shape[1])
    free = np.ones(len(points), dtype=bool)
    for size in range(1, count + 1):
        distances = np.square((total + points) / size - mean).sum(1)
        chosen.append(int(np.where(free, distances, np.inf).argmin()))
        free[chosen[-1]] = False
        total += points[chosen[-1]]
    return np.array(chosen, dtype=np.int64)


def _farthest_first(points: npt.NDArray[np.float64], count: int) -> Rows:
    """`count` of the points (n, d), n >= count, each the farthest from those before it."""
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    chosen = [int(np.square(points - points.mean(0)).sum(1).argmin())]
    nearest = np.square(points - points[chosen[0]]).sum(1)
    nearest[chosen[0]] = -1.0  # below a copy's 0: no row is chosen twice
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, np.square(points - points[chosen[-1]]).sum(1))
        nearest[chosen[-1]] = -1.0
    return np.array(chosen, dtype=np.int64)
