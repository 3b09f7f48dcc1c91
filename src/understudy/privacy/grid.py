"""The public grid of everything noised: queries are rounded to it, noise is a multiple of it, sums are exact.

A released float sum of query and noise tells neighbours apart: whoever knows both candidate queries asks which of them
lies on the float grid that some noise value reaches. Here a query is a tuple of whole steps of a grid that depends on
the declared sensitivity alone, and so is its noise; their sum is exact in 64-bit integers, and every float made of it
later is a rounding of it, which is post-processing.

*What rounding costs*: the step is at most sensitivity / 2^26. Rounding moves each of d numbers by half a step at most,
hence two neighbouring queries by step * sqrt(d) against each other: under sensitivity / 2^11 for d up to 2^30, and more
numbers are refused. As much again is set aside for sums made in floats before they are rounded (`GridSum`). So noise is
scaled to the declared sensitivity times 1 + 2^-10, which is what the charge counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from understudy.errors import UnderstudyError

# What rounding and float sums may add to a sensitivity, as a share of it.
ALLOWANCE: Final = 2.0**-10
MOST_NUMBERS: Final = 1 << 30
_STEPS_BITS: Final = 26
# Beyond this many steps no query of up to 2^32 units lies; noise may add 2^61.
_FARTHEST: Final = 1 << 60
_UNITS_AT_ONCE: Final = 1 << 16


def grid_of(sensitivity: float) -> float:
    """The step of the grid, a power of two in (sensitivity / 2^27, sensitivity / 2^26].

    >>> grid_of(1.0) == 2.0**-26
    True

    Raises:
        ValueError: when the sensitivity is not positive and finite, or too small for a step that is a normal float.
    """
    if not 2.0**-900 <= sensitivity < math.inf:
        raise ValueError(f"expected a sensitivity > 0, found {sensitivity=}")
    return math.ldexp(1.0, math.frexp(sensitivity)[1] - 1 - _STEPS_BITS)


def charged_sensitivity(sensitivity: float) -> float:
    """What one unit may move a rounded query by, if it moves the exact one by at most `sensitivity`."""
    return sensitivity * (1.0 + ALLOWANCE)


def to_steps(values: Tensor, *, grid: float) -> Tensor:
    """The nearest whole steps, int64, in the shape of `values`; ties go to the even step.

    Args:
        values: float32 or float64, finite.
        grid: a power of two.

    Raises:
        UnderstudyError: when a value is not finite or farther than 2^60 steps from zero.
    """
    return _rounded(values.to(torch.float64, copy=True), grid)


def _rounded(values: Tensor, grid: float) -> Tensor:
    """`to_steps` of float64 values that nobody needs any more."""
    values.mul_(1.0 / grid).round_()
    least, most = (torch.stack(values.aminmax()) if values.numel() else values.new_zeros(2)).tolist()
    # Both are undefined where a value is.
    if not -_FARTHEST <= least <= most <= _FARTHEST:
        raise UnderstudyError(
            f"expected a finite query within 2^60 steps of {grid:g}, found another; nothing was released. "
            "Contributions that are not finite must be left out before they are added up"
        )
    return values.to(torch.int64)


def from_steps(steps: Tensor, *, grid: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """The floats nearest to whole steps: post-processing of released integers."""
    return steps.double().mul_(grid).to(dtype)


class GridSum:
    """A sum of clipped contributions in whole steps of the grid, whoever else is in it.

    Contributions are added up in float64, at most 2^16 units at a time, then rounded to the grid and added exactly. One
    unit changes the float64 sum that it is part of, and no other. That sum's rounding error is below
    2^16 * 2^16 * 2^-53 = 2^-21 of the sensitivity on either neighbour, far below `ALLOWANCE`.
    """

    def __init__(self, *, sensitivity: float) -> None:
        """An empty sum.

        Args:
            sensitivity: L2 norm that one unit's contribution is clipped to.
        """
        self._grid = grid_of(sensitivity)
        self._waiting: dict[str, Tensor] = {}
        self._units = 0
        self._steps: dict[str, Tensor] = {}

    def add(self, values: Mapping[str, Tensor], *, units: int) -> None:
        """Add the sum of some units' contributions.

        Args:
            values: name -> float tensor, the same names and shapes at every call; private.
            units: slots that they are the sum over, public: null ones count.
        """
        if self._units + units > _UNITS_AT_ONCE:
            self._round()
        for name, value in values.items():
            waiting = self._waiting.get(name)
            self._waiting[name] = (
                value.to(torch.float64, copy=True) if waiting is None else waiting.add_(value.double())
            )
        self._units += units

    def steps(self) -> dict[str, Tensor]:
        """Name -> int64 steps of everything added so far; private."""
        self._round()
        return dict(self._steps)

    def _round(self) -> None:
        for name, value in self._waiting.items():
            steps = _rounded(value, self._grid)
            self._steps[name] = steps if name not in self._steps else self._steps[name].add_(steps)
        self._waiting, self._units = {}, 0
