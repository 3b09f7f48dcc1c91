"""Where a decoder of transformers keeps its layers."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn


class LayerStack(NamedTuple):
    """The module that owns a stack of layers, the stack's name in it, and the layers."""

    owner: nn.Module
    name: str
    layers: list[nn.Module]


def layer_stack(backbone: Any) -> LayerStack | None:
    """The layers of the transformer below a head: its first list of modules; None where it has none.

    Those of a model that reads images too are not its eyes'.
    """
    decoder = backbone.get_decoder() if hasattr(backbone, "get_decoder") else backbone
    for owner in decoder.modules():
        for name, child in owner.named_children():
            if isinstance(child, nn.ModuleList):
                return LayerStack(owner, name, list(child))
    return None
