"""How likely the client's model, or the shared base, finds the responses of pairs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from understudy.errors import UnderstudyError
from understudy.generation.instructions import PairEncoder, pairs_of
from understudy.generation.scoring import mean_response_losses
from understudy.methods.knowledge_distillation.base import shared_base
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.reading import RowsToRead
from understudy.models.loading import load_model


def row_losses(asked: RowsToRead) -> npt.NDArray[np.float64]:
    """Mean negative log-likelihood of each pair's response behind its instruction, `(n,)` in nats.

    Raises:
        InputError: the folder holds no model, or the seed set is not the one that the run began with.
        UnderstudyError: there is a null record among the pairs.
    """
    config = asked.settings(KnowledgeDistillationConfig)
    loaded = load_model(asked.model, compute=asked.compute) if asked.model else shared_base(config, asked.compute)
    pairs = [pair for pair in pairs_of(asked.rows) if pair is not None]
    if len(pairs) != asked.rows.num_rows:
        raise UnderstudyError(f"expected {asked.rows.num_rows} pairs, found {len(pairs)} and null records")
    encoder = PairEncoder(loaded.tokenizer, config.template)
    return mean_response_losses(loaded.model, encoder.encode(pairs, max_length=config.train.max_length))
