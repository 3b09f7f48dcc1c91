"""Noise shares by table: the right distribution and no other; and what their sum may be charged as."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from understudy.errors import InputError
from understudy.privacy.accounting import epsilon_pld, gaussian_event
from understudy.privacy.noise import derive_key, discrete_gaussian
from understudy.privacy.secure_aggregation.accounting import (
    SMOOTHING,
    delta_correction,
    distributed_gaussian_gap,
    gap_bound,
    share_scale,
    total_variation,
)
from understudy.privacy.secure_aggregation.noise import _table, invert, sampler_gap, share_noise

KEY = derive_key(b"noise of tests", charge_id="", salt=b"", step=0, purpose="test")


def honest_multiplier(scale, *, survivors, colluding=0):
    """The noise multiplier that the honest shares of a round amount to, with 12 fractional bits."""
    return math.sqrt((survivors - colluding) * scale**2 - SMOOTHING) / 4096


def concentrated_epsilon(sensitivity, *, scale, shares):
    """The e for which the sum is e^2/2-concentrated DP in one coordinate (Kairouz et al. 2021, Theorem 1)."""
    tau = distributed_gaussian_gap(scale, shares=shares)
    ratio = sensitivity / (math.sqrt(shares) * scale)
    return min(math.sqrt(ratio**2 + 2 * tau), ratio + tau)


def probabilities(scale, half):
    """The discrete Gaussian on -half to half, in float64."""
    x = np.arange(-half, half + 1)
    weights = np.exp(-(x**2) / (2 * scale**2))
    return x, weights / weights.sum()


def fit(values, scale):
    """P-value of a chi-square test, with bins of at least 20 expected."""
    half = int(12 * scale) + 3
    x, p = probabilities(scale, half)
    expected = p * len(values)
    label = np.minimum(np.floor(np.cumsum(expected) / 20), math.floor(len(values) / 20) - 1).astype(int)
    found = np.bincount(label, weights=np.bincount(values + half, minlength=len(x)))
    wanted = np.bincount(label, weights=expected)
    kept = wanted > 0
    return stats.chisquare(found[kept], wanted[kept] * found.sum() / wanted.sum()).pvalue


@pytest.mark.parametrize("scale", [0.7, 3.3, 41.0])
def test_shares_have_the_declared_scale_and_no_other(scale):
    values = share_noise(KEY, 20_000, scale=scale)
    assert values.dtype == np.int64
    assert fit(values, scale) > 1e-4
    for factor in (2 / 3, 3 / 2):
        assert fit(share_noise(KEY, 20_000, scale=scale * factor), scale) < 1e-12
    exact = discrete_gaussian(KEY, 3000, scale=scale).numpy()
    assert stats.ks_2samp(values, exact).pvalue > 1e-4


def test_more_shares_begin_with_the_fewer_and_another_key_gives_others():
    assert share_noise(KEY, 100, scale=5.0)[:30].tolist() == share_noise(KEY, 30, scale=5.0).tolist()
    assert share_noise(KEY, 30, scale=5.0).tolist() != share_noise(KEY[::-1], 30, scale=5.0).tolist()
    assert share_noise(KEY, 4, scale=0.0).tolist() == [0] * 4


def test_the_table_is_as_close_to_the_distribution_as_claimed():
    """Against rational arithmetic: exp by its series, to 2^-200."""
    scale = 1.7
    table = _table(scale)
    half = table.half

    def power(x):
        exponent, term, total = Fraction(-x * x) / (2 * Fraction(scale) ** 2), Fraction(1), Fraction(0)
        scaled = exponent / 2**12  # squared twelve times below
        for k in range(1, 40):
            total += term
            term = term * scaled / k
        value = round(total * 2**400)
        for _ in range(12):
            value = value * value >> 400
        return value

    # All the integers: beyond 3 T nothing is left at this precision.
    weights = {x: power(abs(x)) for x in range(-3 * half, 3 * half + 1)}
    total = sum(weights.values())
    edges = [0, *table.thresholds, 2**128]
    found = {x: Fraction(edges[x + half + 1] - edges[x + half], 2**128) for x in range(-half, half + 1)}
    distance = sum(abs(found.get(x, Fraction(0)) - Fraction(w, total)) for x, w in weights.items()) / 2
    assert 0 < distance <= Fraction(sampler_gap(scale))
    assert sampler_gap(scale) < 2.0**-120


def test_ties_of_the_upper_half_are_decided_by_the_lower():
    table = _table(2.0)
    for place in (0, 1, len(table.thresholds) // 2, len(table.thresholds) - 1):
        threshold = table.thresholds[place]
        high, low = np.array([threshold >> 64], np.uint64), threshold & (2**64 - 1)
        at = invert(table, high, np.array([low], np.uint64))[0]
        assert at == sum(t <= threshold for t in table.thresholds) - table.half
        if low:
            before = invert(table, high, np.array([low - 1], np.uint64))[0]
            assert before == sum(t <= threshold - 1 for t in table.thresholds) - table.half
            assert before < at


def test_a_scale_too_large_for_a_table_is_drawn_exactly():
    scale = 50_000.0
    assert share_noise(KEY, 5, scale=scale).tolist() == discrete_gaussian(KEY, 5, scale=scale).tolist()
    assert sampler_gap(scale) == 0.0


def sum_of_shares(scale, shares, half=60):
    _, one = probabilities(scale, half)
    total = one
    for _ in range(shares - 1):
        total = np.convolve(total, one)
    return total  # on -shares*half to shares*half


def divergence(order, p, shift):
    """The Renyi divergence of p from p moved by `shift`, where both are above the floats' least."""
    first, second = p[shift:], p[: len(p) - shift]
    kept = (first > 1e-280) & (second > 1e-280)
    terms = np.exp(order * np.log(first[kept]) + (1 - order) * np.log(second[kept]))
    return math.log(math.fsum(terms)) / (order - 1)


