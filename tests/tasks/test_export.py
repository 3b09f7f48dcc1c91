"""What the report of a run says of its source's budget."""

from types import SimpleNamespace

import pytest

from understudy.privacy.accounting import renyi_curve
from understudy.privacy.events import gaussian_event, sgd_event
from understudy.privacy.ledger.budget import Cost, spent
from understudy.privacy.ledger.records import SourceRecord
from understudy.tasks.export import budget_use

FIELDS = {"name": "ward", "unit": "example", "relation": "replace_special", "epsilon": 9, "delta": 1e-3, "n": 500}


def charge(name):
    return SimpleNamespace(id=name)


def test_where_epsilons_add_up_a_run_takes_its_own():
    source = SourceRecord(**FIELDS)
    used = budget_use(source, {"a": Cost(1.0, 1e-4), "b": Cost(2.0, 1e-4), "c": Cost(2.0, 1e-4)}, charge("b"))
    assert (used.epsilon_before, used.epsilon_run) == (3.0, 2.0)
    assert (used.delta_before, used.delta_run) == (2e-4, pytest.approx(1e-4))
    private = budget_use(source, {"a": Cost(1.0, 1e-4)}, charge("private"))
    assert (private.epsilon_before, private.epsilon_run, private.delta_run) == (1.0, 0.0, 0.0)


def test_where_renyi_bounds_add_up_it_takes_what_they_grow_by():
    """Its epsilon, taken off the sum of such bounds, left less than was spent before."""
    source = SourceRecord(**FIELDS, composition="renyi")
    costs = {
        name: Cost(epsilon, 1e-4, renyi_curve(gaussian_event(noise_multiplier=noise), source.renyi_orders))
        for name, epsilon, noise in (("small", 1.0, 4.0), ("large", 3.0, 1.5))
    }
    used = budget_use(source, costs, charge("large"))
    assert (used.epsilon_before, used.delta_before) == spent(source, [costs["small"]])
    assert used.epsilon_before + used.epsilon_run == pytest.approx(spent(source, [*costs.values()])[0])
    assert 0 < used.epsilon_run < 3
    assert used.delta_run == 0
    first = budget_use(source, {"small": costs["small"]}, charge("small"))
    assert (first.epsilon_before, first.delta_run) == (0, source.delta)


def test_of_two_charges_of_one_epsilon_each_takes_what_its_own_bounds_grow_by():
    """Their Renyi bounds differ: one asks once, the other many times of few rows."""
    source = SourceRecord(**FIELDS, composition="renyi")
    events = {
        "once": gaussian_event(noise_multiplier=1.5),
        "often": sgd_event(sampling_probability=0.05, noise_multiplier=1.0, steps=100),
    }
    costs = {name: Cost(3.0, 1e-4, renyi_curve(event, source.renyi_orders)) for name, event in events.items()}
    before = {name: spent(source, [cost])[0] for name, cost in costs.items()}
    assert before["once"] != before["often"]
    for own, other in (("once", "often"), ("often", "once")):
        used = budget_use(source, costs, charge(own))
        assert used.epsilon_before == before[other]
        assert used.epsilon_before + used.epsilon_run == pytest.approx(spent(source, [*costs.values()])[0])
