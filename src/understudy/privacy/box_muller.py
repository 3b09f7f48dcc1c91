"""Pairs of normals by Box and Muller from 128 random bits, in operations that IEEE 754 rounds alike on every machine.

The formulas and the bound on their error are in `rounded_gaussian`.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

LEAST_WORD: Final = np.uint64(1 << 46)
GREATEST_WORD: Final = np.uint64((1 << 64) - (1 << 28))
NEAR_ONE: Final = np.uint64((1 << 64) - (1 << 50))
MANTISSA_BITS: Final = 52
ROOT_OF_HALF: Final = np.float64(math.sqrt(0.5)).view(np.int64)
LOW_HALF: Final = np.uint64((1 << 32) - 1)
SIGN: Final = np.uint64(1 << 63)
# Coefficients of z^k, z = s^2, in -2 atanh(s)/s, and z = t^2 in sin(t)/t and cos(t), and of v^k in -ln(1 - v)/v, from
# the highest to the constant.
LOG: Final = tuple(-2.0 / (2 * k + 1) for k in range(9, -1, -1))
SIN: Final = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in range(7, -1, -1))
COS: Final = tuple((-1.0) ** k / math.factorial(2 * k) for k in range(8, -1, -1))
LOG_NEAR_ONE: Final = tuple(1.0 / (k + 1) for k in range(3, -1, -1))
# Beyond it a value may have no place in 64 bits.
LARGEST_SCALE: Final = 2.0**56
LN_2: Final = math.log(2.0)
# The unit of the angle: a signed number of 64 bits spans a quarter turn.
TURN: Final = math.pi / 4 * 2.0**-63


def rounded_normals(words: Words, scale: float, distance: float) -> tuple[Integers, NDArray[np.bool_]]:
    """Scaled normals rounded to integers, and which roundings are open, each `(2 k,)`, in the order of the normals.

    Args:
        words: as of `standard_normals`.
        scale: standard deviation, at most 2^57.
        distance: from the rounding; from so far on, and where the error has no bound, a value is open.
    """
    scaled, in_range = standard_normals(words)
    scaled *= scale
    rounded = np.rint(scaled)
    scaled -= rounded
    np.abs(scaled, out=scaled)
    is_open = scaled >= distance
    if not in_range.all():
        is_open |= ~np.concatenate((in_range, in_range))
    if scale > LARGEST_SCALE:
        rounded[np.abs(rounded) >= 2.0**62] = 0.0
    return rounded.astype(np.int64), is_open


def standard_normals(words: Words) -> tuple[Floats, NDArray[np.bool_]]:
    """The fast path: normals within `ERROR` where the second result is true, from digits of u, then digits of t.

    Args:
        words: `(2 k,)`, k words of u and k of the angle.

    Returns:
        `(2 k,)` normals, the first of each pair before the second ones, and `(k,)` whether the bound holds.
    """
    pairs = len(words) // 2
    radius, angle = words[:pairs], words[pairs:]
    root = _negative_log(radius)
    np.sqrt(root, out=root)
    # The two highest bits are signs; the others, as a signed number, are the angle in units of 2^-63 pi/4.
    t = (angle << np.uint64(2)).view(np.int64).astype(np.float64)
    t *= TURN
    z = t * t
    sine, cosine = _polynomial(SIN, z), _polynomial(COS, z)
    sine *= t
    normals = np.empty(2 * pairs)
    np.subtract(cosine, sine, out=normals[:pairs])
    np.add(cosine, sine, out=normals[pairs:])
    normals[:pairs] *= _signed(root, angle)
    normals[pairs:] *= _signed(root, angle << np.uint64(1))
    return normals, (radius >= LEAST_WORD) & (radius <= GREATEST_WORD)


def _signed(sizes: Floats, words: Words) -> Floats:
    """Sizes, negative where the highest bit of the word is set."""
    bits = words & SIGN
    bits ^= sizes.view(np.uint64)
    return bits.view(np.float64)


def _negative_log(words: Words) -> Floats:
    """-ln(w / 2^64): multiples of ln 2, less 2 atanh((m - 1)/(m + 1)) for m in [sqrt(1/2), sqrt(2)).

    Near one it is the series in v = 1 - w / 2^64, which the 64 digits give exactly.
    """
    # Converted in halves, which NumPy does without branches; their sum is rounded once, to the float64 nearest to w.
    m = (words >> np.uint64(32)).view(np.int64).astype(np.float64)
    m *= 2.0**32
    m += (words & LOW_HALF).view(np.int64)
    bits = m.view(np.int64)
    doublings = bits - ROOT_OF_HALF
    doublings >>= MANTISSA_BITS
    bits -= doublings << MANTISSA_BITS
    s = m - 1.0
    m += 1.0
    s /= m
    series = _polynomial(LOG, s * s)
    series *= s
    multiples = 64.0 - doublings
    multiples *= LN_2
    series += multiples
    near = np.flatnonzero(words > NEAR_ONE)
    v = (~words[near] + np.uint64(1)).astype(np.float64)
    v *= 2.0**-64
    series[near] = v * _polynomial(LOG_NEAR_ONE, v)
    return series


def _polynomial(coefficients: tuple[float, ...], z: Floats) -> Floats:
    """Horner's rule."""
    total = z * coefficients[0]
    total += coefficients[1]
    for coefficient in coefficients[2:]:
        total *= z
        total += coefficient
    return total
