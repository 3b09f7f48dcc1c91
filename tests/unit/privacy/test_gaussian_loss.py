"""Losses of a sampled Gaussian query, all epsilons at once, against dp_accounting's own and against integration."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from understudy.privacy.gaussian_loss import gaussian_pld, hockey_stick

CASES = [(0.4, 0.3), (0.7, 0.999), (1.0, 1.0), (1.3, 0.01), (5.0, 1e-4), (40.0, 0.5)]


@pytest.mark.parametrize(("noise_multiplier", "q"), CASES)
def test_it_gives_what_the_library_gives(noise_multiplier, q):
    interval = 1e-3
    ours = gaussian_pld(noise_multiplier=noise_multiplier, sampling_probability=q, interval=interval)
    theirs = library.from_gaussian_mechanism(
        noise_multiplier, value_discretization_interval=interval, sampling_prob=q, use_connect_dots=True
    )
    for count in (1, 7):
        composed = [one.self_compose(count) for one in (ours, theirs)]
        for delta in (1e-3, 1e-8):
            found, wanted = (one.get_epsilon_for_delta(delta) for one in composed)
            assert found == pytest.approx(wanted, rel=1e-8, abs=1e-12), (count, delta)


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
