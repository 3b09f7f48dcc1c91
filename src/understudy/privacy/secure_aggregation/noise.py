"""A client's share of noise: discrete Gaussian integers by inversion of a 128-bit table, far faster than exactly.

`noise.discrete_gaussian` is exact and takes 36 us a value; hundreds of clients need millions. Here a 128-bit uniform
is looked up among the cumulative probabilities, rounded down to multiples of 2^-128, of the integers -T to T with
T >= 13.5 scales. One value is then within `sampler_gap` of the discrete Gaussian in total variation, which
`secure_accounting` charges. Scales too large for a table go to the exact sampler, whose gap is 0.
"""

from __future__ import annotations

import decimal
import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from understudy.privacy.noise import discrete_gaussian, uniform_words

_TAIL: Final = 13.5  # scales: P(|X| > 13.5 scale) <= 2 exp(-13.5^2 / 2) < 2^-130
_WIDEST: Final = 1 << 19
_PRECISION: Final = 320  # bits after the point of the weights
_DIGITS: Final = 110


@dataclass(frozen=True, eq=False)
class Table:
    """Cumulative probabilities of -half to half - 1, times 2^128, rounded down.

    Attributes:
        half: T.
        thresholds: 2 half of them, increasing.
        high: their upper 64 bits.
    """

    half: int
    thresholds: list[int]
    high: NDArray[np.uint64]


def share_noise(key: bytes, size: int, *, scale: float) -> NDArray[np.int64]:
    """`size` independent integers within `sampler_gap` of x ~ exp(-x^2 / (2 scale^2)), a function of the key.

    Args:
        key: 32 bytes, used for nothing else.
        size: number of values.
        scale: the parameter sigma, finite and >= 0; 0 gives zeros.

    Returns:
        int64 (size,); the first of many are those of few.
    """
    if scale == 0 or _half(scale) > _WIDEST:
        return discrete_gaussian(key, size, scale=scale).numpy()
    words = uniform_words(key, 2 * size)
    return invert(_table(scale), words[0::2], words[1::2])


def sampler_gap(scale: float) -> float:
    """Total variation between one value of `share_noise` and the discrete Gaussian.

    Rounding moves each of 2T + 1 probabilities by less than 2^-128, half of their sum counts; the tail adds 2^-130;
    the weights' own error, below 2^-200, is covered by counting T + 2.
    """
    half = _half(scale)
    return 0.0 if scale == 0 or half > _WIDEST else math.ldexp(half + 2, -128)


def invert(table: Table, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The values of 128-bit uniforms: how many thresholds are at most high 2^64 + low, minus T."""
    found = np.searchsorted(table.high, high, side="right")
    # Where the upper halves are equal the lower ones decide: at the far tails, or by a chance of 2^-45.
    unsure = np.flatnonzero(np.searchsorted(table.high, high, side="left") != found)
    for place in unsure.tolist():
        found[place] = bisect_right(table.thresholds, (int(high[place]) << 64) + int(low[place]))
    return found.astype(np.int64) - table.half


def _half(scale: float) -> int:
    return math.ceil(_TAIL * scale) + 1


@lru_cache(maxsize=4)
def _table(scale: float) -> Table:
    half = _half(scale)
    weights = _weights(scale, half)
    running = list(accumulate([*weights[:0:-1], *weights]))
    thresholds = [(value << 128) // running[-1] for value in running[:-1]]
    return Table(half, thresholds, np.array([value >> 64 for value in thresholds], dtype=np.uint64))


def _weights(scale: float, half: int) -> list[int]:
    """exp(-x^2 / (2 scale^2)) for x = 0 to `half`, times 2^320.

    Each is the one before times a ratio that itself shrinks by exp(-1 / scale^2). Every product rounds down by less
    than one unit, so weight x is off by less than (x + 1)^2 units of 2^-320: below 2^-280 for every table here.
    """
    context = decimal.Context(prec=_DIGITS)
    square = Fraction(scale) ** 2
    inverse = context.divide(decimal.Decimal(square.denominator), decimal.Decimal(square.numerator))
    unit = decimal.Decimal(2**_PRECISION)

    def fixed(exponent: decimal.Decimal) -> int:
        return int(context.multiply(context.exp(exponent), unit))

    ratio, shrink = fixed(context.multiply(inverse, decimal.Decimal("-0.5"))), fixed(context.minus(inverse))
    weights = [1 << _PRECISION]
    for _ in range(half):
        weights.append(weights[-1] * ratio >> _PRECISION)
        ratio = ratio * shrink >> _PRECISION
    return weights
