"""Train only the upper layers of a causal language model, and run the lower ones once per row.

With the first `count` layers and the embeddings frozen, the states that enter layer `count` are constants of a row.
`entering_states` computes them, `last_state` goes on from there; together they are the model's own forward pass, read
at one position per row. Both run the model's own code with part of its stack of layers, so that any transformers
decoder works whose layers take their states first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from understudy.errors import InputError
from understudy.models.layer_stack import LayerStack, layer_stack


def freeze_lower_layers(model: Any, count: int) -> None:
    """Freeze every weight that the states entering layer `count` depend on, and no other; 0 freezes none.

    These are the embeddings, the first `count` layers, and what some models have in between. A head that shares its
    weights with the embeddings is frozen with them.

    Args:
        model: transformers causal language model, changed in place.
        count: layers to freeze, below the number of layers.

    Raises:
        InputError: when the model has no stack of layers or too few of them.
    """
    model.requires_grad_(True)
    if count == 0:
        return
    _, _, layers = _stack(model)
    if count >= len(layers):
        raise InputError(
            f"frozen_lower_layers={count}: expected 0 to {len(layers) - 1}, for the model has {len(layers)} layers"
        )
    weights = list(model.parameters())
    ids = torch.zeros((1, 1), dtype=torch.long, device=weights[0].device)
    with torch.enable_grad():
        states = _entering(model, count, input_ids=ids, attention_mask=torch.ones_like(ids))
        reached = torch.autograd.grad(states.sum(), weights, allow_unused=True)
    for weight, gradient in zip(weights, reached, strict=True):
        weight.requires_grad_(gradient is None)


def entering_states(model: Any, count: int, *, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """States that enter layer `count`, without gradients.

    Args:
        model: transformers causal language model.
        count: layers below, at least 1.
        input_ids: `(batch, length)` int64.
        attention_mask: `(batch, length)`, 1 on real tokens.

    Returns:
        `(batch, length, d)`.
    """
    with torch.no_grad():
        return _entering(model, count, input_ids=input_ids, attention_mask=attention_mask)


def last_state(model: Any, count: int, *, input_ids: Tensor, attention_mask: Tensor, states: Tensor) -> Tensor:
    """What enters the output head at each row's last token, from the states that enter layer `count`.

    Args:
        model: transformers causal language model.
        count: layers below, at least 1.
        input_ids: `(batch, length)` int64; only its shape matters.
        attention_mask: `(batch, length)`, 1 on real tokens, padded on the right.
        states: `(batch, length, d)` of `entering_states`; padded columns may hold anything finite.

    Returns:
        `(batch, d)`.
    """
    owner, name, layers = _stack(model)
    rows, last = torch.arange(len(states), device=states.device), attention_mask.sum(1) - 1
    with _only(owner, name, layers[count:]), _handed(layers[count], states), _one_column(layers[-1], last):
        outputs = model.base_model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
    final: Tensor = outputs.last_hidden_state[rows, last]
    return final


def _entering(model: Any, count: int, *, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    owner, name, layers = _stack(model)
    with _only(owner, name, layers[:count]), _caught(layers[count - 1]) as caught:
        model.base_model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
    return caught[0]


def _stack(model: Any) -> LayerStack:
    stack = layer_stack(model.base_model)
    if stack is None:
        raise InputError("frozen_lower_layers > 0: expected a model with a stack of layers, found none; set it to 0")
    return stack


@contextmanager
def _only(owner: nn.Module, name: str, layers: Sequence[nn.Module]) -> Iterator[None]:
    """Run with these layers only."""
    whole = getattr(owner, name)
    setattr(owner, name, nn.ModuleList(layers))
    try:
        yield
    finally:
        setattr(owner, name, whole)


@contextmanager
def _caught(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Catch what a layer gives, `(batch, length, d)`."""
    caught: list[Tensor] = []
    handle = layer.register_forward_hook(
        lambda _, __, output: caught.append(output[0] if isinstance(output, tuple) else output)
    )
    try:
        yield caught
    finally:
        handle.remove()


@contextmanager
def _handed(layer: nn.Module, states: Tensor) -> Iterator[None]:
    """Hand these states to a layer in place of what it would get."""

    def swap(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": states})

    handle = layer.register_forward_pre_hook(swap, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _one_column(layer: nn.Module, column: Tensor) -> Iterator[None]:
    """Run the last layer's MLP, where it has one of that name, on one column of each row only: a third of the work.

    What it gives, `(batch, 1, d)`, stands in every column alike: right in the one that is read, and no other is.
    """
    mlp = getattr(layer, "mlp", None)
    if not isinstance(mlp, nn.Module):
        yield
        return
    rows, length = torch.arange(len(column), device=column.device), 0

    def cut(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        nonlocal length
        length = args[0].shape[1]
        return (args[0][rows, column][:, None], *args[1:])

    def spread(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # As wide as what it is added to, with memory of its own: some layers (Falcon's) add to it in place.
        return output.expand(-1, length, -1).contiguous()

    handles = mlp.register_forward_pre_hook(cut), mlp.register_forward_hook(spread)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
