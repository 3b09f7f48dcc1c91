"""How likely the client's model, or the shared base, finds the responses of pairs."""

from __future__ import annotations

from understudy.auditing.pair_losses import pair_losses
from understudy.auditing.row_losses import RowLosses
from understudy.generation.instructions import PairEncoder
from understudy.methods.knowledge_distillation.base import shared_base
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.reading import RowsToRead
from understudy.models.loading import load_model


def row_losses(asked: RowsToRead) -> RowLosses:
    """Mean negative log-likelihood of each pair's response behind its instruction.

    Raises:
        InputError: the folder holds no model, or the seed set is not the one that the run began with.
        UnderstudyError: there is a null record among the pairs.
    """
    config = asked.settings(KnowledgeDistillationConfig)
    loaded = load_model(asked.model, compute=asked.compute) if asked.model else shared_base(config, asked.compute)
    encoder = PairEncoder(loaded.tokenizer, config.template)
    return pair_losses(loaded.model, encoder, asked.rows, max_length=config.train.max_length)
