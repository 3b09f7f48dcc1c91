"""Per-example gradients that are made, not kept as factors: those of one size lie behind each other.

Adapters have hundreds of small ones. An operation on each of them takes longer to start than to do, so their norms and
sums are taken a stack at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from understudy.privacy.dpsgd.chunks import ROWS_IN_FLOATS
from understudy.privacy.dpsgd.factors import Factors

# Numbers of a stack; a larger gradient has one of its own. Stacks are taken one by one, as the backward pass gives
# back the memory of activations.
_NUMBERS: Final = 1 << 20
# Squares added up in float32. A running sum loses what is below half of its last bit: over a whole matrix more than
# `grid.ALLOWANCE`, over so few under a sixteenth of it however they are added up.
_SQUARES_AT_ONCE: Final = 1 << 12
# The smallest normal float32: what a square may lose that is below it.
_LEAST: Final = 2.0**-126


@dataclass(frozen=True)
class Place:
    """Where the gradients of one parameter are.

    Attributes:
        stack: number of the stack.
        layer: of the stack.
        shape: of one gradient.
        on_its_side: whether a matrix is there column by column.
    """

    stack: int
    layer: int
    shape: torch.Size
    on_its_side: bool = False


class Stacks:
    """Gradients of all examples, (layers, examples, numbers) each stack, float32 or wider."""

    def __init__(self, sizes: Iterable[int]) -> None:
        """No gradients yet.

        Args:
            sizes: numbers of each parameter that may get some, so that no stack is higher than needed.
        """
        self._left = Counter(sizes)
        self._stacks: list[Tensor] = []
        self._height: list[int] = []
        self._open: dict[tuple[int, torch.dtype], int] = {}

    def put(self, gradients: Factors | Tensor) -> Place:
        """Keep gradients, (examples, ...) or the factors that they are made of."""
        if not isinstance(gradients, Factors):
            place, there = self._next(gradients[0].shape, gradients, on_its_side=False)
            there.copy_(gradients.flatten(1))
            return place
        height, width = gradients.left.shape[2], gradients.right.shape[2]
        # High ones are made on their side: a product with long rows takes half of the time, to the same bits.
        place, there = self._next(torch.Size((height, width)), gradients.right, on_its_side=height > width)
        if place.on_its_side:
            torch.bmm(gradients.right.transpose(1, 2), gradients.left, out=there.view(-1, width, height))
        else:
            torch.bmm(gradients.left.transpose(1, 2), gradients.right, out=there.view(-1, height, width))
        return place

    def add(self, place: Place, gradients: Factors | Tensor) -> None:
        """Add what a further use of the same parameter has."""
        there = self._stacks[place.stack][place.layer]
        if isinstance(gradients, Factors):
            one, other = (gradients.right, gradients.left) if place.on_its_side else (gradients.left, gradients.right)
            gradients = torch.bmm(one.transpose(1, 2), other)
        there.add_(gradients.flatten(1))

    def squared_norms(self) -> Tensor | None:
        """(examples,) float64 over all gradients, never underestimated; None where there are none."""
        total: Tensor | None = None
        for stack, height in zip(self._stacks, self._height, strict=True):
            found = _squares(stack[:height])
            total = found if total is None else total + found
        return total

    def weighted_sums(self, weights: Tensor, poisoned: Tensor | None) -> list[Tensor]:
        """`sum_b weights_b * gradient_b`, (layers, numbers) of each stack, whose gradients are given back meanwhile.

        Sums of at most `ROWS_IN_FLOATS` examples are made in floats, and those of such sums in float64.

        Args:
            weights: (examples,), zero for examples that must not count.
            poisoned: bool (examples,), examples that hold infinities or nans; None if there are none.
        """
        sums = []
        for number, height in enumerate(self._height):
            sums.append(weighted_sums(self._stacks[number][:height], weights, poisoned))
            self._stacks[number] = sums[-1].new_empty(0)
        return sums

    def _next(self, shape: torch.Size, like: Tensor, *, on_its_side: bool) -> tuple[Place, Tensor]:
        """The next free layer for gradients of one shape, (examples, numbers) to be written."""
        examples, numbers = len(like), shape.numel()
        kind = (numbers, like.dtype)
        number = self._open.get(kind)
        if number is None or self._height[number] == len(self._stacks[number]):
            layers = max(1, min(self._left[numbers], _NUMBERS // max(1, examples * numbers)))
            number = self._open[kind] = len(self._stacks)
            self._stacks.append(like.new_empty(layers, examples, numbers))
            self._height.append(0)
        layer = self._height[number]
        self._height[number] += 1
        self._left[numbers] -= 1
        return Place(number, layer, shape, on_its_side), self._stacks[number][layer]


def sum_at(place: Place, sums: list[Tensor]) -> Tensor:
    """The weighted sum of one parameter's gradients, in its shape; a view."""
    found = sums[place.stack][place.layer]
    return found.view(place.shape[::-1]).t() if place.on_its_side else found.view(place.shape)


def weighted_sums(gradients: Tensor, weights: Tensor, poisoned: Tensor | None) -> Tensor:
    """Weighted sums over the examples of (layers, examples, numbers); float64 where there are several to add up."""
    total: Tensor | None = None
    weights = weights.to(gradients.dtype)
    for start in range(0, len(weights), ROWS_IN_FLOATS):
        some = slice(start, start + ROWS_IN_FLOATS)
        part = gradients[:, some]
        if poisoned is not None:
            # A zero weight alone would leave 0 * inf = nan.
            part = part.masked_fill(poisoned[some, None], 0.0)
        # Zero is added, so the bytes of an empty sum do not depend on the signs of dropped rows.
        found = torch.matmul(weights[None, some], part)[:, 0].add_(0.0)
        total = found if total is None else total.double().add_(found)
    assert total is not None
    return total


def _squares(gradients: Tensor) -> Tensor:
    """(examples,) float64 squared norms over layers and numbers, never underestimated."""
    numbers = gradients.shape[2]
    whole = numbers // _SQUARES_AT_ONCE * _SQUARES_AT_ONCE
    # Without the last, shorter block, and that one alone.
    blocks = [gradients[:, :, :whole].view(*gradients.shape[:2], -1, _SQUARES_AT_ONCE), gradients[:, :, None, whole:]]
    squares = [torch.linalg.vector_norm(block, dim=3).double().square().sum((0, 2)) for block in blocks]
    return torch.stack(squares).sum(0) + gradients[:, 0].numel() * _LEAST
