"""A run plan that was handed over is taken once, by the flow it was meant for, and never by a later one."""

from types import SimpleNamespace

import pytest

from understudy.runs import registration
from understudy.runs.request import request_of


@pytest.fixture
def request_and_plan(monkeypatch):
    """A request, its registered plan, and a marker for plans that are made anew."""
    monkeypatch.setattr(registration, "validate", lambda *_: "validated")
    monkeypatch.setattr(registration, "register", lambda _: "made anew")
    request = request_of({"data": "rows.csv", "source": "ward", "epsilon": 1.0, "out": "out"})
    return request, SimpleNamespace(method="conditional-generation")


def test_the_flow_takes_what_was_handed_over_once(request_and_plan):
    request, plan = request_and_plan
    with registration.handed_over(request, plan):
        assert registration.registered(request, "gradient-matching") == "made anew"
        assert registration.registered(request, plan.method) is plan
        assert registration.registered(request, plan.method) == "made anew"


def test_a_plan_does_not_outlive_a_flow_that_failed_before_taking_it(request_and_plan):
    request, plan = request_and_plan
    with pytest.raises(RuntimeError, match="server"), registration.handed_over(request, plan):
        raise RuntimeError("no server")
    assert registration.registered(request, plan.method) == "made anew"
