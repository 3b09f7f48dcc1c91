"""Pairs of instruction and response, read by a language model."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
from torch import Tensor

from understudy.auditing.row_losses import RowLosses, TokenRows
from understudy.compute import copied_to
from understudy.errors import UnderstudyError
from understudy.generation.instructions import EncodedPairs, PairEncoder, pairs_of
from understudy.generation.scoring import sparse_response_losses

_BATCH = 32


def pair_losses(model: Any, encoder: PairEncoder, table: pa.Table, *, max_length: int) -> RowLosses:
    """Mean negative log-likelihood of each pair's response behind its instruction.

    Args:
        model: causal language model of transformers.
        encoder: of its tokenizer, with the run's template.
        table: of pairs.
        max_length: tokens of a pair that are read.

    Raises:
        UnderstudyError: there is a null record among the pairs.
    """
    pairs = [pair for pair in pairs_of(table) if pair is not None]
    if len(pairs) != table.num_rows:
        raise UnderstudyError(f"expected {table.num_rows} pairs, found {len(pairs)} and null records")
    rows = encoder.encode(pairs, max_length=max_length)
    starts = range(0, len(pairs), _BATCH)
    parts = tuple(partial(_losses, model, rows, slice(start, start + _BATCH)) for start in starts)
    return RowLosses(model, parts, partial(TokenRows, rows.input_ids, rows.attention_mask, rows.loss_mask))


def _losses(model: Any, rows: EncodedPairs, some: slice) -> Tensor:
    device, width = next(model.parameters()).device, max(2, int(rows.attention_mask[some].sum(1).max()))
    batch = {
        name: copied_to(getattr(rows, name)[some, :width], device)
        for name in ("input_ids", "attention_mask", "loss_mask")
    }
    return sparse_response_losses(model, batch)
