"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) while their per-example gradients are taken.

A layer of peft with one plain adapter computes `base(x) + s B A x`. Here that and its backward pass are one operation
each: the input is kept as the base layer has it, not as a float32 copy for every layer that reads it, and the scale is
applied to the few numbers between A and B. Other layers are left to peft, and tapped as any linear layer is.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

# Matched by name, so that peft need not be imported here.
_LORA: Final = "peft.tuners.lora.layer.Linear"

# What one of the two matrices read, and the gradient of what it gave.
Seen = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True)
class Adapter:
    """The one adapter of a layer.

    Attributes:
        layer: of peft, around the base layer.
        down: A, (rank, inputs).
        up: B, (outputs, rank).
        scale: s.
    """

    layer: nn.Module
    down: nn.Linear
    up: nn.Linear
    scale: float

    def forward(self, inputs: Tensor, anchor: Tensor, see_down: Seen, see_up: Seen) -> Tensor:
        """What the layer gives, (batch, ..., outputs), in the base layer's precision.

        Args:
            inputs: (batch, ..., inputs).
            anchor: requires a gradient and gets none, so that the graph begins here at the latest.
            see_down: called in the backward pass with the input of A and its output gradient, float32 or wider.
            see_up: likewise, of B; its input is scaled.
        """
        base: Tensor = self.layer.base_layer(inputs)  # type: ignore[operator]
        given: Tensor = _Adapted.apply(  # type: ignore[no-untyped-call]
            base, inputs, anchor, self, (see_down, see_up)
        )
        return given


def adapter_of(layer: nn.Module, trained: Container[int]) -> Adapter | None:
    """The adapter of a layer, if it is a plain one whose two matrices are trained; None for any other layer.

    Args:
        layer: of a model.
        trained: ids of the parameters that are.
    """
    if f"{type(layer).__module__}.{type(layer).__qualname__}" != _LORA or "forward" in vars(layer):
        return None
    # Any: peft's own types say of no attribute what it is.
    lora: Any = layer
    active = [name for name in lora.active_adapters if name in lora.lora_A]
    if lora.disable_adapters or lora.merged or len(active) != 1 or lora.lora_variant:
        return None
    down, up, dropout = (part[active[0]] for part in (lora.lora_A, lora.lora_B, lora.lora_dropout))
    plain = all(
        type(part) is nn.Linear and part.bias is None and "forward" not in vars(part) and id(part.weight) in trained
        for part in (down, up)
    )
    if not plain or down.weight.dtype != up.weight.dtype or not isinstance(dropout, nn.Identity):
        return None
    return Adapter(layer, down, up, float(lora.scaling[active[0]]))


class _Adapted(torch.autograd.Function):
    """`base + s B A x`, in the adapter's precision, rounded once to that of the base."""

    @staticmethod
    def forward(
        ctx: Any, base: Tensor, inputs: Tensor, _anchor: Tensor, adapter: Adapter, see: tuple[Seen, Seen]
    ) -> Tensor:
        down, up = adapter.down.weight, adapter.up.weight
        inner = nn.functional.linear(inputs.to(down.dtype), down).mul_(adapter.scale)
        # In memory of its own, not a view: some models add to what their layers give in place.
        given = up.new_empty(base.shape)
        torch.addmm(base.to(up.dtype).flatten(0, -2), inner.flatten(0, -2), up.t(), out=given.flatten(0, -2))
        ctx.save_for_backward(inputs, inner)
        ctx.adapter, ctx.see = adapter, see
        return given.to(base.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, inner = ctx.saved_tensors
        (see_down, see_up), (gradient,) = ctx.see, gradients
        down, up = ctx.adapter.down.weight, ctx.adapter.up.weight
        wide = gradient.to(up.dtype)
        see_up(inner, wide)
        of_inner = (wide @ up).mul_(ctx.adapter.scale)
        see_down(inputs.to(down.dtype), of_inner)
        of_inputs = (of_inner @ down).to(inputs.dtype) if ctx.needs_input_grad[1] else None
        return gradient if ctx.needs_input_grad[0] else None, of_inputs, None, None, None
