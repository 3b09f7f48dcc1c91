"""Private Evolution's scorer: the share of a client's samples whose nearest candidate it is.

Paper: POPri, appendix E.1, after Lin et al. 2023 (Private Evolution) and Hou et al. 2024. Nearest by cosine; of
equally near candidates, such as two equal texts, the one with the lowest index.
*Deviations*: a client's votes are shares of its samples, so that they sum to 1 whatever it holds; like cosine scores
they are then standardised (per prompt or per label) if asked and clipped to norm 1, see `client_vectors`.

A client's votes are exact: embeddings are rounded to multiples of 2^-20, whose products float64 adds without error, so
a vote depends neither on the batch it is computed in nor on other clients. What is made of a client's votes does not
either: numpy adds up one row otherwise than several, so all slots have their rows in blocks of one size, whoever takes
part.
"""

from __future__ import annotations

import numpy as np

from understudy.methods.preference_optimization.client_vectors import (
    NO_VARIANCE,
    CandidateSpace,
    FloatArray,
    IntArray,
    Mask,
    Rows,
    block_weights,
    unit_rows,
)

_GRID = 2.0**20
_NUMBERS = 1 << 22  # float64 values of one block, 32 MiB


def nearest_candidates(
    embeddings: Rows,
    candidates: Rows,
    *,
    labels: tuple[IntArray, IntArray] | None = None,
    chunk: int | None = None,
) -> IntArray:
    """For each sample the candidate of the greatest cosine similarity.

    Args:
        embeddings: (N, d) of samples, private.
        candidates: (M, d), public.
        labels: (N,) label of each sample, private, and (M,) of each candidate, public; a sample votes among candidates
            of its label.
        chunk: samples at a time; None: about 32 MiB of similarities.

    Returns:
        (N,) int64; -1, no vote, for an embedding that is zero or not finite, or a label without candidates.

    Raises:
        ValueError: the dimensions differ.
    """
    if embeddings.shape[1] != candidates.shape[1]:
        raise ValueError(f"expected embeddings of one dimension, found {embeddings.shape[1]} and {candidates.shape[1]}")
    found = np.full(len(embeddings), -1, dtype=np.int64)
    usable = np.isfinite(embeddings).all(axis=1) & (embeddings != 0).any(axis=1)
    known = np.rint(_GRID * unit_rows(candidates))
    step = chunk or max(1, _NUMBERS // len(candidates))
    own, theirs = labels or (np.zeros(len(embeddings)), np.zeros(len(candidates)))
    for label in np.unique(theirs).tolist():
        columns, voters = np.flatnonzero(theirs == label), np.flatnonzero(usable & (own == label))
        reference = known[columns].T
        for start in range(0, len(voters), step):
            rows = voters[start : start + step]
            found[rows] = columns[np.argmax(np.rint(_GRID * unit_rows(embeddings[rows])) @ reference, axis=1)]
    return found


def histogram_vectors(space: CandidateSpace, nearest: IntArray, owner: IntArray, slots: IntArray) -> FloatArray:
    """The vectors of some clients.

    Args:
        space: of the round.
        nearest: (N,) from `nearest_candidates`, private.
        owner: (N,) int64 slots, ascending, private.
        slots: (r,) int64 which clients, ascending.

    Returns:
        (r, M) float64, rows of norm at most 1; zero for null clients.
    """
    votes = _votes(space.count, nearest, owner, slots)
    blocks = [votes[:, part.columns].reshape(len(slots), -1, part.size) for part in space.parts]
    floors = [NO_VARIANCE * np.sqrt(np.einsum("rkj,rkj->rk", block, block)) for block in blocks]
    if space.standardised:
        blocks = [_centred(block, part.centre) for part, block in zip(space.parts, blocks, strict=True)]
    norms = [np.sqrt(np.einsum("rkj,rkj->rk", block, block)) for block in blocks]
    out = np.zeros((len(slots), space.count))
    for part, block, weight in zip(space.parts, blocks, block_weights(space, norms, floors), strict=True):
        out[:, part.columns] = (block * weight[:, :, None]).reshape(len(slots), -1)
    out /= np.maximum(1.0, np.sqrt(np.square(out).sum(axis=1, keepdims=True)))
    return out


def histogram_sum(
    space: CandidateSpace, nearest: IntArray, owner: IntArray, mask: Mask, *, chunk: int | None = None
) -> FloatArray:
    """Sum of the clipped histograms of the clients that take part; private until noised.

    *Guarantee*: adding or removing one client (a null client in its slot) moves it by at most 1 in L2 norm, up to
    float64 rounding; make the query with `scoring.as_query`.

    Args:
        space: of the round, from `client_vectors.candidate_space`.
        nearest: (N,) from `nearest_candidates`, private.
        owner: (N,) int64 slots, ascending, private.
        mask: (n,) bool, who takes part.
        chunk: slots at a time; None: about 32 MiB. Memory does not grow with n.

    Returns:
        (M,) float64.

    Raises:
        ValueError: shapes do not fit, or slots are not ascending.
    """
    if nearest.shape != owner.shape or np.any(np.diff(owner) < 0) or mask.dtype != np.bool_:
        raise ValueError(f"expected (N,) votes, ascending owners, bool mask: {nearest.shape}, {owner.shape}")
    total, taking_part = np.zeros(space.count), mask[owner]
    cast, voter = nearest[taking_part], owner[taking_part]
    step = min(len(mask), chunk or max(1, _NUMBERS // space.count))
    for start in range(0, len(mask), max(step, 1)):
        if mask[start : start + step].any():
            # Slots behind the last one are those of nobody.
            slots = np.arange(start, start + step, dtype=np.int64)
            total += histogram_vectors(space, cast, voter, slots).sum(axis=0)
    return total


def _centred(block: FloatArray, centre: int) -> FloatArray:
    """(r, groups, size) less the mean of each run of `centre` candidates."""
    alike = block.reshape(len(block), -1, centre)
    less: FloatArray = alike - alike.mean(axis=2, keepdims=True)
    return less.reshape(block.shape)


def _votes(count: int, nearest: IntArray, owner: IntArray, slots: IntArray) -> FloatArray:
    """(r, M) share of each client's samples that vote for each candidate."""
    votes = np.zeros((len(slots), count))
    if len(slots) == 0:
        return votes
    span = slice(np.searchsorted(owner, slots[0]), np.searchsorted(owner, slots[-1], side="right"))
    own, vote = owner[span], nearest[span]
    row = np.searchsorted(slots, own)
    member = slots[row] == own  # clients in between take no part
    row, vote = row[member], vote[member]
    samples = np.bincount(row, minlength=len(slots))
    cast = vote >= 0
    np.add.at(votes, (row[cast], vote[cast]), 1.0 / samples[row[cast]])
    return votes
