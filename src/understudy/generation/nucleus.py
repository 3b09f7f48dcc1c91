"""Draw tokens from the nucleus of a distribution (Holtzman et al. 2019), by inversion in vocabulary order.

Uniform numbers choose the tokens, so rounding cannot reorder them. On the CPU a few rows at a time stay in the core's
cache, running sums are looked up by sums of blocks, and only what can be in the nucleus is sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from understudy.compute import running_sum, widened
from understudy.errors import UnderstudyError

Floats = NDArray[np.floating]

# Numbers of a distribution that are worked on together, on the CPU: they stay in a core's cache.
_TOGETHER: Final = 1 << 17
# Tokens of a block.
_BLOCK: Final = 64
# Of a vocabulary; to gather more of it takes longer than to sort all.
_FEW: Final = 0.5
# By more than a sum in float32 is off: it adds pairwise.
_MARGIN: Final = 1e-4


def draw_tokens(logits: Tensor, uniforms: Tensor, *, temperature: float, top_p: float) -> Tensor:
    """Draw one token per row by inverting the nucleus distribution in vocabulary order.

    Args:
        logits: `(batch, vocab)`; a token with -inf is never drawn.
        uniforms: `(batch,)` float64 in [0, 1).
        temperature: Divides the logits.
        top_p: Nucleus mass.

    Returns:
        `(batch,)` int64 token ids.

    Raises:
        UnderstudyError: a row's logits are not numbers; seen on the CPU only.
    """
    if logits.device.type != "cpu":
        return _drawn(torch.softmax(widened(logits) / temperature, dim=-1), uniforms, top_p=top_p)
    rows = max(1, _TOGETHER // logits.shape[1])
    pieces = zip(torch.split(logits, rows), torch.split(uniforms, rows), strict=True)
    return torch.tensor(
        [
            token
            for some, own in pieces
            for token in _tokens(torch.softmax(widened(some) / temperature, dim=-1), own.tolist(), top_p=top_p)
        ],
        dtype=torch.long,
        device="cpu",
    )


def keep_nucleus(probabilities: Tensor, *, top_p: float) -> Tensor:
    """Mask of the smallest set of most likely tokens whose mass reaches `top_p` (Holtzman et al. 2019, eq. 2).

    Ties at the border go to the lower token id.

    Args:
        probabilities: `(batch, vocab)`, each row sums to 1.
        top_p: Nucleus mass in (0, 1].

    Returns:
        `(batch, vocab)` bool.
    """
    if top_p >= 1:
        return probabilities > 0
    values = probabilities.sort(dim=-1, descending=True).values
    mass = running_sum(values.double())
    needed = (torch.searchsorted(mass, mass.new_full((len(mass), 1), top_p)) + 1).clamp(max=values.shape[-1])
    threshold = values.gather(-1, needed - 1)
    kept = probabilities >= threshold
    extra = kept.sum(-1, keepdim=True) - needed
    ties = probabilities == threshold
    return kept & ~(ties & (ties.cumsum(-1) > ties.sum(-1, keepdim=True) - extra))


def _drawn(probabilities: Tensor, uniforms: Tensor, *, top_p: float) -> Tensor:
    """Places of the drawn tokens, `(batch,)`: all rows at once."""
    kept = torch.where(keep_nucleus(probabilities, top_p=top_p), probabilities, 0.0)
    cumulative = running_sum(kept.double())
    total = cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, uniforms[:, None] * total, right=True)
    last = torch.searchsorted(cumulative, total.contiguous())  # rounding may carry the product up to the total
    return torch.minimum(drawn, last)[:, 0]


def _tokens(probabilities: Tensor, uniforms: Sequence[float], *, top_p: float) -> list[int]:
    """`_drawn` of some rows on the CPU.

    Raises:
        UnderstudyError: a row's probabilities are not numbers.
    """
    if bool(probabilities[:, 0].isnan().any()):  # where one logit is no number, no probability is
        raise UnderstudyError(
            "expected a distribution over the next token, found logits that are no numbers: the model has diverged; "
            "lower its learning rate"
        )
    rows: Floats = probabilities.numpy()
    if top_p >= 1:
        return [_place(row, uniform) for row, uniform in zip(rows, uniforms, strict=True)]
    # All tokens that are less probable have at most four times the mass that the nucleus leaves out. In most
    # distributions the others, which are few, reach the nucleus's mass by themselves, and so hold the nucleus.
    limit = 4 * (1 - top_p) / rows.shape[1]
    enough = (functional.threshold(probabilities, limit, 0.0).sum(-1) > top_p + _MARGIN).tolist()
    tokens = []
    for row, are_enough, uniform in zip(rows, enough, uniforms, strict=True):
        likely = row > limit
        if are_enough and np.count_nonzero(likely) < len(row) * _FEW:
            ids = np.flatnonzero(likely)
            tokens.append(int(ids[_place(_nucleus(row[ids], top_p=top_p), uniform)]))
        else:
            tokens.append(_place(_nucleus(row, top_p=top_p), uniform))
    return tokens


def _nucleus(likely: Floats, *, top_p: float) -> Floats:
    """Probabilities of tokens that hold the nucleus, in vocabulary order; 0 for those that are not in it."""
    descending = np.sort(likely)[::-1]
    last = _first(descending, _sums_of_blocks(descending), top_p, side="left")
    least = descending[last]
    kept = likely >= least
    surplus = np.count_nonzero(kept) - last - 1
    if surplus:
        kept[np.flatnonzero(likely == least)[-surplus:]] = False
    nucleus: Floats = likely * kept
    return nucleus


def _place(weights: Floats, uniform: float) -> int:
    """Where a uniform number falls among the running sums of weights; never at a weight of 0."""
    sums = _sums_of_blocks(weights)
    return _first(weights, sums, uniform * sums[-1], side="right")


def _first(values: Floats, sums: NDArray[np.float64], target: float, *, side: Literal["left", "right"]) -> int:
    """Place of the first of `values` whose running sum reaches (`left`) or exceeds (`right`) the target.

    Where rounding hides it, the last place that adds to its block.
    """
    block = min(int(sums.searchsorted(target, side)), int(sums.searchsorted(sums[-1])))
    within = values[block * _BLOCK : (block + 1) * _BLOCK].cumsum(dtype=np.float64)
    # Of the block by itself: added to what is before, rounding may hide the little that it holds.
    last = int(within.searchsorted(within[-1]))
    if block:
        within += sums[block - 1]
    return block * _BLOCK + min(int(within.searchsorted(target, side)), last)


def _sums_of_blocks(values: Floats) -> NDArray[np.float64]:
    """Running sums at the ends of blocks."""
    starts = np.arange(0, len(values), _BLOCK)
    sums: NDArray[np.float64] = np.add.reduceat(values, starts, dtype=np.float64).cumsum()
    return sums
