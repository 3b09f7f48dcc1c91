"""Score vectors as integers of bounded norm, and the words in which masked sums of them travel.

A client's vector has L2 norm at most 1. It is scaled by 2^bits, rounded to nearest and then clipped in integers, so
that the integer vector has norm at most 2^bits exactly. Adding or removing a client therefore moves the integer sum by
at most 2^bits: rounding does not inflate the sensitivity.

Why so: rounding alone may lengthen a vector by sqrt(d)/2 steps (26 % of 2^8, 1.6 % of 2^12 at d = 18,000), and noise
would have to cover that worst case. Shortening each vector beforehand by as much costs the same in signal. But rounding
errors are as often inward as outward: the typical excess is d/24 steps over 2^bits (0.004 % at 12 bits), and clipping
takes off only that, from the coordinates that rounding moved out and whose rounding down costs least.

Sums are taken modulo 2^32 or 2^64, the width of a machine word. Every word is then a residue, so a message outside the
modulus is one of the wrong length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from understudy.errors import InputError, UnderstudyError

WordBits = Literal[32, 64]
Integers = NDArray[np.int64]
Words = NDArray[np.uint32] | NDArray[np.uint64]

MOST_BITS: Final = 24
# A vector clipped in float64 may be longer than 1 by rounding; more than this is a vector that nobody clipped.
_NORM_TOLERANCE: Final = 1e-9
_WORDS: Final = {32: ("<u4", "<i4"), 64: ("<u8", "<i8")}


def integer_sensitivity(d: int, bits: int) -> int:
    """The greatest L2 norm of an encoded vector, hence what one client moves the integer sum by: 2^bits.

    Exact, and the same at every d, because clipping follows rounding (see the module).

    >>> integer_sensitivity(18_000, 12)
    4096

    Raises:
        InputError: when d or bits is out of range.
    """
    if d < 1 or not 1 <= bits <= MOST_BITS:
        raise InputError(f"expected d >= 1 and 1 to {MOST_BITS} fractional bits, found {d=}, {bits=}")
    return 1 << bits


def encode(vector: ArrayLike, *, bits: int) -> Integers:
    """Round a vector of norm at most 1 to integers, 2^bits to the unit, of norm at most 2^bits.

    Each coordinate ends within one step of `vector * 2^bits`, half a step unless clipping lowered it. (Where the
    floats are longer than 1 by their own rounding, the last coordinates taken may end up to two steps away.)

    *Proof of the bound*: with m the rounded magnitudes and E = sum m^2 - 4^bits > 0, lowering one m > 0 by 1 lowers
    the sum by 2m - 1. Lowering in turn every coordinate that was rounded up, then every other, passes E, and the first
    prefix that does is taken. The result is checked in Python's integers.

    Args:
        vector: (d,) finite, of L2 norm at most 1; private.
        bits: fractional bits, 1 to 24.

    Returns:
        int64 (d,).

    Raises:
        InputError: when the vector is out of range; the message holds no value of it.
    """
    values = np.asarray(vector, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise InputError(f"expected a vector (d,), found shape {values.shape}")
    limit = integer_sensitivity(len(values), bits) ** 2
    if not np.isfinite(values).all() or np.linalg.norm(values) > 1 + _NORM_TOLERANCE:
        raise InputError("expected a finite score vector of L2 norm at most 1; clip it before it is encoded")
    exact = np.abs(values) * float(1 << bits)
    rounded = np.rint(exact).astype(np.int64)
    excess = int(rounded @ rounded) - limit
    if excess > 0:
        # Coordinates rounded up come first, the nearest to one half before the others.
        order = np.lexsort((exact - np.floor(exact), rounded <= exact))
        order = order[rounded[order] > 0]
        count = int(np.searchsorted(np.cumsum(2 * rounded[order] - 1), excess)) + 1
        rounded[order[:count]] -= 1
    if squared_norm(rounded) > limit:
        raise UnderstudyError("an encoded vector is longer than its bound; nothing was sent")
    return np.where(values < 0, -rounded, rounded)


def squared_norm(integers: Iterable[int] | Integers) -> int:
    """The exact squared L2 norm, in Python's integers."""
    return sum(int(value) ** 2 for value in integers)


def largest_total(n: int, d: int, *, bits: int, share_scale: float, failure: float = 2.0**-60) -> int:
    """A bound on every coordinate of the noisy integer sum, broken with probability at most `failure`.

    n 2^bits for the clients plus t for their noise. A discrete Gaussian is sub-Gaussian with its own parameter
    (Canonne, Kamath & Steinke 2020, Section 2), so n of them exceed t in one of d places with probability at most
    2 d exp(-t^2 / (2 n share_scale^2)). A breach spoils the result, not the privacy.
    """
    tail = share_scale * math.sqrt(2 * n * math.log(2 * d / failure))
    return n * integer_sensitivity(d, bits) + math.ceil(tail)


def word_bits(total: int) -> WordBits:
    """The width of the smallest word whose signed range holds -total to total.

    Raises:
        InputError: when no word does.
    """
    if total < 1 << 31:
        return 32
    if total < 1 << 63:
        return 64
    raise InputError("expected sums below 2^63; take fewer fractional bits, fewer clients or less noise")


def to_words(integers: Integers, width: WordBits) -> Words:
    """Integers as residues modulo 2^width."""
    words: Words = integers.astype(_WORDS[width][0])
    return words


def from_words(words: Words, width: WordBits) -> Integers:
    """The representatives in [-2^(width-1), 2^(width-1)) of residues."""
    return words.view(_WORDS[width][1]).astype(np.int64)


def parse_words(payload: bytes, *, d: int, width: WordBits) -> Words:
    """The words of one message.

    Raises:
        UnderstudyError: when it does not hold exactly d words.
    """
    expected = d * width // 8
    if len(payload) != expected:
        raise UnderstudyError(f"expected a message of {expected} bytes ({d} words), found {len(payload)}; refused")
    words: Words = np.frombuffer(payload, dtype=_WORDS[width][0])
    return words


def decode(total: Integers, *, bits: int) -> NDArray[np.float32]:
    """An integer sum as numbers: divided by 2^bits."""
    return (total / float(1 << bits)).astype(np.float32)
