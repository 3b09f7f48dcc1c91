"""Shamir's secret sharing of 256-bit secrets.

Source: Shamir 1979. The field is that of the integers modulo 2^256 + 297, the smallest prime above every secret. A
secret is the value at 0 of a polynomial of degree threshold - 1 whose other coefficients are uniform; a holder's share
is its value at the holder's own point. Any `threshold` shares give the secret, fewer are uniform whatever it is.

Coefficients are 384-bit numbers modulo the prime: 2^-127 from uniform, for a function of a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from understudy.errors import UnderstudyError
from understudy.privacy.noise import uniform_words

PRIME: Final = 2**256 + 297
SHARE_BYTES: Final = 33
_COEFFICIENT_BYTES: Final = 48


def share_secret(secret: bytes, *, points: Sequence[int], threshold: int, key: bytes) -> list[int]:
    """Shares of a secret, one for each point.

    Args:
        secret: 32 bytes.
        points: distinct integers in [1, 2^64), public.
        threshold: how many shares give the secret, from 1 to the number of points.
        key: 32 bytes, used for nothing else; gives the coefficients.

    Returns:
        One integer below `PRIME` per point, in their order.

    Raises:
        ValueError: when an argument is out of range.
    """
    if len(secret) != 32 or not 1 <= threshold <= len(points):
        found = f"{len(secret)} bytes, {threshold=}, {len(points)} points"
        raise ValueError(f"expected a secret of 32 bytes and 1 <= threshold <= points, found {found}")
    if len(set(points)) != len(points) or not all(1 <= point < 2**64 for point in points):
        raise ValueError("expected distinct points in [1, 2^64): a share at 0 would be the secret")
    stream = uniform_words(key, (threshold - 1) * _COEFFICIENT_BYTES // 8).tobytes()
    starts = range(0, len(stream), _COEFFICIENT_BYTES)
    upper = [int.from_bytes(stream[start : start + _COEFFICIENT_BYTES], "little") % PRIME for start in starts]
    constant = int.from_bytes(secret)
    return [_value(upper, constant, point) for point in points]


def reconstruct(shares: Mapping[int, int], *, threshold: int) -> bytes:
    """The secret, from the `threshold` shares at the lowest points (Lagrange interpolation at 0).

    Args:
        shares: point -> share.
        threshold: of the sharing.

    Returns:
        32 bytes.

    Raises:
        UnderstudyError: when there are too few shares, or they do not belong to one 256-bit secret.
    """
    if len(shares) < threshold:
        raise UnderstudyError(f"expected at least threshold={threshold} shares of a secret, found {len(shares)}")
    points = sorted(shares)[:threshold]
    numerator, denominator = 0, 1
    for point in points:
        above, below = shares[point], 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        numerator = (numerator * below + above * denominator) % PRIME
        denominator = denominator * below % PRIME
    secret = numerator * pow(denominator, -1, PRIME) % PRIME
    if secret >= 2**256:
        raise UnderstudyError("the shares do not belong to one secret: one of them is wrong")
    return secret.to_bytes(32)


def _value(upper: Sequence[int], constant: int, point: int) -> int:
    """The polynomial at a point, by Horner's rule."""
    value = 0
    for coefficient in reversed(upper):
        value = (value + coefficient) * point % PRIME
    return (value + constant) % PRIME
