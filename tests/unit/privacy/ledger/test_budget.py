"""Admission: the sums and the Renyi filter never let a budget be exceeded, and use it well."""

import math
import re
from decimal import Decimal
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.errors import BudgetRefused, InputError
from understudy.privacy.accounting import epsilon_rdp, gaussian_event, renyi_curve
from understudy.privacy.ledger.budget import Cost, _offsets, admit, spent
from understudy.privacy.ledger.records import RENYI_ORDERS, SourceRecord


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


def as_typed(costs, position):
    """The exact sum of epsilons (0) or deltas (1), each the decimal that it prints as."""
    return sum((Fraction(repr(cost[position])) for cost in costs), start=Fraction(0))


def test_what_was_spent_is_shown_as_a_float_that_is_not_below_it():
    """The float nearest to the sum may be."""
    epsilon, delta = spent(source(), [Cost(1.0, 1e-5), Cost(1e-17, 1e-25)])
    assert epsilon == math.nextafter(1.0, 2.0)
    assert delta == math.nextafter(1e-5, 1.0)
    assert spent(source(), [Cost(0.1, 1e-5)] * 3)[0] == 0.3


@pytest.mark.parametrize("delta", [1e-9, 3.3e-7, 1e-5, 1.7e-4, 9e-4])
def test_what_turns_renyi_bounds_into_epsilon_is_rounded_up(delta):
    record = source(composition="renyi", delta=delta)
    offsets = _offsets(record, masked_rounds=0)
    with mpmath.workdps(60):
        for order, offset in zip(record.renyi_orders, offsets, strict=True):
            exact = mpmath.log(len(record.renyi_orders) / mpmath.mpf(delta)) / (mpmath.mpf(order) - 1)
            found = mpmath.mpf(str(offset))
            assert exact * (1 + mpmath.mpf(2) ** -52) <= found <= exact * (1 + mpmath.mpf(2) ** -49)


costs = st.builds(Cost, st.floats(1e-3, 10), st.floats(0, 1e-4))


@settings(deadline=None)
@given(st.lists(costs, max_size=30))
def test_sums_never_exceed_the_budget_and_refusal_is_only_for_lack(asked):
    record = source()
    taken = admitted(record, asked)
    epsilon, delta = spent(record, taken)
    assert epsilon <= record.epsilon
    assert delta <= record.delta
    left = [Fraction(repr(b)) - as_typed(taken, i) for i, b in enumerate((record.epsilon, record.delta))]
    assert min(left) >= 0
    for cost in asked:
        if all(as_typed([cost], i) <= left[i] for i in range(2)):
            admit(record, taken, cost)


@settings(deadline=None)
@given(st.integers(1, 100), st.integers(1, 999))
def test_a_budget_of_equal_decimals_fits_them_all_and_not_one_more(parts, thousandths):
    record = source(epsilon=float(Decimal(parts * thousandths) / 1000), delta=1e-5)
    cost = Cost(thousandths / 1000, 1e-9)
    assert len(admitted(record, [cost] * (parts + 1))) == parts
    assert spent(record, [cost] * parts)[0] == record.epsilon


@pytest.mark.parametrize(("budget", "one", "times"), [(8.0, 0.8, 10), (0.3, 0.1, 3), (1.0, 0.1, 10), (3.3, 1.1, 3)])
def test_decimals_add_up_as_they_are_read(budget, one, times):
    record = source(epsilon=budget)
    assert len(admitted(record, [Cost(one, 0.0)] * (times + 1))) == times


@pytest.mark.parametrize("composition", ["sum", "renyi"])
@pytest.mark.parametrize("epsilon", [8.0, 0.3, 1e-6])
def test_not_one_unit_of_the_last_place_more_than_the_budget(composition, epsilon):
    """A relative tolerance of 1e-9 let a charge of 8.000000008 into a budget of 8."""
    record = source(epsilon=epsilon, composition=composition, renyi_orders=(1e9,) if composition == "renyi" else ())
    room = epsilon - math.log(1 / record.delta) / (1e9 - 1)
    for more in (math.nextafter(epsilon, math.inf), epsilon * (1 + 5e-10)):
        curve = (room * (1 + 5e-10),) if composition == "renyi" else ()
        with pytest.raises(BudgetRefused):
            admit(record, [], Cost(more, 1e-5, curve))
    admit(record, [], Cost(epsilon, 1e-5, (room * (1 - 1e-12),) if composition == "renyi" else ()))


def test_deltas_have_no_tolerance_either():
    with pytest.raises(BudgetRefused):
        admit(source(), [Cost(1.0, 9e-5)], Cost(1.0, 1.0000000001e-5))
    admit(source(), [Cost(1.0, 9e-5)], Cost(1.0, 1e-5))


@settings(deadline=None)
@given(st.floats(0.1, 7.9))
def test_what_is_shown_as_left_can_be_asked_for(used):
    with pytest.raises(BudgetRefused) as refused:
        admit(source(), [Cost(used, 0.0)], Cost(9.0, 0.0))
    left = float(re.search(r"left epsilon=([^,]+),", str(refused.value))[1])
    assert left >= (8 - used) * (1 - 1e-5)
    admit(source(), [Cost(used, 0.0)], Cost(left, 0.0))