@pytest.mark.parametrize("scale", [0.5, 0.6, 0.75, 1.0])
@pytest.mark.parametrize("shares", [2, 3, 6])
def test_tau_bounds_how_far_a_sum_is_from_one_discrete_gaussian(scale, shares):
    total = sum_of_shares(scale, shares, half=30)
    _, one = probabilities(math.sqrt(shares) * scale, 30 * shares)
    kept = (one > 1e-200) & (total > 1e-200)
    apart = np.abs(np.log(total[kept] / one[kept])).max()
    tau = distributed_gaussian_gap(scale, shares=shares)
    assert apart <= tau / 2
    if shares == 2:  # a bound that says something; later shares smooth the first one's ripple, which tau does not see
        assert apart > tau / 10


@pytest.mark.parametrize("order", [1.25, 2.0, 6.0])
@pytest.mark.parametrize(("scale", "shares", "shift"), [(0.5, 2, 1), (0.5, 5, 3), (0.8, 3, 1), (0.8, 3, 2)])
def test_the_concentrated_bound_holds_by_brute_force(order, scale, shares, shift):
    found = divergence(order, sum_of_shares(scale, shares, half=30), shift)
    bound = concentrated_epsilon(shift, scale=scale, shares=shares)
    assert found <= order / 2 * bound**2
    # A scale one and a half times as large would have a bound that this sum breaks.
    assert found > order / 2 * concentrated_epsilon(shift, scale=1.5 * scale, shares=shares) ** 2 or scale < 0.7


def delta_of(p, shift, epsilon):
    moved = np.concatenate([np.zeros(shift), p[:-shift]])
    return float(np.maximum(p - math.exp(epsilon) * moved, 0).sum())


def delta_of_gaussian(z, epsilon):
    return stats.norm.cdf(0.5 / z - epsilon * z) - math.exp(epsilon) * stats.norm.cdf(-0.5 / z - epsilon * z)


@pytest.mark.parametrize(("scale", "shares", "shift"), [(1.2, 2, 1), (1.2, 3, 2), (1.5, 4, 3), (2.5, 6, 4)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.5])
def test_the_sum_is_charged_as_a_gaussian_up_to_the_gap(scale, shares, shift, epsilon):
    smoothing = 1.0
    charged = math.sqrt(shares * scale**2 - smoothing) / shift
    gap = gap_bound(scale, shares=shares, d=1, smoothing=smoothing)
    exact = delta_of(sum_of_shares(scale, shares), shift, epsilon)
    assert exact <= delta_of_gaussian(charged, epsilon) + delta_correction(epsilon, gap=gap, rounds=1)
    assert exact > delta_of_gaussian(1.2 * charged * math.sqrt(shares * scale**2 / (shares * scale**2 - 1)), epsilon)


