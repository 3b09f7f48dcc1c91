"""The privacy loss distribution of a Gaussian query on a Poisson sample, all losses at once.

dp_accounting looks for the point of each loss in a Python loop over the tens of thousands of losses of a grid, and that
was most of the time of a calibration. Here its formulas run over the whole grid; the rest (bounds, mass at each loss,
composition) is the library's. Source: Doroshenko et al. 2022, Algorithm 1 ("connect the dots").
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def gaussian_pld(*, noise_multiplier: float, sampling_probability: float, interval: float) -> Any:
    """The distribution that `from_gaussian_mechanism` of dp_accounting gives, rounded pessimistically like it.

    Args:
        noise_multiplier: standard deviation over sensitivity, > 0.
        sampling_probability: of each unit, in (0, 1].
        interval: losses are rounded to multiples of it.

    Returns:
        A `PrivacyLossDistribution` under replace by null, which is that of add/remove.
    """
    removed = _rounded(AdjacencyType.REMOVE, noise_multiplier, sampling_probability, interval)
    if sampling_probability == 1:
        return privacy_loss_distribution.PrivacyLossDistribution(removed)
    added = _rounded(AdjacencyType.ADD, noise_multiplier, sampling_probability, interval)
    return privacy_loss_distribution.PrivacyLossDistribution(removed, added)


def _rounded(adjacency: AdjacencyType, noise_multiplier: float, sampling_probability: float, interval: float) -> Any:
    """Its mass at the multiples of `interval`, for one of the two directions."""
    loss = GaussianPrivacyLoss(noise_multiplier, sampling_prob=sampling_probability, adjacency_type=adjacency)
    bounds = loss.connect_dots_bounds()
    lower, upper = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
    deltas = hockey_stick(loss, np.arange(lower, upper + 1) * interval)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, lower, upper, deltas)


def hockey_stick(loss: GaussianPrivacyLoss, epsilons: Floats) -> Floats:
    """The least delta with which the query is (epsilon, delta)-DP, for each epsilon.

    Args:
        loss: of removing or adding a unit, with sensitivity 1.
        epsilons: `(losses,)`, of any sign.

    Returns:
        `(losses,)`, each in [0, 1].
    """
    removing, q = loss.adjacency_type is AdjacencyType.REMOVE, loss.sampling_prob
    # Removing a unit has no loss below log(1 - q), adding one none above -log(1 - q): there delta is at an end.
    signed = epsilons if removing else -epsilons
    reached = np.full(epsilons.shape, True) if q == 1 else signed > math.log1p(-q)
    deltas = np.zeros_like(epsilons)
    if removing:
        deltas[~reached] = -np.expm1(epsilons[~reached])
    # Where the densities, one of them moved by the sensitivity of 1, give that loss.
    distance = 0.5 + _without_sampling(signed[reached], q) * loss.standard_deviation**2
    points = -distance if removing else distance
    deltas[reached] = loss.mu_upper_cdf(points) - np.exp(epsilons[reached] + loss.mu_lower_log_cdf(points))
    return np.clip(deltas, 0.0, 1.0)


def _without_sampling(losses: Floats, q: float) -> Floats:
    """log(1 + (exp(loss) - 1) / q), the loss if nothing were sampled, for losses above log(1 - q)."""
    if q == 1:
        return losses
    # As a difference of logarithms, for exp(loss) overflows; below what floats tell from log(1 - q) it is -inf.
    scaled, taken = losses - math.log(q), math.log(1 / q - 1)
    below = np.where(scaled > taken, taken - scaled, -1.0)
    return np.where(scaled > taken, scaled + np.log1p(-np.exp(below)), -np.inf)
