"""What `understudy ledger` shows: never a charge smaller than it is, never more left than a run may ask for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.privacy.ledger.ledger_requests import asked

from understudy.errors import BudgetRefused
from understudy.flows.commands.ledger import _left
from understudy.privacy.ledger.budget import Cost, admit
from understudy.privacy.ledger.ledger import Ledger, SourceRecord

REVIEWS = SourceRecord(name="reviews", unit="example", relation="replace_special", epsilon=8.0, delta=1e-3, n=100)


@pytest.fixture
def charged(home):
    ledger = Ledger.open()
    ledger.register(REVIEWS)
    ledger.reserve(**asked(epsilon=7.1, delta=0.000100449))


def test_the_list_of_charges_rounds_up(call, charged):
    code, said = call("ledger", "show")
    assert code == 0
    told = ["7.1", "0.000101", "example", "replace_special", "PLD"]
    assert said.splitlines()[-1].split()[3:8] == told, "no epsilon without what it is of"


def test_what_is_left_is_a_difference_of_decimals(call, charged):
    code, said = call("ledger", "budget", "reviews", "--json")
    assert code == 0
    found = json.loads(said)
    assert found["left_epsilon"] == 0.9
    assert [found[name] for name in ("unit", "relation", "accountant")] == ["example", "replace_special", "PLD"]


def test_the_budgets_of_all_sources_are_shown_without_a_name(call, charged):
    Ledger.open().register(REVIEWS.model_copy(update={"name": "clinic"}))
    code, said = call("ledger", "budget", "--json")
    assert code == 0
    assert {facts["source"]: facts["left_epsilon"] for facts in json.loads(said)} == {"clinic": 8.0, "reviews": 0.9}
    code, said = call("ledger", "budget")
    assert code == 0
    assert [line.split()[0] for line in said.splitlines()] == ["source", "clinic", "reviews"]


def test_a_ledger_without_charges_says_which_sources_it_has(call, home):
    assert "no source is registered yet" in call("ledger", "show")[1]
    assert "no source is registered yet" in call("ledger", "budget")[1]
    Ledger.open().register(REVIEWS)
    assert "no run has been charged; registered sources: reviews" in " ".join(call("ledger", "show")[1].split())


def test_of_a_budget_that_is_used_up_nothing_is_left_and_no_sign(call, home):
    ledger = Ledger.open()
    ledger.register(REVIEWS)
    ledger.reserve(**asked(epsilon=3.0, delta=REVIEWS.delta))
    code, said = call("ledger", "budget", "reviews", "--json")
    assert code == 0
    assert str(json.loads(said)["left_delta"]) == "0.0"


@given(st.floats(1e-4, 7.9))
def test_what_is_shown_as_left_can_be_asked_for_and_no_more(used):
    left = _left(8.0, used)
    admit(REVIEWS, [Cost(used, 0.0)], Cost(left, 0.0))
    with pytest.raises(BudgetRefused):
        admit(REVIEWS, [Cost(used, 0.0)], Cost(left + 1e-12, 0.0))
