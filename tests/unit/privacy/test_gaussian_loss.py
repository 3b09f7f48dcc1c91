"""Losses of a sampled Gaussian query, all epsilons at once, against dp_accounting's own and against integration."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from understudy.privacy.gaussian_loss import (
    composed_bounds,
    epsilon_for_delta,
    gaussian_pld,
    hockey_stick,
    self_composed,
)

CASES = [(0.4, 0.3), (0.7, 0.999), (1.0, 1.0), (1.3, 0.01), (5.0, 1e-4), (40.0, 0.5)]


@pytest.mark.parametrize(("noise_multiplier", "q"), CASES)
def test_it_gives_what_the_library_gives(noise_multiplier, q):
    interval = 1e-3
    ours = gaussian_pld(noise_multiplier=noise_multiplier, sampling_probability=q, interval=interval)
    theirs = library.from_gaussian_mechanism(
        noise_multiplier, value_discretization_interval=interval, sampling_prob=q, use_connect_dots=True
    )
    for count in (1, 7, 300):
        composed = self_composed(ours, count), theirs.self_compose(count)
        for delta in (1e-3, 1e-8):
            found, wanted = epsilon_for_delta(composed[0], delta), composed[1].get_epsilon_for_delta(delta)
            # Both transform by FFT, whose rounding is some 1e-16 at each of up to a million losses.
            assert found == pytest.approx(wanted, rel=1e-8 if count < 300 else 1e-6, abs=1e-12), (count, delta)


@pytest.mark.parametrize("adjacency", [AdjacencyType.ADD, AdjacencyType.REMOVE])
@pytest.mark.parametrize(("noise_multiplier", "q"), CASES)
def test_deltas_of_every_epsilon_are_the_library_s(noise_multiplier, q, adjacency):
    loss = GaussianPrivacyLoss(noise_multiplier, sampling_prob=q, adjacency_type=adjacency)
    # Beyond what any point reaches, where the library branches, and where exp overflows.
    epsilons = np.concatenate([np.linspace(-9, 9, 301), [0.0, math.log1p(-min(q, 0.5)), 800.0, -800.0]])
    wanted = loss.get_delta_for_epsilon(epsilons)
    np.testing.assert_allclose(hockey_stick(loss, epsilons), wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("epsilon", [-0.05, 0.0, 0.4, 2.0])
@pytest.mark.parametrize("removing", [True, False])
def test_a_delta_is_the_integral_of_what_one_density_exceeds_the_other_by(epsilon, removing):
    noise_multiplier, q = 0.8, 0.2
    adjacency = AdjacencyType.REMOVE if removing else AdjacencyType.ADD
    loss = GaussianPrivacyLoss(noise_multiplier, sampling_prob=q, adjacency_type=adjacency)

    def with_unit(x):
        return q * mpmath.npdf(x, 1, noise_multiplier) + (1 - q) * mpmath.npdf(x, 0, noise_multiplier)

    def excess(x):
        pair = with_unit(x), mpmath.npdf(x, 0, noise_multiplier)
        first, second = pair if removing else pair[::-1]
        return max(first - mpmath.exp(epsilon) * second, 0)

    integral = mpmath.quad(excess, [mpmath.mpf(place) / 4 for place in range(-40, 49)])
    assert hockey_stick(loss, np.array([epsilon]))[0] == pytest.approx(float(integral), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("count", [1, 7, 300])
def test_a_composition_is_cut_where_the_library_cuts_it(count):
    mass = np.random.default_rng(0).dirichlet(np.linspace(0.1, 1, 4000))
    wanted = common.compute_self_convolve_bounds(mass, count, 1e-15)
    np.testing.assert_allclose(composed_bounds(mass, count), wanted, rtol=0, atol=1)


def test_what_is_cut_off_a_composition_is_less_than_is_added_to_the_infinite_loss():
    mass = np.random.default_rng(1).dirichlet(np.ones(60))
    whole = np.ones(1)
    for _ in range(40):
        whole = np.convolve(whole, mass)
    lower, upper = composed_bounds(mass, 40)
    assert 0 < lower < upper < 59 * 40
    assert whole[:lower].sum() + whole[upper + 1 :].sum() < 1e-15


@pytest.mark.parametrize("delta", [0.0, 1e-16, 1e-9, 1e-3, 0.3, 0.999])
@pytest.mark.parametrize("mass", [[0.2, 0.5, 0.3 - 1e-12], [0.0, 0.0, 1.0], [0.6, 0.0, 0.0]])
@pytest.mark.parametrize("lowest", [-700_000, -3, -2, -1, 0, 2, 800_000])
def test_the_epsilon_of_a_delta_is_the_library_s(lowest, mass, delta):
    pmf = DensePLDPmf(1e-3, lowest, np.array(mass), 1 - sum(mass), True)
    one = library.PrivacyLossDistribution(pmf)
    wanted = one.get_epsilon_for_delta(delta)
    assert epsilon_for_delta(one, delta) == pytest.approx(wanted, rel=1e-12, abs=1e-15)


def test_an_infinite_loss_alone_stays_one():
    assert composed_bounds(np.zeros(5), 3) == (0, 12)
    nothing_else = library.PrivacyLossDistribution(DensePLDPmf(1e-3, -2, np.zeros(5), 1.0, True))
    assert epsilon_for_delta(nothing_else, 0.999) == math.inf


def test_losses_so_low_that_the_library_overflows_need_no_epsilon():
    one = library.PrivacyLossDistribution(DensePLDPmf(1e-3, -800_000, np.array([0.5, 0.5]), 0.0, True))
    assert epsilon_for_delta(one, 1e-9) == 0.0
