"""What a source allows a run: as it is registered, as it will be on its first use, and what is left of it."""

import math
from types import SimpleNamespace

import pytest
from unit.privacy.ledger.ledger_requests import asked

from understudy.errors import BudgetRefused, InputError
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.runs.request import request_of
from understudy.runs.sources import check_budget, check_unit, may_be_charged, source_record, unless_charged

ROWS = SimpleNamespace(unit="example", relation="replace_special")
CLIENTS = SimpleNamespace(unit="client", relation="replace_special")
KNOWN = SourceRecord(name="ward", unit="example", relation="replace_special", epsilon=8.0, delta=1e-4, n=500)


def request(budget=None, **given):
    if budget is not None:
        given["budget"] = dict(zip(("epsilon", "delta"), map(float, budget.split(",")), strict=True))
    return request_of({"data": "rows.csv", "source": "ward", "out": "out", **given})


def found(**changes):
    fields = {"units": 400, "label_names": ("bill", "visit"), "labels_from_data": False}
    return SimpleNamespace(**(fields | changes))


def recorded(given=None, known=None, rows=None, guarded=ROWS, *, epsilon=2.0, delta=1e-5, is_part=False):
    asked_for = request(**{"epsilon": 2.0} | (given or {}))
    return source_record(asked_for, known, rows or found(), guarded, epsilon=epsilon, delta=delta, is_part=is_part)


@pytest.mark.parametrize(
    "other", [CLIENTS, SimpleNamespace(unit="example", relation="add_or_remove_one")], ids=["unit", "relation"]
)
def test_a_run_that_protects_another_unit_is_refused(other):
    check_unit(None, other)
    check_unit(KNOWN, ROWS)
    with pytest.raises(InputError, match=rf"per example \(replace_special\).*{other.unit} \({other.relation}\)"):
        check_unit(KNOWN, other)


def test_a_registered_source_stays_as_it_is():
    """Whatever this run found in its rows: their number, their labels."""
    assert recorded(known=KNOWN) == (KNOWN, [])
    assert recorded({"budget": "8,1e-4"}, known=KNOWN) == (KNOWN, [])


@pytest.mark.parametrize("budget", ["9,1e-4", "8,2e-4", "7,1e-4", "8,1e-5"])
def test_the_budget_of_a_registered_source_cannot_be_given_anew(budget):
    with pytest.raises(InputError, match=r"--budget .*registered with 8,0\.0001"):
        recorded({"budget": budget}, known=KNOWN)


def test_the_first_run_becomes_the_whole_budget_and_that_is_said():
    record, (said,) = recorded(epsilon=2.5, delta=3e-5)
    assert (record.name, record.unit, record.relation, record.n) == ("ward", "example", "replace_special", 400)
    assert (record.epsilon, record.delta, record.composition) == (2.5, 3e-5, "sum")
    assert "first use of 'ward'" in said
    assert "epsilon=2.5" in said
    record, _ = recorded(guarded=CLIENTS)
    assert record.unit == "client"


def test_a_budget_that_is_given_is_the_budget_and_nothing_is_said():
    record, said = recorded({"budget": "8,1e-4"}, epsilon=2.5, delta=3e-5)
    assert (record.epsilon, record.delta, said) == (8.0, 1e-4, [])


@pytest.mark.parametrize(("given", "named"), [({"epsilon": math.inf}, "--epsilon inf"), ({"epsilon": None}, "without")])
def test_a_first_run_without_noise_needs_a_budget(given, named):
    with pytest.raises(InputError, match=rf"{named}.*--budget E,D"):
        recorded(given, epsilon=math.inf)
    record, _ = recorded(given | {"budget": "8,1e-4"}, epsilon=math.inf)
    assert record.epsilon == 8.0


def test_a_part_of_several_runs_has_a_budget_for_the_time_being():
    """Whoever asks for all of them knows what they cost together, so nothing is said of this one."""
    record, said = recorded(epsilon=2.5, delta=3e-5, is_part=True)
    assert (record.epsilon, record.delta, said) == (2.5, 3e-5, [])
    record, said = recorded({"epsilon": math.inf}, epsilon=math.inf, delta=3e-5, is_part=True)
    assert (record.epsilon, record.delta, said) == (1.0, 3e-5, [])
    record, _ = recorded({"budget": "8,1e-4"}, epsilon=2.5, is_part=True)
    assert record.epsilon == 8.0


