"""Poisson sampling whose masks are a function of a key."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

from understudy.privacy.noise import uniform_words


def poisson_mask(key: bytes, n: int, *, probability: float) -> torch.Tensor:
    """Which of n slots take part in a step, each independently with the given probability.

    Slot i's bit depends on (key, i) alone: it is the same for every n > i and whatever the slots hold.
    The true probability is `probability` rounded down to a multiple of 2^-64, never above the accounted one.

    Args:
        key: 32 bytes, from `derive_key` with the step and a purpose of its own.
        n: number of slots, public.
        probability: in [0, 1], public.

    Returns:
        `(n,)` bool on the CPU; private, like every mask.

    Raises:
        ValueError: when n or the probability is out of range.
    """
    if n < 0 or not 0 <= probability <= 1:
        raise ValueError(f"expected n >= 0 and a probability in [0, 1], found {n=}, {probability=}")
    if probability == 1:
        return torch.ones(n, dtype=torch.bool, device="cpu")
    threshold = math.floor(Fraction(probability) * 2**64)
    return torch.from_numpy(uniform_words(key, n) < np.uint64(threshold))


def poisson_mask_of(key: bytes, unit_ids: npt.NDArray[np.uint8], *, probability: float) -> torch.Tensor:
    """Which units take part in a step, where a unit is known by an identifier of its own and not by its place.

    A unit's bit depends on (key, its identifier) alone: the first 64 bits of the identifier's AES-256 encryption,
    compared as in `poisson_mask`. No other unit's presence or order enters it. Equal identifiers get equal bits.

    Args:
        key: 32 bytes, from `derive_key` with the step and a purpose of its own.
        unit_ids: (n, 16) uint8, private.
        probability: in [0, 1], public.

    Returns:
        `(n,)` bool on the CPU; private, like every mask.

    Raises:
        ValueError: when the identifiers or the probability are out of range.
    """
    if unit_ids.ndim != 2 or unit_ids.shape[1:] != (16,) or unit_ids.dtype != np.uint8 or not 0 <= probability <= 1:
        raise ValueError(f"expected uint8 (n, 16) and a probability in [0, 1], found {unit_ids.shape}, {probability=}")
    if probability == 1:
        return torch.ones(len(unit_ids), dtype=torch.bool, device="cpu")
    # Each block on its own: a permutation of 2^128 values at distinct points is as good as independent uniform words.
    encryptor = Cipher(AES256(key), ECB()).encryptor()
    words = np.frombuffer(encryptor.update(unit_ids.tobytes()), dtype="<u8")[0::2]
    threshold = math.floor(Fraction(probability) * 2**64)
    return torch.from_numpy(words < np.uint64(threshold))
