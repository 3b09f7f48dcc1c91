"""Published and independently measured values that the accounting must give."""

import dp_accounting as dp
import pytest
from dp_accounting import pld

from understudy.privacy.accounting import (
    RELATION,
    combined_noise_multiplier,
    composed_event,
    epsilon_pld,
    epsilon_rdp,
    gaussian_event,
    histogram_event,
    sgd_event,
)
from understudy.privacy.calibration import analytic_gaussian_sigma

REPLACE_ONE = dp.NeighboringRelation.REPLACE_ONE
ADD_OR_REMOVE = dp.NeighboringRelation.ADD_OR_REMOVE_ONE

# DP-SGD, q 0.01, sigma 1, 1000 steps, delta 1e-5.
TYPICAL = sgd_event(sampling_probability=0.01, noise_multiplier=1.0, steps=1000)


@pytest.mark.parametrize(("relation", "expected"), [(RELATION, 1.828), (ADD_OR_REMOVE, 1.828), (REPLACE_ONE, 2.843)])
def test_dp_sgd_by_pld(relation, expected):
    assert epsilon_pld(TYPICAL, 1e-5, relation) == pytest.approx(expected, abs=5e-4)


def test_dp_sgd_by_rdp():
    assert epsilon_rdp(TYPICAL, 1e-5) == pytest.approx(2.101, abs=5e-4)
    assert epsilon_rdp(TYPICAL, 1e-5, ADD_OR_REMOVE) == epsilon_rdp(TYPICAL, 1e-5)


def test_replacing_by_null_is_adding_or_removing():
    for event in (TYPICAL, gaussian_event(noise_multiplier=2.0), histogram_event(sigma=3.0)):
        assert epsilon_pld(event, 1e-5) == epsilon_pld(event, 1e-5, ADD_OR_REMOVE)


def test_two_queries_on_one_batch_are_one_event():
    one = sgd_event(sampling_probability=0.01, noise_multiplier=combined_noise_multiplier(1.0, 1.0), steps=1000)
    as_if_independent = composed_event(TYPICAL, TYPICAL)
    assert epsilon_pld(one, 1e-5) == pytest.approx(4.48, abs=5e-3)
    assert epsilon_pld(as_if_independent, 1e-5) == pytest.approx(2.58, abs=5e-3)


@pytest.mark.parametrize(("z", "by_pld", "by_rdp"), [(19.3, 0.919, 0.997), (3.35, 6.50, 6.96)])
def test_popri_twenty_rounds_of_full_participation(z, by_pld, by_rdp):
    event = sgd_event(sampling_probability=1.0, noise_multiplier=z, steps=20)
    assert epsilon_pld(event, 3e-6) == pytest.approx(by_pld, abs=5e-3)
    assert epsilon_rdp(event, 3e-6) == pytest.approx(by_rdp, abs=5e-3)


def test_the_library_s_own_accountant_agrees():
    theirs = pld.PLDAccountant(RELATION).compose(TYPICAL).get_epsilon(1e-5)
    assert epsilon_pld(TYPICAL, 1e-5) == pytest.approx(theirs, rel=1e-8)


def test_discrete_gaussian_is_not_bounded_by_the_gaussian():
    # Why PLD takes its own distribution: the same sigma costs more at this delta.
    assert epsilon_pld(histogram_event(sigma=1.0), 1e-3) == pytest.approx(3.272, abs=2e-3)
    assert epsilon_pld(gaussian_event(noise_multiplier=1.0), 1e-3) == pytest.approx(3.139, abs=2e-3)


# Standard deviations of the exact condition of Balle & Wang 2018 (Theorem 8), to 12 digits by bisection with
# mpmath at 50 digits.
@pytest.mark.parametrize(
    ("epsilon", "delta", "expected"),
    [(1.0, 1e-5, 3.730631634816), (0.05, 1e-4, 44.784592751737), (8.0, 1e-6, 0.652935384358)],
)
def test_analytic_gaussian(epsilon, delta, expected):
    found = analytic_gaussian_sigma(epsilon=epsilon, delta=delta, sensitivity=1.0)
    assert 0 <= found / expected - 1 < 1e-9
