"""What the sum of the clients' noise shares is worth: a Gaussian event, up to a total variation that is charged.

Source: Kairouz, Liu & Steinke 2021 ("The Distributed Discrete Gaussian Mechanism"). A sum of discrete Gaussians is not
discrete Gaussian, and a discrete Gaussian is not dominated by the Gaussian of its sigma, so that neither may be charged
as a Gaussian event as it is. Both are close enough to something that may:

1. *Sum to one*. By Poisson summation, adding a share to the sum of k others gives a discrete Gaussian up to a factor
   within (1 - e)/(1 + e) and its inverse, e = 2 sum_m exp(-2 pi^2 s^2 m^2) at s^2 = share_scale^2 k/(k+1). Over all
   shares the logarithm of the ratio is at most tau/2, tau = 10 sum_k exp(-2 pi^2 share_scale^2 k/(k+1)): the paper's
   tau. In d coordinates, total variation at most d tau/2 (for tau <= 1).
2. *Discrete to continuous*. Add N(0, V - S) to the exact integers and round each coordinate at random by a discrete
   Gaussian of variance parameter S about it. That is post-processing of the Gaussian mechanism, and by the same
   summation within e/(1 - e), e = 2 sum_m exp(-2 pi^2 S m^2), of the discrete Gaussian with parameter V. With S = 4,
   e is 1e-34. Deviation: the paper states concentrated DP only; this step admits tight accounting (PLD) and sampling.
3. The sampler of the shares adds its own gap per value.

So the mechanism is within `total_variation` of a post-processing of Gaussian noise with multiplier
sqrt(V - 4) / integer sensitivity, and `delta_correction` says what that adds to delta. Shares are sized so that the
multiplier is the one asked for. More shares than counted are post-processing too.
"""

from __future__ import annotations

import math
from typing import Final

from understudy.errors import InputError
from understudy.privacy.secure_aggregation.fixed_point import integer_sensitivity
from understudy.privacy.secure_aggregation.noise import sampler_gap

SMOOTHING: Final = 4.0  # S, in squared steps
NEGLIGIBLE: Final = 1e-20


def share_scale(noise_multiplier: float, *, bits: int, smallest_surviving: int, colluding: int = 0) -> float:
    """The discrete Gaussian parameter of one client's share.

    Among `smallest_surviving` answers, `colluding` are of clients who take their own share off again; the others'
    shares together have variance (noise_multiplier 2^bits)^2 + `SMOOTHING`.

    Args:
        noise_multiplier: what the sum is charged as; 0 gives no noise.
        bits: fractional bits.
        smallest_surviving: the round aborts with fewer answers.
        colluding: clients that work with the server, below smallest_surviving.

    Raises:
        InputError: when a value is out of range.
    """
    _check_counts(smallest_surviving, colluding)
    if not 0 <= noise_multiplier < math.inf:
        raise InputError(f"expected a finite noise multiplier >= 0, found {noise_multiplier}")
    if noise_multiplier == 0:
        return 0.0
    variance = (noise_multiplier * integer_sensitivity(1, bits)) ** 2 + SMOOTHING
    # Upwards by more than the rounding of the two operations.
    return math.sqrt(variance / (smallest_surviving - colluding)) * (1 + 1e-12)


def distributed_gaussian_gap(scale: float, *, shares: int) -> float:
    """The tau of Kairouz et al. 2021: 10 sum_{k=1}^{shares-1} exp(-2 pi^2 scale^2 k/(k+1)).

    The log-probabilities of the sum of `shares` discrete Gaussians of parameter `scale` >= 1/2 and of one with
    parameter sqrt(shares) scale differ by at most tau/2 anywhere.

    >>> 0 < distributed_gaussian_gap(3.0, shares=450) < 1e-30
    True

    Raises:
        InputError: when the scale is below 1/2, where the bound does not hold.
    """
    if scale < 0.5 or shares < 1:
        raise InputError(f"expected noise shares of scale >= 1/2 and at least one, found {scale=}, {shares=}")
    return 10 * math.fsum(math.exp(-2 * (math.pi * scale) ** 2 * k / (k + 1)) for k in range(1, shares))


def total_variation(scale: float, *, shares: int, d: int) -> float:
    """How far one release is from a post-processing of the Gaussian mechanism, at most.

    Args:
        scale: of one share; 0 has no noise and no gap.
        shares: honest shares counted, `smallest_surviving - colluding`.
        d: coordinates.

    Raises:
        InputError: when it is not below `NEGLIGIBLE`: then the sum may not be charged as Gaussian.
    """
    if scale == 0:
        return 0.0
    gap = gap_bound(scale, shares=shares, d=d, smoothing=SMOOTHING) + d * shares * sampler_gap(scale)
    if gap > NEGLIGIBLE:
        raise InputError(
            f"noise shares of scale {scale:.3g} steps are too coarse: their sum is {gap:.1g} from Gaussian, expected "
            f"at most {NEGLIGIBLE:g}; take more fractional bits, more noise or a smaller surviving set"
        )
    return gap


def gap_bound(scale: float, *, shares: int, d: int, smoothing: float) -> float:
    """Steps 1 and 2 of the module: total variation between the exact sum of shares and rounded Gaussian noise."""
    tau = distributed_gaussian_gap(scale, shares=shares)
    # sum_m exp(-a m^2) <= exp(-a) / (1 - exp(-a)), since m^2 >= m.
    first = math.exp(-2 * math.pi**2 * smoothing)
    ripple = 2 * first / (1 - first)
    return d * (tau / 2 + ripple / (1 - ripple)) if max(tau, 2 * ripple) <= 1 else 1.0


def delta_correction(epsilon: float, *, gap: float, rounds: int) -> float:
    """What `rounds` releases, each within `gap` of what is charged, add to delta at epsilon: rounds (1 + e^eps) gap.

    Each round's mechanism may be exchanged for the charged one at the cost of `gap` in total variation, on either of
    the two neighbours. Infinite where e^eps is beyond the largest float.
    """
    try:
        return rounds * (1 + math.exp(epsilon)) * gap
    except OverflowError:
        return math.inf


def _check_counts(survivors: int, colluding: int) -> None:
    if not 0 <= colluding < survivors:
        raise InputError(f"expected 0 <= colluding < survivors, found {colluding=}, {survivors=}")
