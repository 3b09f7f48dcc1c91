"""The continuous Gaussian, exactly rounded to the integers: post-processing of the mechanism that is accounted.

A value is round(scale * X), X standard normal, where X is the Box-Muller transform of two uniform reals whose binary
digits are the bits of a key's stream: with L = -ln u, u in (0, 1), and t in [-pi/4, pi/4), one pair is
+- sqrt(L) (cos t - sin t) and +- sqrt(L) (cos t + sin t), the point of radius sqrt(2 L) in a quadrant (Box & Muller
1958, turned by pi/4). The reals have infinitely many digits; as many are read as the rounding needs.

*Fast path*: 64 digits of each, float64, elementary functions from additions, products, quotients and square roots
alone, which IEEE 754 rounds correctly on every machine (`box_muller`; for long draws compiled). The result is within
`ERROR` of X, so that scale * X is within
1.1 * `ERROR` * scale of the float64 product. Where that interval holds no half-integer, its rounding is the answer.

*Slow path*: the other values, and pairs with u < 2^-18 or 1 - u < 2^-36 for which the error bound was not derived, are
computed again with further digits of the same key stream and more precision until the interval holds none. So the
result is a function of the key alone, whatever the machine, and follows the law exactly (as far as the key stream is
uniform): nothing is added to delta.

*The error bound*, e = 2^-53: converting the digits of u costs e and 2^-63 in L; s = (m - 1)/(m + 1) is within 2e of
its value, the series 2 atanh(s) of ln m within 4.2e of it, the multiple of ln 2 within 2e; since L is at least half of
that multiple, L is within 10e L + 2e + 1/w of -ln u (w the integer that 64 digits are, at least 2^46). Hence sqrt(L) is
within 6e sqrt(L) + e/sqrt(L) + 1/(2 w sqrt(L)): at L = 2^-14 within 1.43e-14, at L = 12.5 within 4.4e-15. Below
1 - u = 2^-14, where L is computed from the exact v = 1 - u of the 64 digits, the digits after them move it by 2^-64 at
most and its relative error is within 3e; so sqrt(L) is within 3e sqrt(L) + 2^-65/sqrt(L), at 2^-36 within 7.2e-15. The
angle is within 2.4e, each of cos t -+ sin t within 10.5e. Their product is within 2.1e-14 at L = 2^-14 and within
1.1e-14 at either end; `ERROR` is 2.8e-14. The series' remainders are below 6e-17.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import mpmath
import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from understudy.privacy.box_muller import LARGEST_SCALE, Integers, rounded_normals
from understudy.privacy.compiled_box_muller import Fill, compiled
from understudy.privacy.noise import uniform_words

ERROR: Final = 2.0**-45

# Values are made in blocks of this many, always whole ones: a block depends on the key and its number alone, not on how
# many are asked for or on how many threads share the work. The first half of a block's words are digits of u.
BLOCK: Final = 1 << 16
_PAIRS: Final = BLOCK // 2
# From so many values on the fast path is compiled, which takes about a second once in a process.
COMPILED_FROM: Final = 1 << 21
_DIGITS: Final = 64
# A context of our own, one thread at a time: a precision that another thread sets would change results. Its constants
# are made long enough at once, so that nobody lengthens them in the middle of a computation.
_SLOW = threading.Lock()
_MP: Final = mpmath.MPContext()
_MP.prec = 4096
_ = +_MP.ln2, +_MP.pi


def rounded_gaussian(key: bytes, size: int, *, scale: float, error: float = ERROR) -> torch.Tensor:
    """`size` independent integers round(scale * X), X standard normal, a function of the key alone.

    The first n of `rounded_gaussian(key, m)` are `rounded_gaussian(key, n)`, whatever the number of threads.

    Args:
        key: 32 bytes, used for nothing else.
        size: number of values.
        scale: standard deviation in steps, finite, >= 0 and below 2^58, so that values fit 64 bits.
        error: bound on the fast path's error in X; a wider one sends more values down the slow path and changes none.

    Returns:
        `(size,)` int64 on the CPU.

    Raises:
        ValueError: when the key, size or scale is out of range.
    """
    out = torch.zeros(max(size, 0), dtype=torch.int64, device="cpu")
    values = out.numpy()

    def keep(start: int, noise: Integers) -> None:
        values[start : start + len(noise)] = noise

    each_block(key, size, scale=scale, use=keep, error=error)
    return out


def each_block(
    key: bytes, size: int, *, scale: float, use: Callable[[int, Integers], None], error: float = ERROR
) -> None:
    """Hand `rounded_gaussian(key, size, scale=scale)` over in blocks, while they lie in a core's cache.

    Args:
        key: as for `rounded_gaussian`, like `size`, `scale` and `error`.
        size: number of values.
        scale: standard deviation in steps.
        use: called with the place of a block's first value and its values, which it may overwrite and must not keep; in
            any order, on as many threads as PyTorch uses.
        error: bound on the fast path's error.

    Raises:
        ValueError: when the key, size or scale is out of range.
    """
    if not 0 <= scale < 2.0**58 or size < 0 or len(key) != 32 or not error >= ERROR:
        raise ValueError(f"expected 32 bytes, size >= 0, 0 <= scale < 2^58, found {len(key)}, {size=}, {scale=}")
    compile_ = size >= COMPILED_FROM and 0 < scale <= LARGEST_SCALE
    blocks, count = _Blocks(key, scale, error, compiled() if compile_ else None), math.ceil(size / BLOCK)
    workers = min(torch.get_num_threads(), count)

    def make(worker: int) -> None:
        scratch = _Scratch()
        for start in range(worker * BLOCK, size, workers * BLOCK):
            some = min(BLOCK, size - start)
            use(start, blocks.values(start // BLOCK, some, scratch) if scale > 0 else np.zeros(some, np.int64))

    if workers <= 1:
        list(map(make, range(workers)))
    else:
        # NumPy, compiled loops and AES let go of the interpreter lock while they work on a block.
        with ThreadPoolExecutor(max_workers=workers) as pool:
            list(pool.map(make, range(workers)))


class _Scratch:
    """Memory for one block after the other: new memory costs as much as filling it."""

    def __init__(self) -> None:
        self.words = np.empty(BLOCK, "<u8")
        self.root = np.empty(_PAIRS)
        self.values = np.empty(BLOCK, np.int64)
        self.is_open = np.empty(BLOCK, np.bool_)


@dataclass(frozen=True)
class _Blocks:
    """What all blocks of a draw share: the key, the scale, and how the fast path is computed."""

    key: bytes = field(repr=False)
    scale: float
    error: float
    fill: Fill | None

    def values(self, block: int, count: int, scratch: _Scratch) -> Integers:
        """The first values of a block, in the scratch memory or in their own."""
        words = uniform_words(self.key, BLOCK, start=block * BLOCK, out=scratch.words)
        # At 2^52 and beyond the distance to a half-integer says nothing; the bound is far above one half there.
        distance = 0.5 - 1.1 * self.error * self.scale
        if self.fill is None:
            values, is_open = rounded_normals(words, self.scale, distance)
        else:
            values, is_open = scratch.values, scratch.is_open
            self.fill(words, self.scale, distance, scratch.root, values, is_open)
        for place in np.flatnonzero(is_open[:count]).tolist():
            pair = place % _PAIRS
            values[place] = _exactly_rounded(
                self.key,
                int(words[pair]),
                int(words[_PAIRS + pair]),
                pair=block * _PAIRS + pair,
                second=place >= _PAIRS,
                scale=self.scale,
            )
        return values[:count]


def _exactly_rounded(key: bytes, radius: int, angle: int, *, pair: int, second: bool, scale: float) -> int:
    """One value of a pair, from as many further digits of its key stream as its rounding needs."""
    further = _DIGITS
    while True:
        low, high = _enclosure(key, radius, angle, pair=pair, second=second, scale=scale, further=further)
        if low == high:
            return low
        further *= 2


def _enclosure(
    key: bytes, radius: int, angle: int, *, pair: int, second: bool, scale: float, further: int
) -> tuple[int, int]:
    """Roundings of the lower and upper bound on a value of which 64 + `further` digits are known."""
    digits = 64 + further
    u = (radius << further) | _further_digits(key, 2 * pair + 1, further)
    if u == 0:
        return -1, 1
    signed = angle << 2 & (1 << 64) - 1
    signed -= (signed >> 63) << 64
    turn = (signed << further) + (_further_digits(key, 2 * pair + 2, further) << 2)
    with _SLOW:
        _MP.prec = digits + 80
        root = _MP.sqrt(digits * _MP.ln2 - _MP.log(u))
        t = _MP.ldexp(_MP.pi * turn, -65 - further)
        cosine, sine = _MP.cos_sin(t)
        size = root * (cosine + sine if second else cosine - sine)
        # The unknown digits move u by less than one unit, L by less than 1/u, and t by less than 7 of 2^-digits; the
        # arithmetic is exact to 2^-(digits + 60).
        spread = 2 / (u * root) + root * _MP.ldexp(16, -digits) + _MP.ldexp(1 + root, -digits - 60)
        negative = angle >> (62 if second else 63) & 1
        value = (-size if negative else size) * scale
        margin = spread * scale
        return int(_MP.nint(value - margin)), int(_MP.nint(value + margin))


def _further_digits(key: bytes, region: int, count: int) -> int:
    """`count` bits (a multiple of 8) of the key's stream in a region that no word of a block reaches."""
    encryptor = Cipher(AES256(key), CTR((region << 64).to_bytes(16))).encryptor()
    return int.from_bytes(encryptor.update(bytes(count // 8)))
