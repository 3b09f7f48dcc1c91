"""What a model makes of given responses: their likelihood behind a prompt, and which of two answers it prefers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from understudy.compute import copied_to
from understudy.generation.instructions import EncodedPairs
from understudy.generation.step import head, last_states, next_logits
from understudy.privacy.dpsgd.token_losses import token_losses

Floats = npt.NDArray[np.float64]


def response_losses(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Mean negative log-likelihood of each row's response and end token, in nats; differentiable.

    A row's loss is the mean over its own tokens, so that its weight does not depend on the others.

    Args:
        model: causal language model, with or without adapters.
        batch: `input_ids`, `attention_mask` and `loss_mask`, each `(batch, length)`; the first column never counts.

    Returns:
        `(batch,)`; 0 for a row without a response.
    """
    layer = head(model)
    hidden = last_states(model, batch["input_ids"], batch["attention_mask"])
    states = hidden[:, :-1].to(next(layer.parameters()).dtype)
    losses = token_losses(layer, states, batch["input_ids"][:, 1:])
    present = batch["loss_mask"][:, 1:].to(losses.dtype)
    return (losses * present).sum(1) / present.sum(1).clamp(min=1)


def sparse_response_losses(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """`response_losses` with logits at the positions of responses only, for what needs no per-example gradients.

    A short response behind a long instruction has few of them: with an output head of 49,152 tokens a step of training
    on pairs of 64 tokens takes three quarters of the time.
    """
    layer = head(model)
    counted = batch["loss_mask"][:, 1:]
    states = last_states(model, batch["input_ids"], batch["attention_mask"])[:, :-1][counted]
    targets = batch["input_ids"][:, 1:][counted]
    losses = token_losses(layer, states.to(next(layer.parameters()).dtype)[None], targets[None])[0]
    summed = losses.new_zeros(len(counted)).index_add(0, counted.nonzero()[:, 0], losses)
    return summed / counted.sum(1).clamp(min=1)


def mean_response_losses(model: Any, rows: EncodedPairs, *, batch_size: int = 32) -> Floats:
    """`sparse_response_losses` of many rows, `(n,)` float64; rows of like length share a batch."""
    device = next(model.parameters()).device
    lengths = rows.attention_mask.sum(1)
    found = np.zeros(len(lengths))
    with torch.no_grad():
        for some in _batches(torch.argsort(lengths, stable=True), batch_size):
            width = max(2, int(lengths[some].max()))
            batch = {
                "input_ids": copied_to(rows.input_ids[some, :width], device),
                "attention_mask": copied_to(rows.attention_mask[some, :width], device),
                "loss_mask": copied_to(rows.loss_mask[some, :width], device),
            }
            found[some.numpy()] = sparse_response_losses(model, batch).double().cpu().numpy()
    return found


def preferences(
    model: Any,
    prompts: tuple[Tensor, Tensor],
    *,
    first: Sequence[int],
    second: Sequence[int],
    batch_size: int = 32,
) -> Floats:
    """The probability that the next token is one of `first`, given that it is one of `first` or `second`.

    Args:
        model: causal language model.
        prompts: ids and attention mask `(n, width)`, padded on the left.
        first: token ids of one answer's beginnings.
        second: of the other's; none is in both.
        batch_size: rows per pass.

    Returns:
        `(n,)` float64.
    """
    device = next(model.parameters()).device
    ids, mask = prompts
    found = []
    with torch.no_grad():
        for some in _batches(torch.arange(len(ids), device="cpu"), batch_size):
            states = last_states(model, copied_to(ids[some], device), copied_to(mask[some], device))
            scores = next_logits(model, states[:, -1]).double()
            sides = [torch.logsumexp(scores[:, list(tokens)], dim=1) for tokens in (first, second)]
            found.append(torch.sigmoid(sides[0] - sides[1]).cpu().numpy())
    return np.concatenate(found) if found else np.zeros(0)


def _batches(order: Tensor, size: int) -> Iterator[Tensor]:
    return (order[start : start + size] for start in range(0, len(order), size))
