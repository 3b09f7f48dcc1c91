"""A lower bound on epsilon from one run with canaries that coins have put in or left out.

Paper: Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run" (arXiv 2305.08846), Theorem 5.2.
Each of m canaries is a unit of its own and is put in by a fair coin of its own. Whoever sees what the run released
guesses r of the coins and leaves the others. If the run is (epsilon, delta)-DP, then the number of right guesses is
at least v with probability of at most

    P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i,   W ~ Binomial(r, e^epsilon / (1 + e^epsilon)).

The bound is the largest epsilon for which that probability is below 1 - confidence.

*Deviation*: how many coins to guess is not known beforehand. The bound is taken at several shares of the canaries,
fixed in `GUESSED`, each at a part of the error that is allowed, and the best counts.

*A lower bound on what leaks, not a privacy proof*: another attack on the same run may find more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Shares of the canaries that are guessed: those of the highest and of the lowest scores, as many of each.
GUESSED = (1.0, 0.5, 0.2)
# Beyond, a bound says nothing more to anybody.
_LARGEST = 50.0


@dataclass(frozen=True)
class Bound:
    """What right guesses say about epsilon.

    Attributes:
        epsilon: lower bound at the stated confidence; 0 is what guessing at random reaches.
        guesses: coins that were guessed where the bound is the best.
        right: how many of these guesses are right.
    """

    epsilon: float
    guesses: int
    right: int


def chance_of(right: int, guesses: int, *, epsilon: float, delta: float, canaries: int) -> float:
    """The probability, at most, that an (epsilon, delta)-DP run lets anybody guess so many coins.

    Args:
        right: right guesses, from 0 to `guesses`.
        guesses: coins guessed, from 0 to `canaries`.
        epsilon: of the run.
        delta: of the run.
        canaries: coins tossed.

    >>> chance_of(3, 3, epsilon=0.0, delta=0.0, canaries=5)
    0.125
    """
    from scipy.stats import binom

    if not 0 <= right <= guesses <= canaries:
        raise ValueError(f"expected 0 <= right <= guesses <= canaries, found {right}, {guesses}, {canaries}")
    truth = 1 / (1 + math.exp(-epsilon))
    reached = float(binom.sf(right - 1, guesses, truth))
    # P[right > W >= right - i] for i = 1, 2, ..., right.
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, truth))
    steepest = float((below / np.arange(1, right + 1)).max(initial=0.0))
    return min(1.0, reached + 2 * canaries * delta * steepest)


def least_epsilon(right: int, guesses: int, *, delta: float, canaries: int, confidence: float) -> float:
    """The largest epsilon that so many right guesses refute; 0 where they refute none.

    >>> round(least_epsilon(20, 20, delta=0.0, canaries=20, confidence=0.95), 2)  # ln(p / (1 - p)), p = 0.05^(1 / 20)
    1.82
    """

    def refuted(epsilon: float) -> bool:
        return chance_of(right, guesses, epsilon=epsilon, delta=delta, canaries=canaries) < 1 - confidence

    low, high = 0.0, _LARGEST
    if not refuted(low):
        return 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def bound(scores: Floats, included: Bools, *, delta: float, confidence: float = 0.95) -> Bound:
    """The best lower bound on epsilon over the shares of `GUESSED`.

    Args:
        scores: (m,) what the attack makes of each canary; higher looks more like one that was put in. The coins must
            not have had a part in them other than through the run.
        included: (m,) the coins.
        delta: of the run.
        confidence: that the bound holds.

    Raises:
        ValueError: there are fewer than 2 canaries, or a score is not finite.
    """
    if scores.size < 2 or scores.shape != included.shape or not np.isfinite(scores).all():
        raise ValueError(f"expected finite scores of at least 2 canaries, found {scores.size}")
    each = 1 - (1 - confidence) / len(GUESSED)
    found = []
    for guesses in sizes_of(scores.size):
        right = right_guesses(scores, included, guesses)
        epsilon = least_epsilon(right, guesses, delta=delta, canaries=scores.size, confidence=each)
        found.append(Bound(epsilon, guesses, right))
    return max(found, key=lambda one: one.epsilon)


def sizes_of(canaries: int) -> list[int]:
    """How many coins are guessed at each of the shares; even, at least 2."""
    return [max(2, 2 * int(share * canaries / 2)) for share in GUESSED]


def right_guesses(scores: Floats, included: Bools, guesses: int) -> int:
    """Right guesses where the highest scores are called put in and the lowest left out; of equals, by their place."""
    order = np.argsort(scores, kind="stable")
    half = guesses // 2
    return int((~included[order[:half]]).sum() + included[order[len(order) - half :]].sum())


def detectable_epsilon(canaries: int, *, delta: float, confidence: float = 0.95, power: float = 0.8) -> float:
    """The smallest epsilon that the best attack on so many canaries would tell from 0, in `power` of all audits.

    No attack on an epsilon-DP run guesses a coin better than with probability e^epsilon / (1 + e^epsilon), and one that
    does so for each exists: randomised response. An audit that finds nothing says nothing about smaller epsilons.

    >>> detectable_epsilon(20, delta=0.0) > detectable_epsilon(200, delta=0.0) > 0
    True
    """
    from scipy.stats import binom

    each, guesses = 1 - (1 - confidence) / len(GUESSED), sizes_of(canaries)[0]

    def is_told(right: int) -> bool:
        return chance_of(right, guesses, epsilon=0.0, delta=delta, canaries=canaries) < 1 - each

    needed = next((right for right in range(guesses + 1) if is_told(right)), None)
    if needed is None:
        return math.inf
    return _least(lambda epsilon: float(binom.sf(needed - 1, guesses, 1 / (1 + math.exp(-epsilon)))) >= power)


def _least(reached: Callable[[float], bool]) -> float:
    """The smallest epsilon from which on something is reached; infinity where nothing reaches it."""
    low, high = 0.0, _LARGEST
    if not reached(high):
        return math.inf
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
