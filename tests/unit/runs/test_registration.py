"""A run is registered whole or not at all; its plan is taken once, by the flow it was meant for."""

from types import SimpleNamespace

import pytest

from understudy.errors import InputError
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.runs import registration
from understudy.runs.request import request_of


def test_a_run_whose_rows_another_one_has_registered_meanwhile_registers_nothing(home):
    """The source stayed, with a budget of its own, though the run was refused."""
    public = {"unit": "example", "relation": "replace_special", "epsilon": 3.0, "delta": 1e-3, "n": 9}
    rows = [b"one row", b"another"]
    Ledger.open().register(SourceRecord(name="ward", **public), rows)
    validated = SimpleNamespace(record=SourceRecord(name="other", **public), row_digests=rows, client_digests=[])
    with pytest.raises(InputError, match="registered under 'ward'"):
        registration.register(validated)
    assert [source.name for source in Ledger.open().sources()] == ["ward"]


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
