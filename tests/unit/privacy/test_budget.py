"""Admission: the sums and the Renyi filter never let a budget be exceeded, and use it well."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.errors import BudgetRefused, InputError
from understudy.privacy.accounting import epsilon_rdp, gaussian_event, renyi_curve
from understudy.privacy.budget import Cost, admit, spent
from understudy.privacy.ledger_records import RENYI_ORDERS, SourceRecord


def source(**changes):
    fields = {"name": "reviews", "unit": "example", "relation": "replace_special", "epsilon": 8.0}
    return SourceRecord(**(fields | {"delta": 1e-4, "n": 1000} | changes))


def admitted(record, asked):
    """What is admitted of a sequence of costs, one after the other."""
    taken = []
    for cost in asked:
        try:
            admit(record, taken, cost)
        except BudgetRefused:
            continue
        taken.append(cost)
    return taken


costs = st.builds(Cost, st.floats(1e-3, 10), st.floats(0, 1e-4))


@given(st.lists(costs, max_size=30))
def test_sums_never_exceed_the_budget_and_refusal_is_only_for_lack(asked):
    record = source()
    taken = admitted(record, asked)
    epsilon, delta = spent(record, taken)
    assert epsilon <= record.epsilon * (1 + 1e-9)
    assert delta <= record.delta * (1 + 1e-9)
    for cost in asked:
        fits = epsilon + cost.epsilon <= record.epsilon and delta + cost.delta <= record.delta
        if fits:
            admit(record, taken, cost)


@given(st.integers(1, 200))
def test_a_budget_divides_into_equal_parts_exactly(parts):
    record = source(epsilon=0.3, delta=1e-5)
    cost = Cost(0.3 / parts, 1e-5 / parts)
    assert len(admitted(record, [cost] * (parts + 1))) == parts


@given(st.lists(costs, min_size=1, max_size=8), st.randoms())
def test_what_was_spent_does_not_depend_on_the_order(asked, random):
    shuffled = list(asked)
    random.shuffle(shuffled)
    assert spent(source(), asked) == spent(source(), shuffled)


def test_refusal_says_what_was_spent_is_left_and_was_asked():
    with pytest.raises(BudgetRefused) as refused:
        admit(source(epsilon=3.0), [Cost(2.0, 1e-5)], Cost(1.5, 1e-5))
    for word in ("spent epsilon=2,", "left epsilon=1,", "asked epsilon=1.5,", "delta=9e-05"):
        assert word in str(refused.value)
    assert refused.value.exit_code == 3


def gaussian_cost(z, record):
    curve = renyi_curve(gaussian_event(noise_multiplier=z), record.renyi_orders)
    return Cost(1.0, 1e-5, curve)


def test_renyi_filter_admits_far_more_small_charges_than_sums():
    filtered = source(epsilon=3.0, composition="renyi")
    one = gaussian_event(noise_multiplier=30.0)
    alone = epsilon_rdp(one, 1e-6)
    by_sum = math.floor(min(3.0 / alone, 1e-4 / 1e-6))
    by_filter = len(admitted(filtered, [gaussian_cost(30.0, filtered)] * 600))
    assert by_sum < 25
    assert by_filter > 10 * by_sum


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(2.0, 60.0), min_size=1, max_size=40))
def test_renyi_filter_stays_within_epsilon_at_some_order(zs):
    record = source(epsilon=2.0, composition="renyi")
    taken = admitted(record, [gaussian_cost(z, record) for z in zs])
    # Mironov's tail bound at delta / k, worked out here for Gaussians: sum of a / (2 z^2).
    variance = sum(cost.curve[0] / RENYI_ORDERS[0] for cost in taken)
    bounds = [a * variance + math.log(len(RENYI_ORDERS) / record.delta) / (a - 1) for a in RENYI_ORDERS]
    if taken:
        assert min(bounds) <= record.epsilon * (1 + 1e-9)
        assert spent(record, taken) == (pytest.approx(min(bounds)), record.delta)
        # The true cost of the composition is smaller still.
        total = gaussian_event(noise_multiplier=variance**-0.5 / 2**0.5)
        assert epsilon_rdp(total, record.delta) <= record.epsilon


def test_renyi_filter_refuses_what_no_order_can_carry():
    record = source(epsilon=1.0, composition="renyi")
    with pytest.raises(BudgetRefused, match="Renyi filter"):
        admit(record, [], gaussian_cost(1.0, record))
    assert spent(record, []) == (0.0, 0.0)


def test_orders_are_fixed_by_the_record():
    assert source(composition="renyi").renyi_orders == RENYI_ORDERS
    assert source(composition="renyi", renyi_orders=(2.0, 5.0)).renyi_orders == (2.0, 5.0)
    assert source().renyi_orders == ()
    with pytest.raises(ValueError, match="orders"):
        source(composition="renyi", renyi_orders=(1.0,))
    with pytest.raises(ValueError, match="renyi_orders"):
        source(renyi_orders=(2.0,))


@pytest.mark.parametrize("changes", [{"delta": 1e-3}, {"name": "two words"}, {"name": ""}, {"name": "../x"}])
def test_a_bad_source_is_the_user_s_error(changes):
    with pytest.raises(InputError, match="expected"):
        source(**changes)
