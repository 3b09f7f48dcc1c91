"""Poisson sampling whose masks are a function of a key."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch

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
        return torch.ones(n, dtype=torch.bool)
    threshold = math.floor(Fraction(probability) * 2**64)
    return torch.from_numpy(uniform_words(key, n) < np.uint64(threshold))
