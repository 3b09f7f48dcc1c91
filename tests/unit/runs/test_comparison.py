"""What a comparison adds up before anything is charged."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from unit.privacy.ledger.ledger_requests import asked

from understudy.errors import InputError
from understudy.privacy.calibration import analytic_gaussian_sigma
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.privacy.queries import Query
from understudy.runs.comparisons import validated
from understudy.runs.comparisons.report import _charged
from understudy.runs.comparisons.request import CompareRequest
from understudy.runs.comparisons.total import new_source, pld_total, rounded_down
from understudy.runs.comparisons.validated import PlannedRun, _few, is_cell_folder, validate_comparison
from understudy.runs.request import Budget, RunRequest


def gaussian(noise: float) -> tuple[Query, ...]:
    return (Query(kind="gaussian_sum", name="sum", units=100, sensitivity=1.0, noise_multiplier=noise),)


def test_the_pld_total_is_that_of_all_charges_composed():
    """Four Gaussian queries of noise 2 s are one of noise s, whose epsilon is known in closed form."""
    noise = analytic_gaussian_sigma(epsilon=3.0, delta=4e-5, sensitivity=1.0)
    total = pld_total([gaussian(2 * noise)] * 4, 8.0, 4e-5)
    assert 3.0 - 1e-6 <= total <= 3.01
    # Of two kinds: 1/s^2 adds up.
    mixed = [gaussian(2 * noise), gaussian(2 * noise), gaussian(2**0.5 * noise)]
    assert 3.0 - 1e-6 <= pld_total(mixed, 8.0, 4e-5) <= 3.01


def test_a_budget_that_no_source_may_have_is_named_once():
    record = SourceRecord(name="ward", unit="example", relation="replace_special", epsilon=9, delta=9e-3, n=100)
    request = CompareRequest(
        run=RunRequest(data="d", out="o", source="ward", budget=Budget(epsilon=8, delta=0.5)),
        methods=("conditional-generation",),
        epsilons=(1.0,),
    )
    with pytest.raises(InputError, match=r"^--budget 8,0\.5: expected a delta below 1/n"):
        new_source(request, record, [])


def test_a_pld_total_that_says_no_more_than_the_sum_is_not_shown():
    assert pld_total([gaussian(1.0)], 8.0, 1e-5) is None
    assert pld_total([gaussian(1.0)] * 2, 1.0, 1e-5) is None


@dataclass(frozen=True)
class Checked:
    """What `validate_comparison` asks of a run that was validated by itself."""

    record: SourceRecord
    plan: object = None


@pytest.mark.parametrize("accepts_new", [False, True])
@pytest.mark.parametrize("charged", [0, 1, 2])
def test_a_pld_total_is_shown_of_a_plan_of_which_nothing_was_charged_before(charged, accepts_new, home, monkeypatch):
    """PLD composes what was fixed in advance: runs that were added in sight of others' results add up."""
    request = CompareRequest(
        run=RunRequest(data="notes.csv", out="out", source="ward", accept_new_charge=accepts_new),
        methods=("conditional-generation",),
        epsilons=(1.0,),
        seeds=(0, 1, 2, 3),
    )
    record = SourceRecord(name="ward", unit="example", relation="replace_special", epsilon=9, delta=9e-3, n=100)
    queries = gaussian(analytic_gaussian_sigma(epsilon=1.0, delta=1e-5, sensitivity=1.0))
    plan = SimpleNamespace(queries=queries, epsilon=1.0, delta=1e-5)
    runs = iter(
        PlannedRun(cell=None, plan=plan, charge=f"{seed}", is_charged=seed < charged, is_finished=False)
        for seed in request.seeds
    )
    Ledger.open().register(record)
    stubs = {
        "cells_of": lambda _: request.seeds,
        "check_report_folder": lambda *_, **__: None,
        "_check_alike": lambda _: None,
        "_validated": lambda cells, **_: [Checked(record)] * len(cells),
        "_planned": lambda *_: next(runs),
        "_as_one_of": lambda plan, *_: plan,
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(validated, name, stub)
    found = validate_comparison(request).comparison
    assert found.charges == (4 if accepts_new else 4 - charged)
    assert found.epsilon == pytest.approx(found.charges)
    if charged:
        assert found.epsilon_pld is None
    else:
        assert 1.0 < found.epsilon_pld < 4.0


@pytest.mark.parametrize("value", [2.0625e-4, 0.01, 9.99e-10, 0.99])
def test_a_delta_that_is_named_as_fitting_fits(value):
    assert 0.9 * value <= float(rounded_down(value)) <= value


def test_the_report_says_no_less_than_what_was_charged(home):
    ledger = Ledger.open()
    ledger.register(SourceRecord(name="ward", unit="example", relation="replace_special", epsilon=9, delta=9e-3, n=100))
    made = [
        ledger.reserve(**asked(source="ward", request_key=f"run {number}", epsilon=1.0000004, delta=1.004e-4)).id
        for number in range(3)
    ]
    assert ledger.spent("ward") == (3.0000012, 3.012e-4)
    cost = "epsilon=3.00001, delta=0.000302 for one example (replace_special, PLD)"
    assert f"{cost} in all, the sum of 3 charges" in _charged("ward", made)


def test_folders_of_runs_are_known_by_name():
    assert is_cell_folder("gradient-matching-eps0.5-seed3", ["gradient-matching"])
    assert not is_cell_folder("export", ["gradient-matching"])
    assert not is_cell_folder("other-eps1-seed0", ["gradient-matching"])


def test_many_names_are_cut():
    assert _few(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert _few(["a"]) == "a"
