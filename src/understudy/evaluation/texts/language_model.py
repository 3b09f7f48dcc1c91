"""What a causal language model makes of given texts: loss per token, mean hidden states.

Paper: "Differentially Private Conditional Text Generation for Synthetic Data", Table 4 (test loss per token). Mean
hidden states, of the last layer over the text's tokens, are one of the encoders that synthetic and real pairs are
compared under.

Computed on test rows, these figures are internal. They never choose a checkpoint, a hyper-parameter or
anything that is exported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from understudy.compute import copied_to
from understudy.generation.sampling import backbone, head
from understudy.models.loading import LoadedModel
from understudy.privacy.dpsgd.token_losses import token_losses


def encode_texts(tokenizer: Any, texts: Sequence[str], *, max_length: int) -> list[list[int]]:
    """Token ids of each text, at most `max_length` long, the begin token in front where there is one.

    An empty text becomes that token alone, or, without one, the end or padding token, so that no sequence is
    empty.
    """
    start = tokenizer.bos_token_id
    fallback = next(t for t in (start, tokenizer.eos_token_id, tokenizer.pad_token_id, 0) if t is not None)
    encoded = []
    for ids in (
        tokenizer(list(texts), truncation=True, max_length=max_length, verbose=False)["input_ids"] if texts else []
    ):
        prefix = [start] if start is not None and ids[:1] != [start] else []
        encoded.append([*prefix, *ids][:max_length] or [fallback])
    return encoded


def pad(sequences: Sequence[Sequence[int]], *, pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Right-padded ids (n, longest) and attention mask (n, longest), both int64."""
    longest = max(len(ids) for ids in sequences)
    ids = torch.full((len(sequences), longest), pad_id, device="cpu")
    mask = torch.zeros((len(sequences), longest), dtype=torch.int64, device="cpu")
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence, device="cpu")
        mask[row, : len(sequence)] = 1
    return copied_to(ids, device), copied_to(mask, device)


def mean_hidden_states(
    loaded: LoadedModel, texts: Sequence[str], *, max_length: int = 128, batch_size: int = 32
) -> npt.NDArray[np.float32]:
    """Last hidden states averaged over each text's tokens.

    Args:
        loaded: a causal language model, in eval mode, with its tokenizer; private, public or released.
        texts: (n,) strings.
        max_length: tokens kept per text.
        batch_size: texts per forward pass.

    Returns:
        float32 (n, hidden size), in the order of `texts`.
    """
    backbone: Any = loaded.model.base_model
    pooled = []
    with torch.no_grad():
        for ids, mask in _read(loaded, texts, max_length=max_length, batch_size=batch_size):
            states = backbone(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask[..., None].to(states.dtype)
            pooled.append(((states * weights).sum(1) / weights.sum(1)).float().cpu().numpy())
    return np.concatenate(pooled) if pooled else np.zeros((0, backbone.config.hidden_size), np.float32)


def language_model_loss(
    model: torch.nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor,
    loss_mask: Tensor,
    *,
    batch_size: int = 32,
) -> float:
    """Mean negative log-likelihood per counted token, in nats.

    Args:
        model: a transformers causal language model, in eval mode.
        input_ids: (n, length) int64.
        attention_mask: (n, length), 1 at real tokens.
        loss_mask: (n, length), 1 at tokens whose prediction counts (text and end token, not the prompt). The
            first column never counts, nothing predicts it.
        batch_size: rows per forward pass.

    Raises:
        ValueError: when no token counts.
    """
    device = next(model.parameters()).device
    counted = loss_mask[:, 1:].bool()
    if not bool(counted.any()):
        raise ValueError(f"expected at least one token that counts, found loss_mask of {tuple(loss_mask.shape)}")
    # Columns before the first that counts, such as a prompt's, never meet the head.
    total, first = 0.0, int(counted.any(0).int().argmax())
    with torch.no_grad():
        for rows in _slices(len(input_ids), batch_size):
            ids, mask = input_ids[rows].to(device), attention_mask[rows].to(device)
            hidden = backbone(model)(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            losses = token_losses(head(model), hidden[:, first:-1], ids[:, first + 1 :])
            total += float((losses.double() * counted[rows, first:].to(device)).sum())
    return total / int(counted.sum())


def language_model_loss_of_texts(
    loaded: LoadedModel, texts: Sequence[str], *, max_length: int = 128, batch_size: int = 32
) -> float:
    """Mean negative log-likelihood per token of unprompted texts, in nats.

    The end token counts as a token of each text that was not cut.

    Raises:
        ValueError: when there is no text.
    """
    if not texts:
        raise ValueError("expected at least one text, found none")
    encoded = encode_texts(loaded.tokenizer, texts, max_length=max_length)
    if loaded.tokenizer.eos_token_id is not None:
        encoded = [[*ids, loaded.tokenizer.eos_token_id][:max_length] for ids in encoded]
    ids, mask = pad(encoded, pad_id=pad_token_of(loaded.tokenizer), device=torch.device("cpu"))
    return language_model_loss(loaded.model, ids, mask, mask, batch_size=batch_size)


def encoded_texts(loaded: LoadedModel, texts: Sequence[str], *, max_length: int = 128) -> tuple[Tensor, Tensor]:
    """Ids and attention mask (n, longest) of unprompted texts as `text_losses` reads them, on the CPU."""
    encoded = encode_texts(loaded.tokenizer, texts, max_length=max_length)
    return pad(encoded, pad_id=pad_token_of(loaded.tokenizer), device=torch.device("cpu"))


def text_losses(loaded: LoadedModel, texts: Sequence[str], *, max_length: int = 128) -> Tensor:
    """Mean negative log-likelihood per token of each unprompted text, in nats; differentiable.

    Args:
        loaded: a causal language model, in eval mode, with its tokenizer.
        texts: (n,) strings, read together.
        max_length: tokens read of a text.

    Returns:
        (n,); 0 for a text of one token.
    """
    device = next(loaded.model.parameters()).device
    ids, mask = (copied_to(tensor, device) for tensor in encoded_texts(loaded, texts, max_length=max_length))
    hidden = backbone(loaded.model)(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    counted = mask[:, 1:].double()
    losses = token_losses(head(loaded.model), hidden[:, :-1], ids[:, 1:]).double() * counted
    return losses.sum(1) / counted.sum(1).clamp(min=1)


def _read(
    loaded: LoadedModel, texts: Sequence[str], *, max_length: int, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids and attention mask of some texts at a time, on the model's device."""
    device = next(loaded.model.parameters()).device
    encoded = encode_texts(loaded.tokenizer, texts, max_length=max_length)
    for batch in _slices(len(encoded), batch_size):
        yield pad(encoded[batch], pad_id=pad_token_of(loaded.tokenizer), device=device)


def pad_token_of(tokenizer: Any) -> int:
    """An id to pad with; which one is irrelevant to the result, padding is masked."""
    return int(next(t for t in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if t is not None))


def _slices(n: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, n, size))
