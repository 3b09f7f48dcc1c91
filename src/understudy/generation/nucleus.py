"""Draw tokens from the nucleus of a distribution (Holtzman et al. 2019), by inversion in vocabulary order.

Uniform numbers choose the tokens, so rounding cannot reorder them. On the CPU only tokens that can be in the nucleus
are sorted, some rows at a time; neither changes a token.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from understudy.compute import running_sum, widened
from understudy.errors import UnderstudyError

Floats = NDArray[np.floating]

# Numbers of a distribution that are worked on together, on the CPU: more of them leave its cache.
_TOGETHER: Final = 1 << 20


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
    pieces = []
    for some, own in zip(torch.split(logits, rows), torch.split(uniforms, rows), strict=True):
        likely, tokens = _likely(torch.softmax(widened(some) / temperature, dim=-1), top_p=top_p)
        pieces.append(tokens.gather(-1, _drawn(likely, own, top_p=top_p)[:, None])[:, 0])
    return torch.cat(pieces)


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
    values = _descending(probabilities)
    mass = running_sum(values.double())
    needed = (torch.searchsorted(mass, mass.new_full((len(mass), 1), top_p)) + 1).clamp(max=values.shape[-1])
    threshold = values.gather(-1, needed - 1)
    kept = probabilities >= threshold
    extra = kept.sum(-1, keepdim=True) - needed
    # Ties at the border are rare, and counting them takes longer than all else; to ask costs nothing on the CPU only.
    if probabilities.device.type == "cpu" and not bool(extra.any()):
        return kept
    ties = probabilities == threshold
    return kept & ~(ties & (ties.cumsum(-1) > ties.sum(-1, keepdim=True) - extra))


def _descending(values: Tensor) -> Tensor:
    """Each row from large to small, without the order's indices: numpy's vector sort is far faster than torch's."""
    if values.device.type != "cpu":
        return values.sort(dim=-1, descending=True).values
    return torch.from_numpy(np.sort(widened(values).numpy(), axis=-1)).to(values.dtype).flip(-1)


def _drawn(probabilities: Tensor, uniforms: Tensor, *, top_p: float) -> Tensor:
    """Places of the drawn tokens, `(batch,)`."""
    kept = torch.where(keep_nucleus(probabilities, top_p=top_p), probabilities, 0.0)
    cumulative = running_sum(kept.double())
    total = cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, uniforms[:, None] * total, right=True)
    last = torch.searchsorted(cumulative, total.contiguous())  # rounding may carry the product up to the total
    return torch.minimum(drawn, last)[:, 0]


def _likely(probabilities: Tensor, *, top_p: float) -> tuple[Tensor, Tensor]:
    """The tokens that can be in the nucleus, in vocabulary order.

    The running sums of those that are in it stay what they were to the last bit: the CPU adds one number after the
    other, and those left out come last or count as 0.

    Returns:
        `(batch, most)` probabilities, 0 where a row has fewer such tokens, and their ids, int64.

    Raises:
        UnderstudyError: a row's probabilities are not numbers.
    """
    values = probabilities.numpy()
    kept = [np.flatnonzero(row) for row in values > _thresholds(values, top_p=top_p)]
    counts = [len(ids) for ids in kept]
    if not all(counts):
        raise UnderstudyError(
            "expected a distribution over the next token, found logits that are no numbers: the model has diverged; "
            "lower its learning rate"
        )
    likely, tokens = (np.zeros((len(kept), max(counts)), kind) for kind in (values.dtype, np.int64))
    for row, (ids, count) in enumerate(zip(kept, counts, strict=True)):
        likely[row, :count], tokens[row, :count] = values[row, ids], ids
    return torch.from_numpy(likely), torch.from_numpy(tokens)


def _thresholds(values: Floats, *, top_p: float) -> Floats:
    """A probability per row, `(batch, 1)`, below every one of its nucleus.

    Tokens below the lower one have at most half of the mass that the nucleus leaves out. In most distributions those
    above the higher one, far fewer, reach the nucleus's mass by themselves.
    """
    low = (1 - top_p) / (2 * values.shape[1])
    high = 8 * low
    mass = np.where(values > high, values, 0).sum(axis=1, keepdims=True, dtype=np.float64)
    # By more than sums in another order differ.
    thresholds: Floats = np.where(mass > top_p + 1e-9, high, low).astype(values.dtype)
    return thresholds
