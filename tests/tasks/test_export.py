"""What the report of a run says of its source's budget."""

from types import SimpleNamespace

import pytest

from understudy.privacy.accounting import renyi_curve
from understudy.privacy.events import gaussian_event
from understudy.privacy.ledger.budget import Cost, spent
from understudy.privacy.ledger.records import SourceRecord
from understudy.tasks.export import budget_use

FIELDS = {"name": "ward", "unit": "example", "relation": "replace_special", "epsilon": 9, "delta": 1e-3, "n": 500}


def charge(epsilon, kind="counted"):
    return SimpleNamespace(epsilon=epsilon, delta=1e-4, kind=kind)


def test_where_epsilons_add_up_a_run_takes_its_own():
    source = SourceRecord(**FIELDS)
    used = budget_use(source, [Cost(1.0, 1e-4), Cost(2.0, 1e-4), Cost(2.0, 1e-4)], charge(2.0))
    assert (used.epsilon_before, used.epsilon_run) == (3.0, 2.0)
    assert (used.delta_before, used.delta_run) == (2e-4, pytest.approx(1e-4))
    private = budget_use(source, [Cost(1.0, 1e-4)], charge(float("inf"), kind="internal"))
    assert (private.epsilon_before, private.epsilon_run, private.delta_run) == (1.0, 0.0, 0.0)


def test_where_renyi_bounds_add_up_it_takes_what_they_grow_by():
    """Its epsilon, taken off the sum of such bounds, left less than was spent before."""
    source = SourceRecord(**FIELDS, composition="renyi")
    costs = [
        Cost(epsilon, 1e-4, renyi_curve(gaussian_event(noise_multiplier=noise), source.renyi_orders))
        for epsilon, noise in ((1.0, 4.0), (3.0, 1.5))
    ]
    used = budget_use(source, costs, charge(3.0))
    assert (used.epsilon_before, used.delta_before) == spent(source, costs[:1])
    assert used.epsilon_before + used.epsilon_run == pytest.approx(spent(source, costs)[0])
    assert 0 < used.epsilon_run < 3
    assert used.delta_run == 0
    first = budget_use(source, costs[:1], charge(1.0))
    assert (first.epsilon_before, first.delta_run) == (0, source.delta)
