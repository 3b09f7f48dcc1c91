"""Weights laid out once for many products: linear layers of a model on a CPU.

Before a product in bfloat16 torch lays the layer's weights out as the processor's instructions read them, at every
product anew. For the few rows of a decoding step that takes a third of the time or more. Here it is done once, by the
operations that torch's own compiler (Inductor) uses for weights that stay as they are. In float32 these products are
oneDNN's in place of MKL's: on an AMD EPYC a sentence encoder takes three quarters of the time
(benchmarks/texts_alone.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from understudy.compute import Compute

# Rows that a layout is chosen for; any number of them may be multiplied by it.
_ROWS: Final = 32


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Multiply by packed copies of the model's linear layers in bfloat16, as long as nobody changes their weights.

    Results are the same to the bit, as far as was measured (AVX512-bf16 and AMX). A product that is differentiated is
    computed from the weights themselves. Copies take as much memory as the layers; a layer that is packed already,
    or not on a CPU, stays as it is.

    Args:
        model: of which `nn.Linear` layers are looked at, the head among them.
    """
    layers = _layers(model, torch.bfloat16) if can_pack() else []
    try:
        _pack(layers)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def pack_for_good(model: nn.Module) -> None:
    """The same for a model in float32 whose weights nobody will change; results differ in their last bits."""
    if _has_one_dnn():
        _pack(_layers(model, torch.float32))


def packed_bytes(compute: Compute, parameters: int) -> int:
    """What copies of a model of so many parameters take, at most."""
    packs = compute.device == "cpu" and compute.precision_of(parameters) == "bfloat16" and can_pack()
    return parameters * torch.bfloat16.itemsize if packs else 0


def can_pack() -> bool:
    """Whether oneDNN multiplies in bfloat16 here; variables may forbid it what the processor has."""
    return _has_one_dnn() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _has_one_dnn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _layers(model: nn.Module, dtype: torch.dtype) -> list[nn.Linear]:
    # A layer whose forward was replaced is packed already, or does what only its owner knows.
    return [
        layer
        for layer in model.modules()
        if type(layer) is nn.Linear
        and layer.weight.dtype == dtype
        and layer.weight.device.type == "cpu"
        and "forward" not in vars(layer)
    ]


def _pack(layers: Iterable[nn.Linear]) -> None:
    for layer in layers:
        copy: Tensor = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _ROWS)
        layer.forward = partial(_product, layer, copy)  # type: ignore[method-assign]


def _product(layer: nn.Linear, copy: Tensor, rows: Tensor) -> Tensor:
    if torch.is_grad_enabled() and rows.requires_grad:
        return functional.linear(rows, layer.weight, layer.bias)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, copy, layer.bias, "none", [], "")
    return found
