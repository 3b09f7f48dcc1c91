"""Taps on the layers of a model that hold what is trained: what they read, and the gradient of what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from understudy.compute import widened
from understudy.errors import InputError
from understudy.privacy.dpsgd.adapters import Adapter, Seen, adapter_of
from understudy.privacy.dpsgd.layers import Rule, rules_of
from understudy.privacy.dpsgd.token_losses import TAP, HeadFactors

# Blocks that hand rows to some of their layers as one text, example behind example and token behind token, and take
# them apart again: class, matched by name so that it need not be imported -> names of these layers.
_FLATTENING: Final = {"transformers.models.opt.modeling_opt.OPTDecoderLayer": ("final_layer_norm", "fc1", "fc2")}


@dataclass(frozen=True)
class Layer:
    """A module that holds at least one of the parameters itself.

    Attributes:
        name: in the model.
        module: the layer.
        rules: how the gradient of each of those parameters follows.
        may_be_flat: whether it may read the tokens of all examples as one text, example behind example.
    """

    name: str
    module: nn.Module
    rules: tuple[tuple[nn.Parameter, Rule], ...]
    may_be_flat: bool = False

    @property
    def owned(self) -> list[nn.Parameter]:
        """Those of the parameters that it holds."""
        return [parameter for parameter, _ in self.rules]


@dataclass(frozen=True)
class TappedLayers:
    """What is looked for in a model once for many passes: it may have thousands of modules.

    Attributes:
        parameters: name -> parameter.
        layers: that hold them, but for those of `adapters`.
        adapters: and the layers of its two matrices.
        held: all parameters of the model, none of which gets an ordinary gradient.
        embedded: ids of parameters that an embedding holds.
    """

    parameters: Mapping[str, nn.Parameter]
    layers: tuple[Layer, ...]
    adapters: tuple[tuple[Adapter, Layer, Layer], ...]
    held: tuple[nn.Parameter, ...]
    embedded: frozenset[int]


def tapped_layers(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> TappedLayers:
    """Find the layers of a model that hold parameters.

    Raises:
        InputError: a layer cannot give per-example gradients.
        ValueError: a parameter is named twice, or the model does not hold it.
    """
    wanted = {id(parameter): name for name, parameter in parameters.items()}
    if len(wanted) != len(parameters):
        raise ValueError("a parameter is listed under two names; list tied parameters once")
    layers, adapters, flat = {}, [], _flattened(model)
    for name, module in model.named_modules():
        own = {key: p for key, p in module.named_parameters(recurse=False) if id(p) in wanted}
        if own:
            rules = rules_of(name, module)
            layers[module] = Layer(name, module, tuple((p, rules[key]) for key, p in own.items()), module in flat)
        if (adapter := adapter_of(module, wanted)) is not None:
            adapters.append(adapter)
    found = {id(p) for layer in layers.values() for p in layer.owned}
    missing = sorted(name for key, name in wanted.items() if key not in found)
    if missing:
        raise ValueError(f"parameters that the model does not hold: {missing}")
    embedded = {id(p) for layer in layers.values() if isinstance(layer.module, nn.Embedding) for p in layer.owned}
    pairs = tuple((adapter, layers[adapter.down], layers[adapter.up]) for adapter in adapters)
    others = layers.keys() - {matrix for adapter in adapters for matrix in (adapter.down, adapter.up)}
    tapped = tuple(layer for module, layer in layers.items() if module in others)
    return TappedLayers(parameters, tapped, pairs, tuple(model.parameters()), frozenset(embedded))


def _flattened(model: nn.Module) -> set[nn.Module]:
    """The layers of `_FLATTENING` in a model, and what adapters hold around them."""
    blocks = ((module, f"{type(module).__module__}.{type(module).__qualname__}") for module in model.modules())
    parts = (getattr(block, name) for block, kind in blocks for name in _FLATTENING.get(kind, ()))
    return {module for part in parts for module in part.modules()}


def split_passes(
    layer: Layer, inputs: Tensor, gradient: Tensor, *, examples: int, passes: int
) -> list[tuple[Tensor, Tensor]]:
    """The layer's input and output gradient, pass by pass, as (batch, positions, features)."""
    rows = examples if examples == 1 else passes * examples
    if examples > 1:
        check_rows(layer, inputs, gradient, examples=examples, passes=passes)
    g = widened(gradient).reshape(rows, -1, gradient.shape[-1])
    if inputs.is_floating_point():
        x = inputs.to(g.dtype).reshape(rows, -1, inputs.shape[-1])
    else:
        x = inputs.reshape(rows, -1)
    if rows == examples:
        return [(x, g)]
    return [(x[start : start + examples], g[start : start + examples]) for start in range(0, rows, examples)]


