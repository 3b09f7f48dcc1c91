"""Per-example losses (paper, section 5.1.3); every shape is public, what a row lacks is masked.

Deviation: a row's language-model loss is the mean over its own text and EOS tokens, so that one example's
weight does not depend on the others in its batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from understudy.generation.prompts import PromptTable
from understudy.generation.step import head, last_states
from understudy.methods.conditional_generation.model import Classifier, MultitaskModel
from understudy.methods.conditional_generation.states import (
    Representation,
    hide_labels,
    prefix_states,
    random_labels,
)
from understudy.privacy.dpsgd.per_example import Batch
from understudy.privacy.dpsgd.token_losses import token_losses


def lm_loss(model: MultitaskModel, batch: Batch, *, prompts: PromptTable) -> Tensor:
    """Mean negative log-likelihood of each row's text and EOS given its prompt, in nats.

    Args:
        model: Its `lm` is used.
        batch: `input_ids`, `attention_mask`, `loss_mask`, each `(batch, length)`.
        prompts: Says where texts begin.

    Returns:
        `(batch,)`; 0 for a row without text.
    """
    hidden = last_states(model.lm, batch["input_ids"], batch["attention_mask"])
    return _text_likelihood(model.lm, hidden, batch, start=prompts.width)


def _text_likelihood(lm: Any, hidden: Tensor, batch: Batch, *, start: int) -> Tensor:
    # Only the columns that predict text meet the head: logits are the largest tensor of all.
    layer = head(lm)
    states = hidden[:, start - 1 : -1].to(next(layer.parameters()).dtype)
    losses = token_losses(layer, states, batch["input_ids"][:, start:])
    present = batch["loss_mask"][:, start:].to(losses.dtype)
    return (losses * present).sum(1) / present.sum(1).clamp(min=1)


@dataclass(frozen=True)
class Reading:
    """How a discriminator reads a row; public.

    Attributes:
        prompts: Where labels stand and texts begin.
        prefix_step: Distance of two prefixes in tokens.
        representation: What the head sees of a prefix.
        seed: Public seed of the tokens that hide the label.
    """

    prompts: PromptTable
    prefix_step: int
    representation: Representation
    seed: int


def discriminator_loss(model: MultitaskModel | Classifier, batch: Batch, *, reading: Reading) -> Tensor:
    """Weighted mean over prefixes of -log p(label | prefix), in nats.

    The prefixes end at every `prefix_step`-th position of text and EOS; their weights grow linearly from
    the first to the last and are normalised per row.

    Args:
        model: A transformer `lm` with a `discriminator`.
        batch: As for `lm_loss`, with `label` and `slot` `(batch,)` and `step` `()`, of which the tokens that
            hide the label are a function.
        reading: Where and what to read.

    Returns:
        `(batch,)`; 0 for a row shorter than `prefix_step`.
    """
    prompts = reading.prompts
    labels = random_labels(prompts, batch["slot"], step=int(batch["step"]), seed=reading.seed)
    ids, mask = hide_labels(batch["input_ids"], batch["attention_mask"], prompts=prompts, labels=labels)
    text = batch["loss_mask"][:, prompts.width :]
    hidden = last_states(model.lm, ids, mask)[:, prompts.width :]
    ends = slice(reading.prefix_step - 1, None, reading.prefix_step)
    logits = model.label_logits(prefix_states(hidden, text, reading.representation)[:, ends])
    return _weighted_prefix_loss(logits, batch["label"], text[:, ends])


def _weighted_prefix_loss(logits: Tensor, label: Tensor, present: Tensor) -> Tensor:
    """Cross-entropies of prefixes `(batch, prefixes, labels)` under weights 1, 2, 3, ... to the row's last."""
    wanted = label[:, None].expand(-1, logits.shape[1])
    losses = functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
    weights = torch.arange(1, logits.shape[1] + 1, device=logits.device) * present
    return (losses * weights).sum(1) / weights.sum(1).clamp(min=1)


def joint_loss(model: MultitaskModel, batch: Batch, *, reading: Reading, weight: float) -> Tensor:
    """`lm_loss + weight * discriminator_loss` per example, to be clipped as one gradient; `(batch,)`."""
    return lm_loss(model, batch, prompts=reading.prompts) + weight * discriminator_loss(model, batch, reading=reading)
