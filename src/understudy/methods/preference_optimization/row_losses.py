"""How likely the tuned generator, or the public one, finds texts."""

from __future__ import annotations

from functools import partial

from understudy.auditing.row_losses import RowLosses, TokenRows
from understudy.evaluation.texts.language_model import encoded_texts, text_losses
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.reading import RowsToRead
from understudy.models.loading import load_base, load_model

_BATCH = 32


def row_losses(asked: RowsToRead) -> RowLosses:
    """Mean negative log-likelihood per token of each text without a prompt.

    Raises:
        InputError: the folder holds no model.
    """
    config = asked.settings(PreferenceOptimizationConfig)
    loaded = load_model(asked.model, compute=asked.compute) if asked.model else load_base(config, asked.compute)
    texts = asked.rows["text"].to_pylist()
    starts = range(0, len(texts), _BATCH)
    parts = tuple(partial(text_losses, loaded, texts[start : start + _BATCH]) for start in starts)

    def tokens() -> TokenRows:
        ids, mask = encoded_texts(loaded, texts)
        return TokenRows(ids, mask, mask.bool())

    return RowLosses(loaded.model, parts, tokens)
