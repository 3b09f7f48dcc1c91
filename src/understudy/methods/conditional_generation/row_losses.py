"""How likely the trained language model, or the public one, finds labelled texts behind their prompts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from understudy.compute import copied_to
from understudy.data.private_rows import private_rows
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.encode import encode
from understudy.methods.conditional_generation.losses import lm_loss
from understudy.methods.conditional_generation.model import MultitaskModel
from understudy.methods.conditional_generation.storage import load_trained
from understudy.methods.reading import RowsToRead
from understudy.models.loading import load_base

_BATCH = 32


def row_losses(asked: RowsToRead) -> npt.NDArray[np.float64]:
    """Mean negative log-likelihood of each row's text and end token, `(n,)` in nats.

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
    rows = encode(private_rows(asked.rows, asked.label_names), tokenizer=tokenizer, config=config)
    model, device = MultitaskModel(lm), next(lm.parameters()).device
    found = []
    with torch.no_grad():
        for start in range(0, len(rows.valid), _BATCH):
            some = slice(start, start + _BATCH)
            batch = {
                name: copied_to(getattr(rows, name)[some], device)
                for name in ("input_ids", "attention_mask", "loss_mask")
            }
            found.append(lm_loss(model, batch, prompts=rows.prompts).double().cpu().numpy())
    return np.concatenate(found)
