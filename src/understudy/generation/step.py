"""Passes of the transformer below the head: over whole texts, and over one token of the rows in flight."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from understudy.compute import widened
from understudy.generation.cache import KeyValues, RowCache, grown, held
from understudy.generation.prompts import position_ids
from understudy.models.lower_layers import LowerLayers, layers_below, recorded


def backbone(model: Any) -> Any:
    """The transformer below the language-modelling head, through a peft wrapper too."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.base_model


def head(model: Any) -> Any:
    """The language-modelling head."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.get_output_embeddings()


def next_logits(model: Any, hidden: Tensor) -> Tensor:
    """Next-token logits `(..., vocab)` of last hidden states `(..., d)`, in float32 or wider."""
    layer = head(model)
    hidden = hidden.to(next(layer.parameters()).dtype)
    # Of a slice torch would multiply row by row, with a copy of the whole head for each: 17 times slower in bfloat16.
    # (In float32 it stays as it was, for the last bits' sake.)
    return widened(layer(hidden.contiguous() if hidden.element_size() < 4 else hidden))


def advance(
    model: Any, key_values: KeyValues, *, attention_mask: Tensor, position: Tensor, **inputs: Tensor
) -> tuple[Tensor, KeyValues]:
    """Run the transformer over new tokens on top of a cache.

    Args:
        model: Causal language model.
        key_values: Cache of the tokens before; empty at the start.
        attention_mask: `(batch, seen + new)`.
        position: `(batch, new)`.
        **inputs: `input_ids` `(batch, new)` or `inputs_embeds` `(batch, new, d)`.

    Returns:
        Last hidden states `(batch, new, d)` and the grown cache.
    """
    cache = held(key_values)
    outputs = backbone(model)(
        attention_mask=attention_mask, position_ids=position, past_key_values=cache, use_cache=True, **inputs
    )
    return outputs.last_hidden_state, [(layer.keys, layer.values) for layer in cache.layers]


def last_states(model: Any, input_ids: Tensor, attention_mask: Tensor, *, positions: Tensor | None = None) -> Tensor:
    """Last hidden states `(batch, length, d)` of whole texts.

    One column that nobody attends to is read along. Where every row is full, transformers would leave the mask out and
    compute attention in another way, so that a row's states depended, in their last bits, on the rows beside it. Its
    position is that of a text as long as the batch is wide: rotary embeddings that change with the longest text that
    they see (LongRoPE) see the same one whatever the rows hold.

    Args:
        model: Causal language model.
        input_ids: `(batch, length)`.
        attention_mask: `(batch, length)`.
        positions: `(batch, length)`; None counts from each row's first real token.
    """
    if positions is None:
        positions = position_ids(attention_mask)
    ids, mask = (functional.pad(tensor, (0, 1)) for tensor in (input_ids, attention_mask))
    positions = functional.pad(positions, (0, 1), value=input_ids.shape[1] - 1)
    outputs = backbone(model)(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
    hidden: Tensor = outputs.last_hidden_state[:, :-1]
    return hidden


class Step:
    """The state before one token is drawn, for the rows in flight; their last token is read when it is asked for.

    Attributes:
        index: `(active,)` how many tokens of each row have been drawn before this one.
        rows: `(active,)` positions of these rows in the caller's batch.
        tokens: `(active, 1)` last token of each row.
        attention_mask: `(active, seen)`, the last token included.
        position: `(active, 1)` position of the last token.
        past: Per layer `(active, heads, seen - 1, head_dim)` keys and values before the last token, zero where masked.
    """

    def __init__(
        self, model: Any, cache: RowCache, *, index: Tensor, rows: Tensor, tokens: Tensor, position: Tensor
    ) -> None:
        self.index, self.rows, self.tokens, self.position = index, rows, tokens, position
        self.attention_mask, self.past = cache.seen(), cache.past()
        self._model, self._cache = model, cache

    @cached_property
    def hidden(self) -> Tensor:
        """`(active, d)` last hidden state at the last token."""

        def grow(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            self._cache.write(layer, keys, values)
            return whole[layer]

        whole = self._cache.past(new=1)
        return self.read(grow)

    @cached_property
    def logits(self) -> Tensor:
        """`(active, vocab)` unmodified next-token logits, float32 or wider."""
        return next_logits(self._model, self.hidden)

    @property
    def key_values(self) -> KeyValues:
        """Per layer `(active, heads, seen, head_dim)` keys and values, the last token included."""
        _ = self.hidden
        return self._cache.past(new=1)

    def record(self, window: int, *, below: int = 0) -> tuple[Tensor, KeyValues, LowerLayers]:
        """Read the last token with a graph, for a hook that differentiates by the cache of the upper layers.

        Args:
            window: How many of the last cached columns; 0 for all.
            below: How many of the lowest layers have no leaves.

        Returns:
            `hidden` with its graph; the leaves: per layer from `below` on `(active, heads, columns, head_dim)` keys and
            values, float32 or wider; and what the layers below gave.
        """
        upper = self.past[below:]
        leaves = [(_leaf(keys[:, :, -window:]), _leaf(values[:, :, -window:])) for keys, values in upper]
        whole = self._cache.past(new=1)

        def grow(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            self._cache.write(layer, keys, values)
            return whole[layer] if layer < below else self.joined(layer, leaves[layer - below], (keys, values))

        with torch.enable_grad(), recorded(backbone(self._model), below) as lower:
            hidden = self.read(grow)
        self.__dict__["hidden"] = hidden.detach()
        return hidden, leaves, lower

    def below(self, share: float) -> int:
        """How many layers lie below the upper share of them."""
        return layers_below(backbone(self._model), share=share, layers=len(self.past))

    def joined(self, layer: int, window: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer whose last cached columns are `window`, and those of a new token behind them."""
        keys, values = (
            torch.cat([past[:, :, : past.shape[2] - last.shape[2]], last.to(past.dtype), token], dim=2)
            for past, last, token in zip(self.past[layer], window, new, strict=True)
        )
        return keys, values

    def read(self, grow: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """Read the last token once more on a cache of one's own.

        Args:
            grow: Gives what attention reads in a layer, `(active, heads, seen, head_dim)`, from the layer's number and
                the token's keys and values `(active, heads, 1, head_dim)`.

        Returns:
            `(active, d)` last hidden state.
        """
        outputs = backbone(self._model)(
            input_ids=self.tokens,
            attention_mask=self.attention_mask,
            position_ids=self.position,
            past_key_values=grown(self.past, grow),
            use_cache=True,
        )
        hidden: Tensor = outputs.last_hidden_state[:, -1]
        return hidden


def _leaf(tensor: Tensor) -> Tensor:
    return widened(tensor.detach()).requires_grad_()
