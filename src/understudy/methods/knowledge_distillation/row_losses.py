"""How likely the client's model, or the shared base, finds the responses of pairs."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from understudy.auditing.row_losses import RowLosses
from understudy.compute import copied_to
from understudy.errors import UnderstudyError
from understudy.generation.instructions import EncodedPairs, PairEncoder, pairs_of
from understudy.generation.scoring import sparse_response_losses
from understudy.methods.knowledge_distillation.base import shared_base
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.reading import RowsToRead
from understudy.models.loading import load_model

_BATCH = 32


def row_losses(asked: RowsToRead) -> RowLosses:
    """Mean negative log-likelihood of each pair's response behind its instruction.

    Raises:
        InputError: the folder holds no model, or the seed set is not the one that the run began with.
        UnderstudyError: there is a null record among the pairs.
    """
    config = asked.settings(KnowledgeDistillationConfig)
    loaded = load_model(asked.model, compute=asked.compute) if asked.model else shared_base(config, asked.compute)
    pairs = [pair for pair in pairs_of(asked.rows) if pair is not None]
    if len(pairs) != asked.rows.num_rows:
        raise UnderstudyError(f"expected {asked.rows.num_rows} pairs, found {len(pairs)} and null records")
    rows = PairEncoder(loaded.tokenizer, config.template).encode(pairs, max_length=config.train.max_length)
    starts = range(0, len(pairs), _BATCH)
    parts = tuple(partial(_losses, loaded.model, rows, slice(start, start + _BATCH)) for start in starts)
    return RowLosses(loaded.model, parts)


def _losses(model: Any, rows: EncodedPairs, some: slice) -> Tensor:
    device, width = next(model.parameters()).device, max(2, int(rows.attention_mask[some].sum(1).max()))
    batch = {
        name: copied_to(getattr(rows, name)[some, :width], device)
        for name in ("input_ids", "attention_mask", "loss_mask")
    }
    return sparse_response_losses(model, batch)
