"""Accounting of sums released by tree aggregation (DP-FTRL), and its calibration.

Paper: Kairouz et al. 2021, "Practical and Private (Deep) Learning without Sampling or Shuffling" (arXiv 2103.00039),
section 4 and appendix D. A tree over R rounds releases the sum of every complete binary block of rounds with Gaussian
noise. A unit that takes part in one of the rounds is in at most floor(log2 R) + 1 blocks, so one tree costs what that
many Gaussian queries cost; E epochs with a fresh tree each cost E times that. No sampling is involved, so nothing has
to stay hidden.

*Headline by Renyi DP*: the privacy loss distribution of dp_accounting does not know this event, so `epsilon_pld`
refuses it and the RDP figure is the one to charge and print, with these words beside it. `gaussian_bound` is the plain
composition that dominates the tree (each block shifts by at most C, whatever came out before); its PLD figure may be
shown as a cross-check, and is lower.

Relation: replace_special, under which alone dp_accounting takes the event.
"""

from __future__ import annotations

import math

import dp_accounting as dp

from understudy.errors import InputError
from understudy.privacy.accounting import CALIBRATION_TOLERANCE, epsilon_rdp
from understudy.privacy.events import combined_noise_multiplier
from understudy.privacy.search import solve_decreasing


def tree_depth(rounds: int) -> int:
    """Blocks of a tree over `rounds` rounds that one round can be in: floor(log2 rounds) + 1.

    >>> [tree_depth(r) for r in (1, 2, 3, 4, 7, 8)]
    [1, 2, 2, 3, 3, 4]

    Raises:
        InputError: when there is no round.
    """
    if rounds < 1:
        raise InputError(f"expected rounds >= 1 in a tree, found {rounds}")
    return rounds.bit_length()


def tree_event(*, noise_multiplier: float, rounds: int, epochs: int) -> dp.DpEvent:
    """The event of `epochs` trees over `rounds` rounds each, of which a unit is in one round per tree.

    Args:
        noise_multiplier: Noise of every block over the clip norm of one unit.
        rounds: Per epoch, that is per tree.
        epochs: Trees.

    Raises:
        InputError: when a value is outside its range.
    """
    tree_depth(rounds)
    if epochs < 1:
        raise InputError(f"expected epochs >= 1, found {epochs}")
    z = combined_noise_multiplier(noise_multiplier)
    return dp.SelfComposedDpEvent(dp.SingleEpochTreeAggregationDpEvent(z, int(rounds)), int(epochs))


def gaussian_bound(*, noise_multiplier: float, rounds: int, epochs: int) -> dp.DpEvent:
    """Gaussian queries that together cost at least what the trees do, and that PLD knows: a cross-check only."""
    z = combined_noise_multiplier(noise_multiplier)
    return dp.SelfComposedDpEvent(dp.GaussianDpEvent(z), tree_depth(rounds) * epochs)


def calibrate_tree_noise(*, rounds: int, epochs: int, epsilon: float, delta: float) -> float:
    """A noise multiplier whose trees have RDP epsilon in [0.999 epsilon, epsilon] at `delta`.

    Args:
        rounds: Per tree.
        epochs: Trees.
        epsilon: Target; infinity asks for no noise and gives 0.0.
        delta: Target, in (0, 1).

    Raises:
        InputError: when a value is out of range, or no amount of noise reaches epsilon.
    """
    if math.isnan(epsilon) or epsilon <= 0:
        raise InputError(f"expected epsilon > 0, found epsilon={epsilon}")
    tree_event(noise_multiplier=1.0, rounds=rounds, epochs=epochs)
    if math.isinf(epsilon):
        return 0.0
    noise_multiplier, _ = solve_decreasing(
        lambda z: epsilon_rdp(tree_event(noise_multiplier=z, rounds=rounds, epochs=epochs), delta),
        low=epsilon * (1 - CALIBRATION_TOLERANCE),
        high=epsilon,
        start=max(1.0, 1.0 / epsilon),
    )
    return noise_multiplier
