"""The fast path of `rounded_gaussian` for long draws: the loops of `box_muller`, compiled for this machine by numba.

NumPy goes through memory once for each operation and asks for the interpreter's lock before each, so that its threads
wait for one another. A compiled loop does neither. It makes the same operations on each number, one by one and never
fused or reordered (numba's fastmath stays off), so its bits are those of NumPy. Nobody relies on that: a first block is
compared, and where one bit differs, NumPy goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from understudy.privacy.box_muller import (
    COS,
    GREATEST_WORD,
    LEAST_WORD,
    LN_2,
    LOG,
    LOG_NEAR_ONE,
    LOW_HALF,
    MANTISSA_BITS,
    NEAR_ONE,
    ROOT_OF_HALF,
    SIGN,
    SIN,
    TURN,
    Floats,
    Words,
    rounded_normals,
    standard_normals,
)

# Words, scale and narrowest distance to a half-integer -> fills roots of -ln u, rounded values, and which are open.
Fill = Callable[[Words, float, float, Floats, NDArray[np.int64], NDArray[np.bool_]], None]

_HALF: Final = np.uint64(32)
_ONE: Final = np.uint64(1)
_TWO: Final = np.uint64(2)
_BITS: Final = np.int64(MANTISSA_BITS)
_TRIED: Final = 1 << 12
# One of which some roundings are open, and one that shows every bit of a normal.
_TRIED_SCALES: Final = (2.0**27, 2.0**53)


@functools.cache
def compiled() -> Fill | None:
    """The compiled loops, made once in a process within about a second; None where they give other bits than NumPy."""
    import numba  # what draws little needs none of it

    compile_ = numba.njit(nogil=True, error_model="numpy")
    roots, values = compile_(_fill_roots), compile_(_fill_values)

    def fill(
        words: Words, scale: float, distance: float, root: Floats, out: NDArray[np.int64], is_open: NDArray[np.bool_]
    ) -> None:
        roots(words[: len(root)], root)
        values(words, root, scale, distance, out, is_open)

    return fill if _same_bits(fill) else None


def _same_bits(fill: Fill) -> bool:
    """Whether some values are those of NumPy: of random words, of both ends of the range, and near the series' seam."""
    words = np.random.Generator(np.random.PCG64(0)).integers(0, 1 << 64, 2 * _TRIED, dtype=np.uint64)
    seams = [LEAST_WORD, GREATEST_WORD, NEAR_ONE, np.uint64(0), np.uint64(1 << 63)]
    words[: 3 * len(seams)] = [seam + np.uint64(step) for seam in seams for step in (0, 1, 2)]
    # What lies outside the range is open, and made in another way.
    has_bound = np.tile(standard_normals(words)[1], 2)
    root, out, is_open = np.empty(_TRIED), np.empty(2 * _TRIED, np.int64), np.empty(2 * _TRIED, np.bool_)
    for scale in _TRIED_SCALES:
        # So near that a few are open.
        fill(words, scale, 0.49, root, out, is_open)
        expected, expected_open = rounded_normals(words, scale, 0.49)
        if not np.array_equal(is_open, expected_open) or not np.array_equal(out[has_bound], expected[has_bound]):
            return False
    return True


def _fill_roots(words: Any, root: Any) -> None:
    """Root of -ln(w / 2^64) for each word."""
    for i in range(len(root)):
        word = words[i]
        m = np.float64(np.int64(word >> _HALF)) * 4294967296.0 + np.float64(np.int64(word & LOW_HALF))
        bits = np.float64(m).view(np.int64)
        doublings = (bits - ROOT_OF_HALF) >> _BITS
        m = np.int64(bits - (doublings << _BITS)).view(np.float64)
        s = (m - 1.0) / (m + 1.0)
        z = s * s
        series = z * LOG[0] + LOG[1]
        for coefficient in LOG[2:]:
            series = series * z + coefficient
        root[i] = np.sqrt(series * s + (64.0 - np.float64(doublings)) * LN_2)
    # Few: apart, so that the loop above has no branch.
    for i in range(len(root)):
        word = words[i]
        if word > NEAR_ONE:
            v = np.float64(np.int64(~word + _ONE)) * 5.421010862427522e-20  # 2^-64
            series = v * LOG_NEAR_ONE[0] + LOG_NEAR_ONE[1]
            for coefficient in LOG_NEAR_ONE[2:]:
                series = series * v + coefficient
            root[i] = np.sqrt(v * series)


def _fill_values(words: Any, root: Any, scale: float, distance: float, out: Any, is_open: Any) -> None:
    """Both values of each pair, scaled and rounded, and whether their rounding is open."""
    pairs = len(root)
    for i in range(pairs):
        angle = words[pairs + i]
        t = np.float64(np.int64(angle << _TWO)) * TURN
        z = t * t
        sine = z * SIN[0] + SIN[1]
        for coefficient in SIN[2:]:
            sine = sine * z + coefficient
        sine = sine * t
        cosine = z * COS[0] + COS[1]
        for coefficient in COS[2:]:
            cosine = cosine * z + coefficient
        size = np.float64(root[i]).view(np.uint64)
        one = np.uint64(size ^ (angle & SIGN)).view(np.float64)
        two = np.uint64(size ^ ((angle << _ONE) & SIGN)).view(np.float64)
        first, second = (cosine - sine) * one * scale, (cosine + sine) * two * scale
        whole, other = np.rint(first), np.rint(second)
        outside = (words[i] < LEAST_WORD) | (words[i] > GREATEST_WORD)
        is_open[i] = (np.abs(first - whole) >= distance) | outside
        is_open[pairs + i] = (np.abs(second - other) >= distance) | outside
        out[i], out[pairs + i] = np.int64(whole), np.int64(other)