def check_rows(layer: Layer, inputs: Tensor, outputs: Tensor, *, examples: int, passes: int) -> None:
    """Refuse a layer that does not keep its examples apart, one behind the other."""
    rows, seen = passes * examples, (inputs.shape[0], outputs.shape[0])
    if layer.may_be_flat and inputs.ndim == outputs.ndim == 2 and seen[0] == seen[1] and seen[0] % rows == 0:
        return
    if seen != (rows, rows):
        raise InputError(
            f"layer {layer.name!r} saw a leading dimension of {outputs.shape[0]} for {examples} examples in "
            f"{passes} pass(es), expected {rows}: keep the batch first and unflattened, and give models with "
            "position embeddings explicit position_ids of the full batch size"
        )


class _Tap(torch.autograd.Function):
    """The identity on a layer's output; its backward hands the layer's input and output gradient over.

    The anchor requires a gradient and gets none: it makes the graph begin here when everything below is
    frozen. The input is saved through autograd, so that recomputed activations work too.
    """

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, anchor: Tensor, inputs: Tensor, receive: Callable[[Tensor, Tensor], None]
    ) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.receive = receive
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        (inputs,) = ctx.saved_tensors
        ctx.receive(inputs, gradients[0])
        return gradients[0] if ctx.needs_input_grad[0] else None, None, None, None


@contextmanager
def taps(
    tapped: TappedLayers,
    receive: Callable[[Layer, Tensor, Tensor], None],
    receive_head: Callable[[Layer, HeadFactors], None],
) -> Iterator[None]:
    """Within it the backward pass hands over what layers have seen, and token losses what their head has."""
    anchor = torch.zeros((), requires_grad=True, device="cpu")
    forwards = {layer.module: _tap(layer, anchor, receive) for layer in tapped.layers}
    for adapter, down, up in tapped.adapters:
        forwards[adapter.layer] = _tap_of_adapter(adapter, anchor, partial(receive, down), partial(receive, up))
    # A module may carry a forward of its own instead of its class's; that one comes back.
    before = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.forward = forward
        for layer in tapped.layers:
            vars(layer.module)[TAP] = partial(receive_head, layer)
        yield
    finally:
        for module, own in before.items():
            vars(module).pop("forward", None)
            vars(module).pop(TAP, None)
            if own is not None:
                module.forward = own


def _tap(layer: Layer, anchor: Tensor, receive: Callable[[Layer, Tensor, Tensor], None]) -> Callable[[Tensor], Tensor]:
    plain = layer.module.forward

    def forward(inputs: Tensor) -> Tensor:
        output: Tensor = plain(inputs)
        if not torch.is_grad_enabled():
            return output
        # detach: the saved input must not hold on to the graph of what made it
        saved = inputs.detach()
        tapped: Tensor = _Tap.apply(output, anchor, saved, partial(receive, layer))  # type: ignore[no-untyped-call]
        return tapped

    return forward


def _tap_of_adapter(adapter: Adapter, anchor: Tensor, see_down: Seen, see_up: Seen) -> Callable[[Tensor], Tensor]:
    plain = adapter.layer.forward

    def forward(inputs: Tensor) -> Tensor:
        return adapter.forward(inputs, anchor, see_down, see_up) if torch.is_grad_enabled() else plain(inputs)

    return forward


@contextmanager
def frozen(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """None of them requires a gradient, so that autograd computes those of activations only; not again inside."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    try:
        for parameter in trainable:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
