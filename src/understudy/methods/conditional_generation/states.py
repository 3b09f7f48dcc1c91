"""Hidden states and the discriminator's view of a row (paper, section 5.1.3).

The discriminator must not read the label from the prompt, so it sees public random tokens in the label's
columns; all labels have the same columns in that view, whatever the length of their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from understudy.compute import copied_to, running_sum, widened
from understudy.errors import InputError
from understudy.generation.prompts import PromptTable
from understudy.generation.step import last_states
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.encode import encode_texts
from understudy.methods.conditional_generation.model import TrainedModel

Representation = Literal["last", "mean"]

_BATCH = 128  # texts per forward pass outside training; speed only


def prefix_states(hidden: Tensor, mask: Tensor, representation: Representation) -> Tensor:
    """What the discriminator sees at every text position, `(batch, text, d)` in float32 or wider.

    Args:
        hidden: `(batch, text, d)` states of the text columns.
        mask: `(batch, text)` bool, False after the text's end.
        representation: The state itself, or the mean of the text's states up to it.
    """
    hidden = widened(hidden)
    if representation == "last":
        return hidden
    present = mask[..., None].to(hidden.dtype)
    return running_sum(hidden * present, dim=1) / running_sum(present, dim=1).clamp(min=1)


def random_labels(prompts: PromptTable, slots: Tensor, *, step: int, seed: int) -> Tensor:
    """Random ordinary tokens for the label's columns, a function of (seed, step, slot, column) alone.

    Args:
        prompts: Says which columns and which tokens.
        slots: `(batch,)` int64 slot of each row.
        step: Training step, or -1 outside training.
        seed: Public seed.

    Returns:
        `(batch, label columns)` int64.
    """
    start, stop = prompts.label_span
    columns = np.arange(stop - start, dtype=np.uint64)
    key = _mix(_mix(np.array(seed, dtype=np.uint64)) ^ np.array(step + 1, dtype=np.uint64))
    rows = _mix(key ^ slots.cpu().numpy().astype(np.uint64))
    drawn = _mix(rows[:, None] ^ columns) % np.uint64(len(prompts.ordinary_ids))
    return copied_to(prompts.ordinary_ids[torch.from_numpy(drawn.astype(np.int64))], slots.device)


def _mix(value: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """SplitMix64 (Steele, Lea & Flood 2014): 64 bits in, 64 well-mixed bits out."""
    with np.errstate(over="ignore"):
        z = value + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def hide_labels(
    input_ids: Tensor, attention_mask: Tensor, *, prompts: PromptTable, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """The discriminator's view: the same text after a prompt whose label is `labels`.

    Args:
        input_ids: `(batch, length)`, text from column `prompts.width` on.
        attention_mask: `(batch, length)`.
        prompts: The public prompts.
        labels: `(batch, label columns)` tokens to put there.

    Returns:
        Token ids and attention mask, shaped as given.
    """
    start, stop = prompts.label_span
    prompt = prompts.neutral_ids.to(input_ids.device).repeat(input_ids.shape[0], 1)
    prompt[:, start:stop] = labels
    ids = torch.cat([prompt, input_ids[:, prompts.width :]], dim=1)
    mask = torch.cat([torch.ones_like(prompt), attention_mask[:, prompts.width :]], dim=1)
    return ids, mask


def text_states(
    lm: Any, texts: Sequence[str], *, trained: TrainedModel, config: ConditionalGenerationConfig
) -> dict[Representation, Tensor]:
    """The state at the end of each text and the mean over it, each `(len(texts), d)`, with the label hidden.

    Texts are cut to the training length.
    """
    prompts = trained.prompts
    text_ids, text_mask, _ = encode_texts(texts, prompts=prompts, tokenizer=trained.tokenizer, config=config)
    # One draw for all: what a text gives must not depend on the texts beside it.
    labels = random_labels(
        prompts, torch.zeros(len(texts), dtype=torch.long, device="cpu"), step=-1, seed=config.public_seed
    )
    unused = torch.zeros(len(texts), prompts.width, dtype=torch.long, device="cpu")
    ids, mask = hide_labels(
        torch.cat([unused, text_ids], dim=1),
        torch.cat([unused, text_mask.long()], dim=1),
        prompts=prompts,
        labels=labels,
    )
    device = next(lm.parameters()).device
    ends, means = [], []
    with torch.no_grad():
        for rows in torch.split(torch.arange(len(texts), device="cpu"), _BATCH):
            hidden = last_states(lm, ids[rows].to(device), mask[rows].to(device))[:, prompts.width :]
            text = text_mask[rows].to(device)
            each, end = torch.arange(len(rows), device=device), (text.sum(1) - 1).clamp(min=0)
            ends.append(widened(hidden[each, end]))
            means.append(prefix_states(hidden, text, "mean")[each, end])
    return {"last": torch.cat(ends), "mean": torch.cat(means)}


def label_log_probabilities(
    trained: TrainedModel, texts: Sequence[str], *, config: ConditionalGenerationConfig
) -> Tensor:
    """Log p(label | text) by the model's own classifier, `(len(texts), labels)`.

    Raises:
        InputError: The variant has no classifier.
    """
    part = trained.model.classifier
    if part is None:
        raise InputError("this variant has no classifier: expected variant=naive_filter, naive_pplm or multitask")
    states = text_states(part.lm, texts, trained=trained, config=config)
    with torch.no_grad():
        return part.label_logits(states[config.discriminator.representation]).log_softmax(-1)
