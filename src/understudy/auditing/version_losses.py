"""Losses of versions of one text by a language model: what the versions begin with is read once.

The versions of a canary differ in their last word alone. A causal model's states at the tokens before it are the same
for all of them, so the tokens that all versions begin with are read once, and each version's own tokens on top of their
keys and values. Tokens at the border may merge, so what is shared is found among tokens and not among characters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from understudy.auditing.row_losses import RowLosses, TokenRows
from understudy.compute import copied_to
from understudy.generation.cache import KeyValues
from understudy.generation.prompts import position_ids
from understudy.generation.step import advance, head, next_logits
from understudy.privacy.dpsgd.token_losses import token_losses


def parts_of_versions(read: RowLosses, count: int) -> Sequence[Callable[[], Tensor]]:
    """What gives the losses of rows that are versions of texts, text after text; of a model without tokens, row by row.

    Args:
        read: the rows, ready to be read.
        count: versions of each text; they stand together.

    Returns:
        Parts, each of which gives the losses `(k,)` of the next few rows, without a graph.
    """
    if read.tokens is None:
        return read.parts
    rows = read.tokens()
    starts = range(0, len(rows.input_ids), count)
    return tuple(partial(_losses, read.model, rows, slice(start, start + count)) for start in starts)


def _losses(model: Any, rows: TokenRows, some: slice) -> Tensor:
    """Of the versions of one text, `(versions,)` float64: the mean over a version's tokens that count."""
    device = next(model.parameters()).device
    width = int(rows.attention_mask[some].any(0).nonzero().max()) + 1
    ids, mask, counted = (
        copied_to(tensor[some, :width], device) for tensor in (rows.input_ids, rows.attention_mask, rows.counted)
    )
    shared = _shared_columns(ids, mask, counted)
    with torch.no_grad():
        sums, cache = _read_shared(model, ids, mask, counted, shared)
        if shared < width - 1:
            sums = sums + _read_own(model, cache, ids, mask, counted, shared)
    return sums / counted[:, 1:].sum(1).clamp(min=1)


def _shared_columns(*tensors: Tensor) -> int:
    """In how many columns from the left all rows are alike."""
    alike = torch.stack([(tensor == tensor[:1]).all(0) for tensor in tensors]).all(0)
    return int(alike.long().cumprod(0).sum())


def _read_shared(model: Any, ids: Tensor, mask: Tensor, counted: Tensor, shared: int) -> tuple[Tensor, KeyValues]:
    """Losses of the tokens that all versions begin with and of the first that they do not, `(versions,)`; and a cache.

    One state predicts that first token, so its logits are computed once.
    """
    sums = torch.zeros(len(ids), dtype=torch.float64, device=ids.device)
    if not shared:
        return sums, []
    one, seen = ids[:1, :shared], mask[:1, :shared]
    states, cache = advance(model, [], attention_mask=seen, position=position_ids(seen), input_ids=one)
    sums += _counted_losses(model, states[:, :-1], one[:, 1:], counted[:1, 1:shared])
    if shared < ids.shape[1]:
        likely = torch.log_softmax(next_logits(model, states[:, -1]).double(), -1)[0]
        sums -= likely[ids[:, shared]] * counted[:, shared]
    return sums, cache


def _read_own(model: Any, cache: KeyValues, ids: Tensor, mask: Tensor, counted: Tensor, shared: int) -> Tensor:
    """Losses of the tokens behind each version's first own one, `(versions,)` float64."""
    past = [(keys.expand(len(ids), -1, -1, -1), values.expand(len(ids), -1, -1, -1)) for keys, values in cache]
    own = slice(shared, -1)
    states, _ = advance(
        model, past, attention_mask=mask[:, :-1], position=position_ids(mask)[:, own], input_ids=ids[:, own]
    )
    return _counted_losses(model, states, ids[:, shared + 1 :], counted[:, shared + 1 :])


def _counted_losses(model: Any, states: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
    """Sums `(rows,)` float64 of the losses of targets that count; the others never meet the head."""
    layer = head(model)
    hidden = states[counted].to(next(layer.parameters()).dtype)
    losses = token_losses(layer, hidden[None], targets[counted][None])[0].double()
    return losses.new_zeros(len(states)).index_add(0, counted.nonzero()[:, 0], losses)
