"""How tightly a set of texts lies around its middle: a set that collapses during training draws together.

Paper: POPri, Figure 4, bottom left: median distance to the medoid over rounds, "in the PCA space".
The medoid is the member of the set with the least sum of L2 distances to all members (Kaufman & Rousseeuw 1987); of
several the first. The paper does not say what its principal axes are fitted to; here the caller does: axes of held-out
real rows make the figure internal, axes of the first round's texts or none at all keep it post-processing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.floating[Any]]
FloatArray = npt.NDArray[np.float64]

_CHUNK = 512


def medoid(features: Features) -> int:
    """Index of the member with the least sum of distances to all members; O(n^2 d), flat in memory.

    Args:
        features: (n, d), n >= 1, finite.

    Raises:
        ValueError: when there is no row or a value is not finite.
    """
    rows = _checked(features)
    rows = rows - rows.mean(axis=0)  # distances stay, and cancel less
    squares = np.square(rows).sum(axis=1)
    sums = np.zeros(len(rows))
    for start in range(0, len(rows), _CHUNK):
        part = slice(start, start + _CHUNK)
        squared = squares[part, None] + squares - 2 * rows[part] @ rows.T
        # A member's distance to itself is 0, whatever cancels.
        squared[np.arange(len(squared)), np.arange(start, start + len(squared))] = 0.0
        sums[part] = np.sqrt(np.maximum(squared, 0.0)).sum(axis=1)
    # Rounding must not choose among members that are equally central: the first of them is.
    return int(np.flatnonzero(sums <= sums.min() * (1 + 1e-9))[0])


def median_distance_to_medoid(features: Features, *, axes_of: Features | None = None, components: int = 2) -> float:
    """Median L2 distance of the members to their medoid.

    Args:
        features: (n, d) embeddings of one round's texts, n >= 1.
        axes_of: (m, d) rows whose principal axes span the space measured in; None: the embedding's own space.
        components: principal axes taken, at most d; read only with `axes_of`.

    Raises:
        ValueError: when a set is empty, dimensions differ, a value is not finite, or there are fewer axes.
    """
    rows = _checked(features)
    if axes_of is not None:
        rows = rows @ principal_axes(axes_of, components=components, dimension=rows.shape[1])
    return float(np.median(np.sqrt(np.square(rows - rows[medoid(rows)]).sum(axis=1))))


def principal_axes(features: Features, *, components: int, dimension: int) -> FloatArray:
    """The axes of greatest variance, (d, components) orthonormal columns.

    Args:
        features: (m, d), m >= 2.
        components: at most d and m.
        dimension: d expected.

    Raises:
        ValueError: sizes do not fit.
    """
    rows = _checked(features)
    if rows.shape[1] != dimension or not 1 <= components <= min(rows.shape):
        raise ValueError(f"expected (m, {dimension}) rows and 1 to min(m, d) axes, found {rows.shape}, {components=}")
    axes: FloatArray = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False).Vh[:components].T
    return axes


def _checked(features: Features) -> FloatArray:
    if features.ndim != 2 or len(features) == 0 or not np.isfinite(features).all():
        raise ValueError(f"expected finite (n >= 1, d) features, found {features.shape}")
    return features.astype(np.float64)
