"""Read a token once, and in the upper layers alone once more: what the lower layers gave is kept in between.

Both run the model's own code with its whole stack of layers. In the second reading the lower layers give what they gave
in the first, so that any transformers decoder works, whatever it tells its layers and in whatever form they answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from understudy.models.layer_stack import layer_stack
from understudy.quantities import rounded_up


@dataclass
class LowerLayers:
    """The lowest layers of a model, and what the last of them gave.

    Attributes:
        layers: none, where all are to be read again.
        given: output of the last one, in its own form.
    """

    layers: list[nn.Module] = field(default_factory=list)
    given: Any = None


def layers_below(backbone: nn.Module, *, share: float, layers: int) -> int:
    """How many layers lie below the upper share of them; 0 for a model whose stack of layers is not found.

    Args:
        backbone: transformer below the head.
        share: of the layers, above 0 and at most 1, rounded up.
        layers: how many there are.
    """
    return layers - rounded_up(share * layers) if len(_layers(backbone)) == layers else 0


@contextmanager
def recorded(backbone: nn.Module, count: int) -> Iterator[LowerLayers]:
    """Keep what the lowest `count` layers give in the reading inside."""
    lower = LowerLayers(_layers(backbone)[:count])
    if not lower.layers:
        yield lower
        return

    def keep(_module: nn.Module, _inputs: object, output: object) -> None:
        lower.given = output

    handle = lower.layers[-1].register_forward_hook(keep)
    try:
        yield lower
    finally:
        handle.remove()


@contextmanager
def replayed(lower: LowerLayers) -> Iterator[None]:
    """Have these layers give what was kept, and compute nothing, in the readings inside."""
    own = [vars(layer).get("forward") for layer in lower.layers]
    try:
        for layer in lower.layers:
            layer.forward = lambda *_, **__: lower.given
        yield
    finally:
        for layer, before in zip(lower.layers, own, strict=True):
            vars(layer).pop("forward", None)
            if before is not None:
                layer.forward = before


def _layers(backbone: nn.Module) -> list[nn.Module]:
    stack = layer_stack(backbone)
    return [] if stack is None else stack.layers