def test_an_order_without_a_bound_carries_nothing():
    record = source(composition="renyi", renyi_orders=(2.0, 64.0), epsilon=20.0)
    admit(record, [], Cost(1.0, 1e-5, (0.1, math.inf)))
    with pytest.raises(BudgetRefused, match="left epsilon="):
        admit(record, [], Cost(1.0, 1e-5, (math.inf, math.inf)))
    assert spent(record, [Cost(1.0, 1e-5, (math.inf, math.inf))])[0] == math.inf


@settings(deadline=None)
@given(st.lists(costs, min_size=1, max_size=8), st.randoms())
def test_what_was_spent_does_not_depend_on_the_order(asked, random):
    shuffled = list(asked)
    random.shuffle(shuffled)
    assert spent(source(), asked) == spent(source(), shuffled)


def test_refusal_says_what_was_spent_is_left_and_was_asked():
    with pytest.raises(BudgetRefused) as refused:
        admit(source(epsilon=3.0), [Cost(2.0, 1e-5)], Cost(1.5, 1e-5))
    assert "for each example (replace_special, by a sum of PLD)" in str(refused.value)
    for word in ("spent epsilon=2,", "left epsilon=1,", "asked epsilon=1.5,", "delta=9e-05"):
        assert word in str(refused.value)
    assert refused.value.exit_code == 3


@pytest.mark.parametrize(
    ("used", "new", "said"),
    [
        (Cost(1.0, 9e-5), Cost(1.0, 2e-5), "--delta D, of at most 1e-05"),
        (Cost(1.0, 1e-4), Cost(1.0, 2e-5), "the default 1/(n ln n)"),
        (Cost(1.0, 1e-5), Cost(9.0, 2e-5), None),
    ],
)
def test_a_refusal_names_a_default_delta_only_where_that_is_what_does_not_fit(used, new, said):
    with pytest.raises(BudgetRefused) as refused:
        admit(source(), [used], new, is_default_delta=True)
    assert ("--delta D" in str(refused.value)) is (said is not None and "--delta D" in said)
    assert (said or "is left") in str(refused.value)
    with pytest.raises(BudgetRefused) as refused:
        admit(source(), [used], new)
    assert "default" not in str(refused.value)


def gaussian_cost(z, record):
    curve = renyi_curve(gaussian_event(noise_multiplier=z), record.renyi_orders)
    return Cost(1.0, 1e-5, curve)


def test_renyi_filter_admits_far_more_small_charges_than_sums():
    filtered = source(epsilon=3.0, composition="renyi")
    one = gaussian_event(noise_multiplier=30.0)
    alone = epsilon_rdp(one, 1e-6)
    by_sum = math.floor(min(3.0 / alone, 1e-4 / 1e-6))
    assert 0 < by_sum < 25
    more = 10 * by_sum + 1
    assert len(admitted(filtered, [gaussian_cost(30.0, filtered)] * more)) == more


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(2.0, 60.0), min_size=1, max_size=40))
def test_renyi_filter_stays_within_epsilon_at_some_order(zs):
    record = source(epsilon=2.0, composition="renyi")
    taken = admitted(record, [gaussian_cost(z, record) for z in zs])
    # Mironov's tail bound at delta / k, worked out here for Gaussians: sum of a / (2 z^2).
    variance = sum(cost.curve[0] / RENYI_ORDERS[0] for cost in taken)
    bounds = [a * variance + math.log(len(RENYI_ORDERS) / record.delta) / (a - 1) for a in RENYI_ORDERS]
    if taken:
        assert min(bounds) <= record.epsilon
        assert spent(record, taken) == (pytest.approx(min(bounds)), record.delta)
        # The true cost of the composition is smaller still.
        total = gaussian_event(noise_multiplier=variance**-0.5 / 2**0.5)
        assert epsilon_rdp(total, record.delta) <= record.epsilon


def test_the_distance_of_masked_sums_from_their_law_is_taken_off_the_delta_of_a_renyi_filter():
    record = source(epsilon=20.0, delta=1e-5, composition="renyi", renyi_orders=(3.0,))
    plain, masked = Cost(1.0, 1e-6, (0.5,)), Cost(1.0, 1e-6, (0.5,), masked_rounds=30)
    # Two charges with 60 rounds: 60 (1 + e^20) 1e-20 is 2.9e-10. One order: ln(1 / delta) / 2.
    left = 1e-5 - 60 * (1 + math.exp(20)) * 1e-20
    assert spent(record, [plain, plain])[0] == pytest.approx(1 + math.log(1 / 1e-5) / 2, rel=1e-14)
    assert spent(record, [masked, masked])[0] == pytest.approx(1 + math.log(1 / left) / 2, rel=1e-14)
    assert spent(record, [masked, plain])[0] > spent(record, [plain, plain])[0]
    for epsilon in (40.0, 1000.0):  # more than all of delta
        far = source(epsilon=epsilon, delta=1e-5, composition="renyi", renyi_orders=(3.0,))
        admit(far, [], plain)
        with pytest.raises(BudgetRefused, match="Renyi filter"):
            admit(far, [], masked)


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
