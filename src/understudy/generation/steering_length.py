"""How far a row's next-token distribution may be moved along a line: as far as its KL divergence stays in a budget.

Moved along a slope s by a length t, a distribution p becomes q_t, proportional to p exp(t s), and

    KL(q_t || p) = t E_q[s] - log E_p[exp(t s)]

which takes one pass over a vocabulary, whose part of the tables stays in the cache from one length to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

_CORRECTIONS: Final = 4  # of a row's length by its divergence, which grows like the square of it
_BLOCK: Final = 2**16  # numbers of a table that stay in a core's cache while they are read over and over
_SMALLEST: Final = torch.finfo(torch.float32).tiny


def length_within(logits: Tensor, slope: Tensor, *, budget: float, farthest: Tensor) -> Tensor:
    """How far each row may go: the largest length found whose KL(softmax(logits + length * slope) || p) is in budget.

    Where p is all but sure of a token, nothing happens for long and then all of it at once; the corrections do not
    settle there and the row stays as it is. Steering such rows too costs nats and was not seen to help
    (docs/results/untuned.md).

    It starts where the quadratic approximation of the divergence, half the variance of the slope under p, is the
    budget, and is corrected by the divergence itself.

    Args:
        logits: `(active, vocab)` of the unmodified distribution p, float32 or wider.
        slope: `(active, vocab)` change of the logits per unit of length.
        budget: nats, above 0.
        farthest: `(active,)` largest length.

    Returns:
        `(active,)`, 0 where nothing moves or no length was found; a row's depends on no other row.
    """
    rows = max(_BLOCK // logits.shape[1], 1) if logits.device.type == "cpu" else max(len(logits), 1)
    blocks = zip(*(torch.split(part, rows) for part in (logits, slope, farthest)), strict=True)
    return torch.cat([_search(_line(*block), budget, limit) for *block, limit in blocks])


@dataclass(frozen=True)
class _Line:
    """What is moved: `(rows, vocab)` logits of p below 0, and the slope less its mean under p."""

    logits: Tensor
    slope: Tensor
    log_mass: Tensor  # (rows,) logarithm of the sum of exp(logits)
    variance: Tensor  # (rows,) of the slope under p, 0 where it is rounding


def _line(logits: Tensor, slope: Tensor) -> _Line:
    logits = logits - logits.amax(-1, keepdim=True)
    weights = logits.exp()
    mass = weights.sum(-1)
    mean = torch.linalg.vecdot(weights, slope) / mass
    slope = slope - mean[:, None]
    variance = torch.linalg.vecdot(weights.mul_(slope), slope) / mass
    # Less would be rounding: float32 sums over the vocabulary.
    moves = variance > 1e-6 * (variance + mean.square())
    return _Line(logits, slope, mass.log(), torch.where(moves, variance, 0))


def _search(line: _Line, budget: float, farthest: Tensor) -> Tensor:
    """`(rows,)` length of each row."""
    length = torch.where(line.variance > 0, (2 * budget / line.variance.clamp(min=_SMALLEST)).sqrt(), 0)
    for _ in range(_CORRECTIONS):
        length = torch.minimum(length, farthest)
        excess = _divergence(line, length) / budget
        length = length * excess.clamp(1 / 16, 16).rsqrt()
    # A little less than what the last correction asks for, and nothing where that is still too far.
    length = torch.minimum(0.98 * length, farthest)
    return torch.where(_divergence(line, length) <= budget, length, 0)


def _divergence(line: _Line, length: Tensor) -> Tensor:
    """KL(q || p) of each row, `(rows,)` in nats."""
    moved = torch.addcmul(line.logits, line.slope, length[:, None])
    top = moved.amax(-1)
    weights = moved.sub_(top[:, None]).exp_()
    mass = weights.sum(-1)
    mean: Tensor = torch.linalg.vecdot(weights, line.slope) / mass
    return length * mean - (mass.log() + top - line.log_mass)
