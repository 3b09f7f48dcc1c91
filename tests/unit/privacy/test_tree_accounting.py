"""The accounting of tree aggregation: dp_accounting's own figure, its closed form, and a calibration that meets it."""

import dp_accounting as dp
import pytest
from dp_accounting import rdp

from understudy.errors import InputError, UnderstudyError
from understudy.privacy.accounting import (
    analytic_gaussian_sigma,
    epsilon_pld,
    epsilon_rdp,
    event_from_json,
    event_to_json,
    gaussian_event,
    sgd_event,
    without_amplification,
)
from understudy.privacy.tree_accounting import calibrate_tree_noise, gaussian_bound, tree_depth, tree_event


def test_the_event_costs_what_dp_accounting_says():
    event = tree_event(noise_multiplier=4.0, rounds=10, epochs=3)
    direct = dp.SelfComposedDpEvent(dp.SingleEpochTreeAggregationDpEvent(4.0, 10), 3)
    accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL).compose(direct)
    assert epsilon_rdp(event, 1e-5) == accountant.get_epsilon(1e-5)


@pytest.mark.parametrize("rounds", [1, 2, 3, 8, 20])
def test_its_renyi_curve_is_that_of_so_many_gaussian_queries(rounds):
    # A unit is in floor(log2 rounds) + 1 blocks of each of 2 trees, each a Gaussian query.
    queries = 2 * tree_depth(rounds)
    event = tree_event(noise_multiplier=5.0, rounds=rounds, epochs=2)
    assert epsilon_rdp(event, 1e-5) == pytest.approx(
        epsilon_rdp(gaussian_event(noise_multiplier=5.0 / queries**0.5), 1e-5)
    )


def test_pld_does_not_know_it_and_the_dominating_queries_cost_less_than_its_rdp_figure():
    event = tree_event(noise_multiplier=5.0, rounds=8, epochs=2)
    with pytest.raises(UnderstudyError, match="PLD accounting does not know this event"):
        epsilon_pld(event, 1e-5)
    bound = gaussian_bound(noise_multiplier=5.0, rounds=8, epochs=2)
    # 8 queries of noise 5 are one of noise 5 / sqrt 8, whose epsilon has a closed form.
    found = epsilon_pld(bound, 1e-5)
    assert analytic_gaussian_sigma(epsilon=found, delta=1e-5, sensitivity=8**0.5) == pytest.approx(5.0, rel=1e-3)
    assert found < epsilon_rdp(event, 1e-5)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 7.0])
def test_calibrated_noise_meets_the_target(epsilon):
    z = calibrate_tree_noise(rounds=12, epochs=2, epsilon=epsilon, delta=3e-6)
    found = epsilon_rdp(tree_event(noise_multiplier=z, rounds=12, epochs=2), 3e-6)
    assert 0.999 * epsilon <= found <= epsilon
    assert epsilon_rdp(tree_event(noise_multiplier=z * 0.99, rounds=12, epochs=2), 3e-6) > epsilon


def test_no_privacy_asked_gives_no_noise():
    assert calibrate_tree_noise(rounds=4, epochs=1, epsilon=float("inf"), delta=1e-5) == 0.0
    assert epsilon_rdp(tree_event(noise_multiplier=0.0, rounds=4, epochs=1), 1e-5) == float("inf")


def test_one_round_per_epoch_is_the_composition_of_all_client_rounds():
    tree = tree_event(noise_multiplier=19.3, rounds=1, epochs=20)
    rounds = sgd_event(sampling_probability=1.0, noise_multiplier=19.3, steps=20)
    assert epsilon_rdp(tree, 3e-6) == pytest.approx(epsilon_rdp(rounds, 3e-6))


def test_the_event_can_be_charged_and_has_nothing_to_unamplify():
    event = tree_event(noise_multiplier=2.5, rounds=6, epochs=4)
    assert event_from_json(event_to_json(event)) == event
    assert without_amplification(event) == event


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"epochs": 0}, {"epsilon": 0.0}, {"delta": 0.0}])
def test_values_out_of_range_are_refused(wrong):
    with pytest.raises(InputError, match="expected"):
        calibrate_tree_noise(**{"rounds": 4, "epochs": 1, "epsilon": 1.0, "delta": 1e-5, **wrong})
