"""Accounting: what PLD and RDP accept and say."""

import logging
import math

import dp_accounting as dp
import pytest
from accounted_events import one_shot, run_with_histogram, short_run
from hypothesis import given
from hypothesis import strategies as st

from understudy.errors import InputError, UnderstudyError
from understudy.privacy import accounting
from understudy.privacy.accounting import (
    composed_event,
    default_delta,
    epsilon_pld,
    epsilon_rdp,
    histogram_event,
    renyi_curve,
    sgd_event,
    without_amplification,
)


def test_an_answer_is_kept_for_exactly_what_was_asked(monkeypatch):
    """Another event, delta, relation, interval or accountant is another question."""
    monkeypatch.setattr(accounting, "_ANSWERS", {})
    removed = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    questions = [
        lambda: epsilon_pld(one_shot(2.0), 1e-5),
        lambda: epsilon_pld(one_shot(2.0000000000000004), 1e-5),
        lambda: epsilon_pld(one_shot(2.0), 2e-5),
        lambda: epsilon_pld(one_shot(2.0), 1e-5, removed),
        lambda: epsilon_pld(one_shot(2.0), 1e-5, interval=1e-2),
        lambda: epsilon_rdp(one_shot(2.0), 1e-5),
        lambda: epsilon_pld(composed_event(one_shot(2.0), one_shot(3.0)), 1e-5),
    ]
    first = [ask() for ask in questions]
    assert len(accounting._ANSWERS) == len(questions)
    assert [ask() for ask in questions] == first
    assert len(accounting._ANSWERS) == len(questions)


def test_rdp_bounds_pld_from_above():
    for event in (short_run(0.8), run_with_histogram(2.0), one_shot(3.0)):
        assert epsilon_pld(event, 1e-5) < epsilon_rdp(event, 1e-5)


def test_histogram_composes_with_training_in_one_event():
    both = epsilon_pld(run_with_histogram(1.5), 1e-4)
    alone = [epsilon_pld(e, 1e-4) for e in (histogram_event(sigma=20.0), short_run(1.5))]
    assert max(alone) < both < sum(alone)


def test_counts_that_are_asked_more_than_once_are_paid_for_each_time():
    once = histogram_event(sigma=4.0)
    three = epsilon_pld(dp.SelfComposedDpEvent(once, 3), 1e-5)
    assert three == pytest.approx(epsilon_pld(composed_event(once, once, once), 1e-5), rel=1e-6)
    assert three > 1.5 * epsilon_pld(once, 1e-5)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0, 20.0])
def test_discrete_gaussian_pld_against_direct_summation(sigma):
    event, delta = histogram_event(sigma=sigma), 1e-4
    weights = {x: math.exp(-(x**2) / (2 * sigma**2)) for x in range(-400, 401)}
    total = math.fsum(weights.values())

    def hockey_stick(epsilon):
        gaps = (weights[x] - math.exp(epsilon) * weights.get(x - 1, 0.0) for x in weights)
        return math.fsum(max(0.0, gap) for gap in gaps) / total

    found = epsilon_pld(event, delta)
    assert hockey_stick(found) <= delta * (1 + 1e-6)
    assert hockey_stick(found - 3e-3) > delta


@pytest.mark.parametrize("sigma", [0.5, 1.0, 5.0])
def test_renyi_curve_bounds_the_discrete_gaussian(sigma):
    orders = (2.0, 8.0, 32.0)
    weights = {x: math.exp(-(x**2) / (2 * sigma**2)) for x in range(-400, 401)}
    total = math.fsum(weights.values())
    for order, bound in zip(orders, renyi_curve(histogram_event(sigma=sigma), orders), strict=True):
        # log sum p^a q^(1-a), with p shifted by one.
        terms = (
            order * -((x - 1) ** 2) / (2 * sigma**2) + (1 - order) * -(x**2) / (2 * sigma**2) for x in range(-400, 401)
        )
        shifted = list(terms)
        top = max(shifted)
        divergence = (top + math.log(math.fsum(math.exp(t - top) for t in shifted) / total)) / (order - 1)
        assert divergence <= bound * (1 + 1e-9)


def test_amplification_only_helps():
    event = short_run(2.0)
    assert epsilon_pld(event, 1e-5) < epsilon_pld(without_amplification(event), 1e-5)


def test_unsupported_events_are_said_and_not_switched_silently():
    tree = dp.SingleEpochTreeAggregationDpEvent(2.0, 100)
    with pytest.raises(UnderstudyError, match=r"PLD.*SingleEpochTreeAggregation"):
        epsilon_pld(tree, 1e-5)
    assert 0 < epsilon_rdp(tree, 1e-5) < math.inf
    with pytest.raises(UnderstudyError, match=r"RDP.*UnsupportedDpEvent"):
        epsilon_rdp(dp.UnsupportedDpEvent(), 1e-5)


def test_replace_one_is_not_understated():
    with pytest.raises(UnderstudyError, match="replace-one"):
        epsilon_rdp(one_shot(1.0), 1e-5, dp.NeighboringRelation.REPLACE_ONE)
    with pytest.raises(UnderstudyError, match="does not know"):
        epsilon_pld(histogram_event(sigma=1.0), 1e-5, dp.NeighboringRelation.REPLACE_ONE)


def test_rdp_does_not_complain_on_stderr(caplog):
    event = sgd_event(sampling_probability=0.2133, noise_multiplier=1.0, steps=19)
    with caplog.at_level(logging.WARNING, logger="absl"):
        epsilon_rdp(event, 1e-4)
    assert caplog.records == []
    assert logging.getLogger("absl").filters == []


@given(st.integers(3, 10**9))
def test_default_delta_is_below_one_over_n(n):
    assert 0 < default_delta(n) < 1 / n


def test_default_delta_needs_three_units():
    with pytest.raises(InputError, match="n=2"):
        default_delta(2)
