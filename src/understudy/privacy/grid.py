"""The public grid of everything noised: queries are rounded to it, noise is a multiple of it, sums are exact.

A released float sum of query and noise tells neighbours apart: whoever knows both candidate queries asks which of them
lies on the float grid that some noise value reaches. Here a query is a tuple of whole steps of a grid that depends on
the declared sensitivity alone, and so is its noise; their sum is exact in 64-bit integers, and every float made of it
later is a rounding of it, which is post-processing.

*What rounding costs*: the step is at most sensitivity / 2^26. Rounding moves each of d numbers by half a step at most,
hence two neighbouring queries by step * sqrt(d) against each other: under sensitivity / 2^11 for d up to 2^30, and more
numbers are refused. As much again is set aside for sums made in floats before they are rounded (`grid_sum.GridSum`). So
noise is scaled to the declared sensitivity times 1 + 2^-10, which is what the charge counts.
"""

from __future__ import annotations

import math
from typing import Final

# What rounding and float sums may add to a sensitivity, as a share of it.
ALLOWANCE: Final = 2.0**-10
MOST_NUMBERS: Final = 1 << 30
# A float32 has steps of 2^-149 near zero, so that contributions of a tiny norm are rounded by more than `ALLOWANCE` of
# it. Nothing smaller than this is charged: here, half a step for each of 2^30 numbers is 2^-35 of the norm.
LEAST_SENSITIVITY: Final = 2.0**-100
_STEPS_BITS: Final = 26


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
