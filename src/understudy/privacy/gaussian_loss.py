"""The privacy loss distribution of a Gaussian query on a Poisson sample, all losses at once, and its composition.

dp_accounting looks for the point of each loss, and for the epsilon of a delta, in Python loops over the tens of
thousands of losses of a grid, and takes forty logarithms of each where it truncates a composition. Here the same
formulas run over whole arrays; where a query's losses end is the library's. Sources: Doroshenko et al. 2022, Algorithm
1 ("connect the dots"); Koskela et al. 2020 (composition by Fourier transform).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from numpy.typing import NDArray
from scipy import fft

Floats = NDArray[np.float64]

_TRUNCATED = 1e-15  # mass at both ends of a composition that is counted as an infinite loss, as in the library
_ORDERS = 20  # of moments on either side, over the number of losses: exp(20) is no large number yet


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


def self_composed(one: Any, count: int) -> Any:
    """The `PrivacyLossDistribution` of `count` queries, each of the distribution of `gaussian_pld`.

    It is `one.self_compose(count)` but for rounding.
    """
    removed = _pmf_of(one._pmf_remove, count)
    if one._symmetric:
        return privacy_loss_distribution.PrivacyLossDistribution(removed)
    return privacy_loss_distribution.PrivacyLossDistribution(removed, _pmf_of(one._pmf_add, count))


def _pmf_of(one: pld_pmf.DensePLDPmf, count: int) -> pld_pmf.DensePLDPmf:
    mass = np.asarray(one._probs)
    lower, upper = composed_bounds(mass, count)
    size = fft.next_fast_len(max(upper - lower + 1, mass.size), real=True)
    # It wraps around modulo its size, so the losses that are kept may begin in its middle.
    wrapped = fft.irfft(fft.rfft(mass, size) ** count, size)
    infinite = _TRUNCATED - math.expm1(count * math.log1p(-one._infinity_mass))
    kept = np.roll(wrapped, -lower)[: upper - lower + 1]
    return pld_pmf.DensePLDPmf(one._discretization, one._lower_loss * count + lower, kept, infinite, True)


def composed_bounds(mass: Floats, count: int) -> tuple[int, int]:
    """Outside of which places the sum of `count` draws of a place has mass of at most `_TRUNCATED`.

    Args:
        mass: `(places,)` that of each place, from 0.
        count: draws.

    Returns:
        The first and the last place: the least by Chernoff's bound at `_ORDERS` moments of either sign.
    """
    size = mass.size
    lower, upper, allowed = 0, (size - 1) * count, math.log(2 / _TRUNCATED)
    for sign in (-1, 1):
        step = np.exp(sign * np.arange(size) / size)
        weights = np.ones(size)
        for order in range(1, _ORDERS + 1):
            weights *= step
            moment = float(weights @ mass)
            if moment <= 0:  # nothing is left of it but the infinite loss
                break
            reached = (count * math.log(moment) + allowed) * size / order
            if sign > 0:
                upper = min(upper, math.ceil(reached))
            else:
                lower = max(lower, math.floor(-reached))
    return lower, upper


def epsilon_for_delta(whole: Any, delta: float) -> float:
    """The least epsilon >= 0 with which a `PrivacyLossDistribution` is (epsilon, delta)-DP; infinity for none."""
    removed, added = whole._pmf_remove, whole._pmf_add
    return max(_epsilon_of(pmf.to_dense_pmf(), delta) for pmf in ((removed,) if whole._symmetric else (removed, added)))


def _epsilon_of(pmf: pld_pmf.DensePLDPmf, delta: float) -> float:
    if pmf._infinity_mass > delta:
        return math.inf
    # Losses of 0 and below are those of an epsilon below 0.
    mass = np.asarray(pmf._probs)[max(0, 1 - pmf._lower_loss) :][::-1]
    losses = (pmf._lower_loss + np.arange(pmf.size))[pmf.size - mass.size :][::-1] * pmf._discretization
    # Of the losses down to each: their mass, and that of the same outcomes under the neighbour.
    upper = np.cumsum(np.append(pmf._infinity_mass, mass))
    lower = np.cumsum(np.append(0.0, mass * np.exp(-losses)))
    beyond_floats = np.flatnonzero((upper[1:] >= delta) & (lower[1:] == 0))
    if beyond_floats.size:
        return float(losses[beyond_floats[0]])
    # The hockey stick divergence falls in epsilon; it is linear in exp(epsilon) between two losses.
    with np.errstate(divide="ignore", invalid="ignore"):
        reached = np.log((upper - delta) / lower)
    over = np.flatnonzero((upper[:-1] > delta) & (lower[:-1] > 0) & (reached[:-1] >= losses))
    end = int(over[0]) if over.size else mass.size
    return 0.0 if upper[end] <= lower[end] + delta else float(reached[end])


def _rounded(adjacency: AdjacencyType, noise_multiplier: float, sampling_probability: float, interval: float) -> Any:
    """Its mass at the multiples of `interval`, for one of the two directions."""
    loss = GaussianPrivacyLoss(noise_multiplier, sampling_prob=sampling_probability, adjacency_type=adjacency)
    bounds = loss.connect_dots_bounds()
    lower, upper = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
    deltas = np.minimum.accumulate(hockey_stick(loss, np.arange(lower, upper + 1) * interval))
    falls = -np.diff(deltas)
    mass = np.append(1 - deltas[0], falls / -math.expm1(-interval)) - np.append(falls / math.expm1(interval), 0.0)
    return pld_pmf.DensePLDPmf(interval, lower, np.maximum(0, mass), float(deltas[-1]), True)


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
