"""The exact sum of what clients say about the candidates, which leaves with noise only (POPri, algorithm 1, line 20).

The vectors are those of `client_vectors`. Standardised blocks have norm sqrt(J) >= sqrt(2), so every clip is active and
the block of a client is E~_b m / |E~_b m| / sqrt(number of its groups with variance), with E~_b the centred candidates
and groups of one size. Only norms are missing:
- groups larger than d (`within`, `all`), or `none`: |E~_b m|^2 = m^T (E~_b^T E~_b) m, and the sum over clients is
  E~_b (sum_i w_i m_i), O(n d^2 + M d^2) for one group. For `none` this norm tells whether a clip is active, so the
  shortcut holds there too. Clients whose norm cancels (below 0.3 % of the largest possible) take the product.
- groups of at most d candidates, so a spread per prompt (`over="prompt"`) with the paper's J = 10: a norm costs d^2 by
  its Gram matrix and J d by the product, which therefore is the fastest way known: O(n M d), some clients at a time.

*Guarantee*: a client's vector is a function of that client and its slot alone, to the last bit, and its norm is at most
1: adding or removing one client moves the sum by at most 1 in L2 norm, up to float64 rounding of the sum. `as_query`
makes the query of sensitivity 1, rounding included. Last bits matter: a block has variance or has none, so that at the
border the last bit of a norm decides between the zero vector and one of norm 1. A product of matrices rounds a row
otherwise when there are other rows than before, and when it stands at another place: where clients leave, those behind
them move up. So norms at the border are those of exact products (`client_vectors`). Also, every slot has its row in a
block, that of a client who takes no part being zero, and all blocks have the same number of rows, the last one too: the
work does not fall with the sampling probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from understudy.methods.preference_optimization.client_vectors import (
    CandidateSpace,
    FloatArray,
    IntArray,
    Mask,
    Over,
    Rows,
    block_weights,
    candidate_space,
    mean_rows,
    product_weights,
    products_of,
)

_CANCELS = 1e-5  # share of |E~|_F^2 |m|^2 below which a norm from a Gram matrix is not trusted
_NUMBERS = 1 << 22  # float64 values of one block of products, 32 MiB
_DIRECT_ROWS = 64  # clients per block where the shortcut's leftovers are computed


def exact_sum(
    means: FloatArray,
    candidates: Rows,
    mask: Mask,
    *,
    normalise: Literal["standardise", "none"],
    over: Over,
    per_prompt: int,
    labels: IntArray | None = None,
    chunk: int | None = None,
) -> FloatArray:
    """Sum of the clipped vectors of the clients that take part; private until noised.

    *Guarantee*: adding or removing one client (a null client in its slot) moves it by at most 1 in L2 norm, up to
    float64 rounding; make the query with `as_query`.

    Args:
        means: (n, d) from `clients.client_means`, or (n, C * d) with labels; private.
        candidates: (M, d), public.
        mask: (n,) bool, who takes part.
        normalise: see `candidate_space`.
        over: see `candidate_space`.
        per_prompt: J.
        labels: (M,) label of each candidate; None: no labels.
        chunk: slots at a time; None: as many as fill about 32 MiB. Memory does not grow with n.

    Returns:
        (M,) float64.

    Raises:
        ValueError: shapes do not fit.
    """
    space = candidate_space(candidates, normalise=normalise, over=over, per_prompt=per_prompt, labels=labels)
    if means.ndim != 2 or mask.shape != (len(means),) or mask.dtype != np.bool_:
        raise ValueError(f"expected (n, d) means and (n,) bool mask, found {means.shape}, {mask.shape} {mask.dtype}")
    totals = [np.zeros((len(part.floor), part.size)) for part in space.parts]
    gram = _gram(space) if space.by_norms else None
    width = space.count if gram is None else means.shape[1]
    step = min(len(means), chunk or max(_DIRECT_ROWS, _NUMBERS // width))
    for start in range(0, len(means), max(step, 1)):
        block = slice(start, start + step)
        if not mask[block].any():
            continue
        rows = mean_rows(space, _filled_up(np.where(mask[block, None], means[block], 0.0), step))
        if gram is None:
            _add_direct(space, rows, totals)
        else:
            _add_by_norms(space, gram, rows, totals)
    if gram is not None:
        for part, total, weighted in zip(space.parts, totals, gram.weighted, strict=True):
            total += np.einsum("kjd,kd->kj", part.blocks, weighted, optimize=True)
    out = np.zeros(space.count)
    for part, total in zip(space.parts, totals, strict=True):
        out[part.columns] = total.reshape(-1)
    return out


def as_query(total: FloatArray, *, slots: int) -> FloatArray:
    """The sum, shrunk by a public factor that makes up for the float64 rounding of vectors and sum.

    2^-30 n + 2^-18 covers it for n up to 10^6 and M up to 10^5. Rounding to the grid is the mechanism's.

    *Guarantee*: L2 sensitivity 1 (unit client, add or remove: a null client in its slot).

    Args:
        total: (M,) from `exact_sum` or `histogram.histogram_sum`, private.
        slots: n, public: all slots, whoever takes part.

    Returns:
        (M,) float64.
    """
    shrunk: FloatArray = total / (1.0 + slots * 2.0**-30 + 2.0**-18)
    return shrunk


def unclipped_mean(means: FloatArray, candidates: Rows, mask: Mask, *, labels: IntArray | None = None) -> FloatArray:
    """Mean over clients of E m, neither standardised nor clipped: what pairs are compared with; internal.

    Args:
        means: (n, d), or (n, C * d) with labels.
        candidates: (M, d).
        mask: (n,) bool, who takes part.
        labels: (M,) label of each candidate; None: no labels.

    Returns:
        (M,) float64.
    """
    space = candidate_space(candidates, normalise="none", over="all", per_prompt=1, labels=labels)
    out = np.zeros(space.count)
    taking_part = mask & np.isfinite(means).all(axis=1)
    middle = means[taking_part].sum(axis=0, keepdims=True) / max(1, int(mask.sum()))
    for part, row in zip(space.parts, mean_rows(space, middle), strict=True):
        out[part.columns] = part.rows @ row[0]
    return out


@dataclass(frozen=True)
class _Gram:
    """Per part: E~_b^T E~_b (groups, d, d), |E~_b|_F (groups,), and the running sum of w_i m_i (groups, d)."""

    matrices: tuple[FloatArray, ...]
    norms: tuple[FloatArray, ...]
    weighted: tuple[FloatArray, ...]


def _add_direct(space: CandidateSpace, rows: Sequence[FloatArray], totals: Sequence[FloatArray]) -> None:
    products = products_of(space, rows)
    for product, weight, total in zip(products, product_weights(space, products), totals, strict=True):
        total += np.einsum("rkj,rk->kj", product, weight)


def _gram(space: CandidateSpace) -> _Gram:
    matrices = tuple(np.stack([block.T @ block for block in part.blocks]) for part in space.parts)
    norms = tuple(np.sqrt(np.einsum("kdd->k", matrix)) for matrix in matrices)
    return _Gram(matrices, norms, tuple(np.zeros(matrix.shape[:2]) for matrix in matrices))


def _add_by_norms(space: CandidateSpace, gram: _Gram, rows: Sequence[FloatArray], totals: Sequence[FloatArray]) -> None:
    """Add w_i m_i to the running sums, and to the totals the vectors of clients whose norm cannot be trusted."""
    norms, doubted = _gram_norms(space, gram, rows)
    weights = block_weights(space, norms, [part.floor for part in space.parts])
    for mean, weight, weighted in zip(rows, weights, gram.weighted, strict=True):
        weighted += np.where(doubted, 0.0, weight).T @ mean
    # Blocks stand at fixed places and are of one size, so that who else is doubted, or there, changes no rounding.
    step = min(len(doubted), _DIRECT_ROWS)
    for start in range(0, len(doubted), step):
        block = slice(start, start + step)
        if doubted[block].any():
            _add_direct(space, [_filled_up(np.where(doubted[block], mean[block], 0.0), step) for mean in rows], totals)


def _filled_up(rows: FloatArray, count: int) -> FloatArray:
    """So many rows: behind those that there are, rows of zeros, which are those of null clients."""
    return np.concatenate([rows, np.zeros((count - len(rows), rows.shape[1]))])


def _gram_norms(space: CandidateSpace, gram: _Gram, rows: Sequence[FloatArray]) -> tuple[list[FloatArray], Mask]:
    """Per part (r, groups) norms of the blocks, and (r, 1) whether rounding may have spoilt one that counts."""
    norms, doubted = [], np.zeros((len(rows[0]), 1), dtype=np.bool_)
    squared_sum = largest_sum = np.zeros((len(rows[0]), 1))
    for part, mean, matrices, frobenius in zip(space.parts, rows, gram.matrices, gram.norms, strict=True):
        length = np.square(mean).sum(axis=1, keepdims=True)
        squared = np.stack([np.einsum("rd,rd->r", mean @ matrix, mean) for matrix in matrices], axis=1)
        dead = frobenius <= part.floor if space.standardised else np.zeros(len(frobenius), dtype=np.bool_)
        norms.append(np.where(dead, 0.0, np.sqrt(np.maximum(squared, 0.0))))
        least = np.maximum(_CANCELS * np.square(frobenius), 2 * np.square(part.floor))
        doubted |= ((squared <= least * length) & (length > 0) & ~dead).any(axis=1, keepdims=True)
        squared_sum = squared_sum + squared.sum(axis=1, keepdims=True)
        largest_sum = largest_sum + (np.square(frobenius) * length).sum(axis=1, keepdims=True)
    if not space.standardised:  # one norm of all parts, which counts only where it may exceed the clip
        doubted = (squared_sum <= _CANCELS * largest_sum) & (largest_sum > 1.0)
    return norms, doubted
