"""The continuous Gaussian, exactly rounded to the integers: post-processing of the mechanism that is accounted.

A value is round(scale * X), X standard normal, where X is the Box-Muller transform of two uniform reals whose binary
digits are the bits of a key's stream: with L = -ln u, u in (0, 1), and t in [-pi/4, pi/4), one pair is
+- sqrt(L) (cos t - sin t) and +- sqrt(L) (cos t + sin t), the point of radius sqrt(2 L) in a quadrant (Box & Muller
1958, turned by pi/4). The reals have infinitely many digits; as many are read as the rounding needs.

*Fast path*: 64 digits of each, float64, elementary functions from additions, products, quotients and square roots
alone, which IEEE 754 rounds correctly on every machine. The result is within `ERROR` of X, so that scale * X is within
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
from typing import Final

import mpmath
import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from understudy.privacy.noise import uniform_words

ERROR: Final = 2.0**-45

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

# Values are made in blocks of this many, always whole ones: a block depends on the key and its number alone, not on how
# many are asked for or on how many threads share the work. The first half of a block's words are digits of u.
BLOCK: Final = 1 << 16
_PAIRS: Final = BLOCK // 2
_LEAST_WORD: Final = np.uint64(1 << 46)
_GREATEST_WORD: Final = np.uint64((1 << 64) - (1 << 28))
_NEAR_ONE: Final = np.uint64((1 << 64) - (1 << 50))
_DIGITS: Final = 64
_MANTISSA_BITS: Final = 52
_ROOT_OF_HALF: Final = np.float64(math.sqrt(0.5)).view(np.int64)
_LOW_HALF: Final = np.uint64((1 << 32) - 1)
_SIGN: Final = np.uint64(1 << 63)
# Coefficients of z^k, z = s^2, in -2 atanh(s)/s, and z = t^2 in sin(t)/t and cos(t), and of v^k in -ln(1 - v)/v, from
# the highest to the constant.
_LOG: Final = tuple(-2.0 / (2 * k + 1) for k in range(9, -1, -1))
_SIN: Final = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in range(7, -1, -1))
_COS: Final = tuple((-1.0) ** k / math.factorial(2 * k) for k in range(8, -1, -1))
_LOG_NEAR_ONE: Final = tuple(1.0 / (k + 1) for k in range(3, -1, -1))
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
        use: called with the place of a block's first value and its values; in any order, on as many threads as PyTorch
            uses.
        error: bound on the fast path's error.

    Raises:
        ValueError: when the key, size or scale is out of range.
    """
    if not 0 <= scale < 2.0**58 or size < 0 or len(key) != 32 or not error >= ERROR:
        raise ValueError(f"expected 32 bytes, size >= 0, 0 <= scale < 2^58, found {len(key)}, {size=}, {scale=}")

    def make(block: int) -> None:
        start = block * BLOCK
        count = min(BLOCK, size - start)
        use(start, _block(key, block, count, scale=scale, error=error) if scale > 0 else np.zeros(count, np.int64))

    blocks = range(math.ceil(size / BLOCK))
    if len(blocks) <= 1:
        list(map(make, blocks))
    else:
        # NumPy and AES let go of the interpreter lock while they work on a block.
        with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
            list(pool.map(make, blocks))


def _block(key: bytes, block: int, count: int, *, scale: float, error: float) -> Integers:
    """The first `count` values of a block."""
    words = uniform_words(key, BLOCK, start=block * BLOCK)
    normals, in_range = standard_normals(words)
    scaled = normals[:count]
    scaled *= scale
    rounded = np.rint(scaled)
    # At 2^52 and beyond the distance to a half-integer says nothing any more; the bound is far above one half there.
    scaled -= rounded
    np.abs(scaled, out=scaled)
    open_ = scaled >= 0.5 - 1.1 * error * scale
    if not in_range.all():
        open_ |= ~np.concatenate((in_range, in_range))[:count]
    if scale > 2.0**56:
        rounded[np.abs(rounded) >= 2.0**62] = 0.0
    values = rounded.astype(np.int64)
    for place in np.flatnonzero(open_).tolist():
        pair = place % _PAIRS
        values[place] = _exactly_rounded(
            key,
            int(words[pair]),
            int(words[_PAIRS + pair]),
            pair=block * _PAIRS + pair,
            second=place >= _PAIRS,
            scale=scale,
        )
    return values


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
    t *= math.pi / 4 * 2.0**-63
    z = t * t
    sine, cosine = _polynomial(_SIN, z), _polynomial(_COS, z)
    sine *= t
    normals = np.empty(2 * pairs)
    np.subtract(cosine, sine, out=normals[:pairs])
    np.add(cosine, sine, out=normals[pairs:])
    normals[:pairs] *= _signed(root, angle)
    normals[pairs:] *= _signed(root, angle << np.uint64(1))
    return normals, (radius >= _LEAST_WORD) & (radius <= _GREATEST_WORD)


def _signed(sizes: Floats, words: Words) -> Floats:
    """Sizes, negative where the highest bit of the word is set."""
    bits = words & _SIGN
    bits ^= sizes.view(np.uint64)
    return bits.view(np.float64)


def _negative_log(words: Words) -> Floats:
    """-ln(w / 2^64): multiples of ln 2, less 2 atanh((m - 1)/(m + 1)) for m in [sqrt(1/2), sqrt(2)).

    Near one it is the series in v = 1 - w / 2^64, which the 64 digits give exactly.
    """
    # Converted in halves, which NumPy does without branches; their sum is rounded once, to the float64 nearest to w.
    m = (words >> np.uint64(32)).view(np.int64).astype(np.float64)
    m *= 2.0**32
    m += (words & _LOW_HALF).view(np.int64)
    bits = m.view(np.int64)
    doublings = bits - _ROOT_OF_HALF
    doublings >>= _MANTISSA_BITS
    bits -= doublings << _MANTISSA_BITS
    s = m - 1.0
    m += 1.0
    s /= m
    series = _polynomial(_LOG, s * s)
    series *= s
    multiples = 64.0 - doublings
    multiples *= math.log(2.0)
    series += multiples
    near = np.flatnonzero(words > _NEAR_ONE)
    v = (~words[near] + np.uint64(1)).astype(np.float64)
    v *= 2.0**-64
    series[near] = v * _polynomial(_LOG_NEAR_ONE, v)
    return series


def _polynomial(coefficients: tuple[float, ...], z: Floats) -> Floats:
    """Horner's rule."""
    total = z * coefficients[0]
    total += coefficients[1]
    for coefficient in coefficients[2:]:
        total *= z
        total += coefficient
    return total


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
