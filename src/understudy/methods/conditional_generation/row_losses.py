"""How likely the trained language model, or the public one, finds labelled texts behind their prompts."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from understudy.auditing.row_losses import RowLosses, TokenRows
from understudy.compute import copied_to
from understudy.data.private_rows import private_rows
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.encode import EncodedRows, encode
from understudy.methods.conditional_generation.losses import lm_loss
from understudy.methods.conditional_generation.model import MultitaskModel
from understudy.methods.conditional_generation.storage import load_trained
from understudy.methods.reading import RowsToRead
from understudy.models.loading import load_base

_BATCH = 32


def row_losses(asked: RowsToRead) -> RowLosses:
    """Mean negative log-likelihood of each row's text and end token.

    Raises:
        InputError: the folder holds no model of this method.
    """
    config = asked.settings(ConditionalGenerationConfig)
    if asked.model is None:
        base = load_base(config, asked.compute)
        lm, tokenizer = base.model, base.tokenizer
    else:
        trained = load_trained(asked.model, asked.compute).trained
        lm, tokenizer = trained.model.lm, trained.tokenizer  # type: ignore[assignment]
    return losses_of(lm, encode(private_rows(asked.rows, asked.label_names), tokenizer=tokenizer, config=config))


def losses_of(lm: nn.Module, rows: EncodedRows) -> RowLosses:
    """The losses of encoded rows by a language model."""
    model = MultitaskModel(lm)
    starts = range(0, len(rows.valid), _BATCH)
    parts = tuple(partial(_losses, model, rows, slice(start, start + _BATCH)) for start in starts)
    return RowLosses(lm, parts, partial(TokenRows, rows.input_ids, rows.attention_mask, rows.loss_mask))


def _losses(model: MultitaskModel, rows: EncodedRows, some: slice) -> Tensor:
    device = next(model.lm.parameters()).device
    names = ("input_ids", "attention_mask", "loss_mask")
    # Behind the longest text of these rows is padding alone.
    width = int(rows.loss_mask[some].any(0).nonzero().max()) + 1
    batch = {name: copied_to(getattr(rows, name)[some, :width], device) for name in names}
    return lm_loss(model, batch, prompts=rows.prompts)