def test_labels_that_were_read_from_the_rows_are_declared_for_no_later_run():
    assert recorded()[0].label_names == ("bill", "visit")
    assert recorded(rows=found(labels_from_data=True))[0].label_names is None
    assert recorded(rows=found(label_names=()))[0].label_names is None


def test_a_source_that_cannot_be_registered_is_the_users_error():
    with pytest.raises(InputError, match=r"source 'ward': .*greater than or equal to 1"):
        recorded(rows=found(units=0), delta=1e-5)
    with pytest.raises(InputError, match="below 1/n"):
        recorded(delta=1 / 400)


@pytest.fixture
def ledger(home):
    """One charge of (3, 4e-5) to a source of (8, 1e-4)."""
    opened = Ledger.open()
    opened.register(KNOWN)
    opened.reserve(**asked(source="ward", epsilon=3.0, delta=4e-5))
    return opened


@pytest.mark.parametrize(
    ("epsilon", "delta", "fits"),
    [(5.0, 6e-5, True), (5.000001, 1e-6, False), (1.0, 6.1e-5, False), (math.inf, 0.9, True)],
)
def test_what_the_ledger_would_refuse_is_refused_now(ledger, epsilon, delta, fits):
    if fits:
        check_budget(ledger, KNOWN, epsilon=epsilon, delta=delta)
        return
    with pytest.raises(BudgetRefused, match=r"spent epsilon=3, delta=4e-05"):
        check_budget(ledger, KNOWN, epsilon=epsilon, delta=delta)


def test_a_source_that_is_not_registered_yet_has_spent_nothing(ledger):
    new = KNOWN.model_copy(update={"name": "other"})
    check_budget(ledger, new, epsilon=8.0, delta=1e-4)
    with pytest.raises(BudgetRefused, match=r"'other'.*spent epsilon=0"):
        check_budget(ledger, new, epsilon=8.1, delta=1e-4)


def test_of_a_renyi_filter_only_the_ledger_knows_what_is_left(ledger):
    filtered = KNOWN.model_copy(update={"composition": "renyi", "renyi_orders": (2.0,)})
    check_budget(ledger, filtered, epsilon=80.0, delta=1e-4)


def test_a_delta_that_nobody_asked_for_is_named_where_it_does_not_fit(ledger):
    for is_default in (True, False):
        with pytest.raises(BudgetRefused) as refused:
            check_budget(ledger, KNOWN, epsilon=1.0, delta=7e-5, is_default_delta=is_default)
        assert ("--delta D" in str(refused.value)) is is_default


def test_only_a_charge_of_the_very_size_may_be_this_runs(ledger):
    def charged(source, epsilon, delta):
        return may_be_charged(ledger, source, epsilon=epsilon, delta=delta)

    assert charged("ward", 3.0, 4e-5)
    for other in (("ward", 3.1, 4e-5), ("ward", 3.0, 4.1e-5), ("other", 3.0, 4e-5)):
        assert not charged(*other)


@pytest.mark.parametrize("refused", [True, False])
@pytest.mark.parametrize("charged", [True, False])
def test_a_refusal_counts_unless_this_run_has_used_the_budget_up(refused, charged):
    """The look comes first: a run that another process charges in between is found by the question after it."""
    asked_in_order = []

    def look():
        asked_in_order.append("look")
        if refused:
            raise BudgetRefused("nothing left")

    def is_charged():
        asked_in_order.append("charged")
        return charged

    if refused and not charged:
        with pytest.raises(BudgetRefused, match="nothing left"):
            unless_charged(look, is_charged)
    else:
        unless_charged(look, is_charged)
    assert asked_in_order == (["look", "charged"] if refused else ["look"])


def test_no_other_error_of_the_look_is_passed_over():
    def damaged():
        raise InputError("damaged")

    with pytest.raises(InputError, match="damaged"):
        unless_charged(damaged, lambda: True)
