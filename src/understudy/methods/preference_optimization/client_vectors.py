"""What one client says about the candidates: a vector of L2 norm at most 1, a function of that client alone.

Paper: POPri, algorithm 4 (mean cosine similarity, clipped to norm 1). Central variants, algorithms 2, 3 and 5: the same
with one text per client; *deviation*: each text's vector is clipped, which algorithm 5 forgets and its noise needs.
*Deviation*: by default scores are standardised before the clip, since raw cosines share an offset that eats it.

m: mean of a client's unit embeddings, (d,). E: unit candidates, (M, d), cut into groups b: the J candidates of a prompt
(`over="prompt"`), or all of one label (`over="within"` and `"all"`; without labels all there are).

    s = E m                                   cosine similarity to the client's samples, averaged over them
    v_b = (s_b - mean(s_b)) / std(s_b)        `standardise`; 0 where the group has no variance. `none`: v = s
    vector = v / max(1, |v|)                  clip to L2 norm 1, in float64

The mean that is subtracted is the group's, with `within` that of the candidate's own prompt: only differences within a
prompt decide a preference. One spread for all prompts keeps a client's differences in proportion, a spread per prompt
gives every prompt the same weight.

*No variance*: |s_b - mean(s_b)| <= 1e-6 |m| |E_b|_F, about what float32 makes of the embeddings of equal texts.
A mean that is not finite, or beyond 1e100, counts as zero.
*Exact products*: at the border the last bit of a product decides whether a block has variance, or to which whole step
of a masked sum a score is rounded, and a product of matrices rounds a row by where it stands and by what else is there.
So candidates (norm at most 2) and means (norm at most 1) are rounded to multiples of 2^-25 first: float64 adds up their
products without error.
With labels a client has one mean per label, candidates are scored by that of their label, and the concatenated vector
is clipped once, never label by label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.floating[Any]]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

Over = Literal["within", "prompt", "all"]

NO_VARIANCE = 1e-6
LARGEST = 1e100
_GRID = 2.0**25


@dataclass(frozen=True)
class Part:
    """The candidates of one label, in groups of one size; public.

    Attributes:
        label: whose mean scores them.
        columns: (m,) int64 their places among all candidates, ascending.
        size: candidates of a group, which share a spread; m is a multiple.
        centre: candidates that share a mean; the size is a multiple.
        rows: (m, d) float64 unit rows, if scores are standardised less their mean; multiples of 2^-25.
        floor: (groups,) norm up to which a unit mean's scores have no variance.
    """

    label: int
    columns: IntArray
    size: int
    centre: int
    rows: FloatArray
    floor: FloatArray

    @property
    def blocks(self) -> FloatArray:
        """(groups, size, d) view of the rows."""
        return self.rows.reshape(-1, self.size, self.rows.shape[1])


@dataclass(frozen=True)
class CandidateSpace:
    """The candidates of a round as scoring needs them; public, made once per round.

    Attributes:
        parts: one per label.
        count: M.
        standardised: whether groups are standardised before the clip.
    """

    parts: tuple[Part, ...]
    count: int
    standardised: bool

    @property
    def by_norms(self) -> bool:
        """Whether Gram matrices of all groups are cheaper than the product."""
        return all(part.size > part.rows.shape[1] for part in self.parts)


def candidate_space(
    candidates: Rows,
    *,
    normalise: Literal["standardise", "none"],
    over: Over,
    per_prompt: int,
    labels: IntArray | None = None,
) -> CandidateSpace:
    """Group, scale and centre the candidates.

    Args:
        candidates: (M, d) embeddings, finite, candidate j of prompt k at k * J + j; public.
        normalise: standardise, or clip only.
        over: which candidates share a mean and a spread.
        per_prompt: J.
        labels: (M,) int64 label of each candidate, one per prompt; None: no labels. Public.

    Raises:
        ValueError: no whole prompts, values that are not finite, or two labels in one prompt.
    """
    if (
        candidates.ndim != 2
        or len(candidates) == 0
        or len(candidates) % per_prompt
        or not np.isfinite(candidates).all()
    ):
        raise ValueError(f"expected finite (K * {per_prompt}, d) candidates, found {candidates.shape}")
    of = np.zeros(len(candidates), dtype=np.int64) if labels is None else labels
    by_prompt = of.reshape(-1, per_prompt)
    if len(of) != len(candidates) or np.any(by_prompt != by_prompt[:, :1]):
        raise ValueError("expected one label for all candidates of a prompt")
    unit, parts = unit_rows(candidates), []
    for label in np.unique(of):
        columns = np.flatnonzero(of == label).astype(np.int64)
        size = per_prompt if normalise == "standardise" and over == "prompt" else len(columns)
        centre = per_prompt if over == "within" else size
        rows, floor = unit[columns], np.zeros(len(columns) // size)
        if normalise == "standardise":
            floor = NO_VARIANCE * np.sqrt(np.square(rows.reshape(-1, size, rows.shape[1])).sum(axis=(1, 2)))
            alike = rows.reshape(-1, centre, rows.shape[1])
            rows = (alike - alike.mean(axis=1, keepdims=True)).reshape(rows.shape)
        parts.append(Part(int(label), columns, size, centre, _on_grid(rows), floor))
    return CandidateSpace(tuple(parts), len(candidates), normalise == "standardise")


def client_vectors(space: CandidateSpace, means: FloatArray) -> FloatArray:
    """The vectors of some clients, one by one: what a client sends under masked aggregation.

    Args:
        space: of the round.
        means: (r, d), or (r, C * d) with labels; private. r decides the memory: r * M float64.

    Returns:
        (r, M) float64, rows of norm at most 1; zero for null clients.
    """
    products = products_of(space, mean_rows(space, means))
    out = np.zeros((len(means), space.count))
    for part, product, weight in zip(space.parts, products, product_weights(space, products), strict=True):
        out[:, part.columns] = (product * weight[:, :, None]).reshape(len(means), -1)
    # Rounding may leave a norm a hair above 1.
    out /= np.maximum(1.0, np.sqrt(np.square(out).sum(axis=1, keepdims=True)))
    return out


def block_weights(space: CandidateSpace, norms: Sequence[FloatArray], floors: Sequence[FloatArray]) -> list[FloatArray]:
    """The factor of each client's (centred) block that standardises it and clips the whole vector to norm 1.

    Args:
        space: of the round.
        norms: per part (r, groups) L2 norm of the block.
        floors: per part, what a norm must exceed to have variance; broadcasts to (r, groups).

    Returns:
        per part (r, groups) float64; 0 for blocks without variance and clients whose norms are not finite.
    """
    if not space.standardised:
        whole = np.sqrt(sum(np.square(norm).sum(axis=1, keepdims=True) for norm in norms))
        factor = np.where(np.isfinite(whole), 1.0 / np.maximum(1.0, whole), 0.0)
        return [np.broadcast_to(factor, norm.shape) for norm in norms]
    live = [norm > floor for norm, floor in zip(norms, floors, strict=True)]
    # A standardised block of g candidates has squared norm g.
    squared = sum(part.size * alive.sum(axis=1, keepdims=True) for part, alive in zip(space.parts, live, strict=True))
    clip = 1.0 / np.sqrt(np.maximum(1.0, squared))
    return [
        clip * np.sqrt(part.size) * np.divide(1.0, norm, out=np.zeros_like(norm), where=alive)
        for part, norm, alive in zip(space.parts, norms, live, strict=True)
    ]


def mean_rows(space: CandidateSpace, means: FloatArray) -> list[FloatArray]:
    """Per part the (r, d) means of its label in multiples of 2^-25, clients out of range zero.

    Where only their direction counts they are unit rows.
    """
    inside = (np.abs(means) <= LARGEST).all(axis=1, keepdims=True)
    clean, dimension = np.where(inside, means, 0.0), space.parts[0].rows.shape[1]
    if means.shape[1] % dimension or means.shape[1] < dimension * (1 + max(part.label for part in space.parts)):
        raise ValueError(f"expected means of {dimension} numbers per label, found {means.shape}")
    found = [clean[:, part.label * dimension : (part.label + 1) * dimension] for part in space.parts]
    return [_on_grid(unit_rows(rows) if space.standardised else rows) for rows in found]


def products_of(space: CandidateSpace, rows: Sequence[FloatArray]) -> list[FloatArray]:
    """Per part (r, groups, size)."""
    pairs = zip(space.parts, rows, strict=True)
    return [(mean @ part.rows.T).reshape(len(mean), -1, part.size) for part, mean in pairs]


def product_weights(space: CandidateSpace, products: Sequence[FloatArray]) -> list[FloatArray]:
    """`block_weights` of products, per part (r, groups)."""
    norms = [np.sqrt(np.einsum("rkj,rkj->rk", product, product)) for product in products]
    return block_weights(space, norms, [part.floor for part in space.parts])


def _on_grid(rows: FloatArray) -> FloatArray:
    """The nearest multiples of 2^-25."""
    near: FloatArray = np.rint(_GRID * rows) / _GRID
    return near


def unit_rows(rows: Rows) -> FloatArray:
    """Rows scaled to L2 norm 1, in float64; zero rows stay zero, rows that are not finite stay so."""
    wide = rows.astype(np.float64)
    largest = np.abs(wide).max(axis=1, keepdims=True, initial=0.0)
    with np.errstate(invalid="ignore"):
        wide = wide / np.where(largest > 0, largest, 1.0)  # squares neither overflow nor vanish
        norms = np.sqrt(np.square(wide).sum(axis=1, keepdims=True))
        scaled: FloatArray = wide / np.where(norms > 0, norms, 1.0)
    return scaled
