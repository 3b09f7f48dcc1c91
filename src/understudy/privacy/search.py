"""Root search for functions that are costly to evaluate and decrease, such as epsilon over the noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from understudy.errors import InputError

_SMALLEST: Final = 1e-3
_LARGEST: Final = 1e7


def solve_decreasing(f: Callable[[float], float], *, low: float, high: float, start: float) -> tuple[float, float]:
    """Some (z, f(z)) with low <= f(z) <= high, for a decreasing f >= 0.

    Raises:
        InputError: when f does not enter the band between the smallest and the largest multiplier allowed.
    """
    aim, z = 0.5 * (math.log(low) + math.log(high)), start
    above, below = 0.0, math.inf  # the largest z with f(z) > high, the smallest z with f(z) < low
    seen: list[tuple[float, float]] = []  # (log z, log f(z)) where both are finite
    for _ in range(60):
        value = f(z)
        if low <= value <= high:
            return z, value
        above, below = (max(above, z), below) if value > high else (above, min(below, z))
        if 0 < value < math.inf:
            seen.append((math.log(z), math.log(value)))
        z = _next_point(seen, aim=aim, above=above, below=below)
        if not _SMALLEST <= z <= _LARGEST:
            break
    raise InputError(
        f"no noise multiplier gives epsilon={high:.6g}: {above:.6g} is too little, {below:.6g} is too much. "
        "If a part of the event with fixed noise already costs more, ask for a larger epsilon"
    )


def _next_point(seen: list[tuple[float, float]], *, aim: float, above: float, below: float) -> float:
    """The next z: a secant through the last two points, within the bracket and a factor of 8."""
    bracketed = above > 0 and below < math.inf
    away = math.sqrt(above * below) if bracketed else above * 8 if above > 0 else below / 8
    if not seen:
        return away
    slope = -1.0
    if len(seen) > 1 and seen[-1][0] != seen[-2][0]:
        slope = min((seen[-1][1] - seen[-2][1]) / (seen[-1][0] - seen[-2][0]), -0.05)
    step = (aim - seen[-1][1]) / slope
    z = math.exp(seen[-1][0] + max(-math.log(8), min(math.log(8), step)))
    return z if above < z < below else away