def test_without_smoothing_the_sum_is_not_a_gaussian():
    """Why `SMOOTHING` is there: at some epsilon the sum of shares needs more delta than the Gaussian of its sigma."""
    scale, shares, shift = 0.75, 2, 1
    total, z = sum_of_shares(scale, shares), math.sqrt(shares) * scale / shift
    excess = [delta_of(total, shift, e) - delta_of_gaussian(z, e) for e in np.linspace(0.1, 4, 40)]
    assert max(excess) > 1e-3


def test_the_rounding_of_gaussian_noise_is_as_close_as_claimed():
    """Step 2 of the accounting, by numerical integration in one dimension."""
    smoothing, variance = 0.4, 2.0
    half = 30
    grid = np.linspace(-half, half, 240_001)
    density = np.exp(-(grid**2) / (2 * (variance - smoothing)))
    density /= density.sum()
    integers = np.arange(-half, half + 1)
    total = np.zeros(len(integers))
    for part in np.array_split(np.arange(len(grid)), 40):
        kernel = np.exp(-((integers[:, None] - grid[part]) ** 2) / (2 * smoothing))
        total += (kernel / kernel.sum(0)) @ density[part]
    _, exact = probabilities(math.sqrt(variance), half)
    distance = np.abs(total - exact).sum() / 2
    first = math.exp(-2 * math.pi**2 * smoothing)
    ripple = 2 * first / (1 - first)
    assert 1e-7 < distance <= ripple / (1 - ripple)


def test_shares_are_sized_for_the_smallest_surviving_honest_set():
    scale = share_scale(1.5, bits=12, smallest_surviving=450)
    assert 450 * scale**2 == pytest.approx((1.5 * 4096) ** 2 + SMOOTHING)
    multiplier = honest_multiplier(scale, survivors=450)
    assert 1.5 <= multiplier <= 1.5 * (1 + 1e-11)
    assert honest_multiplier(scale, survivors=450, colluding=45) == pytest.approx(1.5 * math.sqrt(0.9), rel=1e-6)
    larger = share_scale(1.5, bits=12, smallest_surviving=450, colluding=45)
    assert honest_multiplier(larger, survivors=450, colluding=45) >= 1.5
    assert share_scale(0.0, bits=12, smallest_surviving=450) == 0.0


def test_the_gap_at_the_real_size_is_charged_and_next_to_nothing():
    scale = share_scale(1.0, bits=12, smallest_surviving=450)
    gap = total_variation(scale, shares=450, d=18_000)
    assert 0 < gap < 1e-25
    assert gap >= 18_000 * 450 * sampler_gap(scale)
    added = delta_correction(7.0, gap=gap, rounds=20)
    assert added == pytest.approx(20 * (1 + math.exp(7)) * gap, abs=0)
    assert epsilon_pld(gaussian_event(noise_multiplier=1.0), 3e-6 - added) == pytest.approx(
        epsilon_pld(gaussian_event(noise_multiplier=1.0), 3e-6), rel=1e-9
    )


def test_noise_too_coarse_to_be_gaussian_is_refused():
    with pytest.raises(InputError, match="more fractional bits"):
        total_variation(1.0, shares=450, d=10)
    # A run's delta is charged with no more than 1e-20 of it.
    assert total_variation(2.3, shares=450, d=10) < 1e-20
    assert 1e-20 < gap_bound(2.2, shares=450, d=10, smoothing=SMOOTHING) < 1e-18
    with pytest.raises(InputError, match="expected at most 1e-20"):
        total_variation(2.2, shares=450, d=10)
    with pytest.raises(InputError, match="scale >= 1/2"):
        total_variation(0.4, shares=450, d=10)
    assert total_variation(0.0, shares=450, d=10) == 0.0


@pytest.mark.parametrize("bad", [{"smallest_surviving": 0}, {"colluding": 450}, {"colluding": -1}])
def test_counts_out_of_range_are_refused(bad):
    with pytest.raises(InputError, match="colluding < survivors"):
        share_scale(1.0, **{"bits": 12, "smallest_surviving": 450, **bad})
    with pytest.raises(InputError, match="noise multiplier"):
        share_scale(math.nan, bits=12, smallest_surviving=450)
