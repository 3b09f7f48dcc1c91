"""What a comparison adds up before anything is charged."""

import pytest

from understudy.privacy.calibration import analytic_gaussian_sigma
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.privacy.queries import Query, queries_to_json
from understudy.runs.comparisons.report import _charged
from understudy.runs.comparisons.total import pld_total, rounded_down
from understudy.runs.comparisons.validated import _few, is_cell_folder


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


def test_a_pld_total_that_says_no_more_than_the_sum_is_not_shown():
    assert pld_total([gaussian(1.0)], 8.0, 1e-5) is None
    assert pld_total([gaussian(1.0)] * 2, 1.0, 1e-5) is None


@pytest.mark.parametrize("value", [2.0625e-4, 0.01, 9.99e-10, 0.99])
def test_a_delta_that_is_named_as_fitting_fits(value):
    assert 0.9 * value <= float(rounded_down(value)) <= value


def test_the_report_says_no_less_than_what_was_charged(home):
    ledger = Ledger.open()
    ledger.register(SourceRecord(name="ward", unit="example", relation="replace_special", epsilon=9, delta=9e-3, n=100))
    made = [
        ledger.reserve(
            source="ward",
            request_key=f"run {number}",
            queries=queries_to_json(gaussian(20.0)),
            epsilon=1.0000004,
            delta=1.004e-4,
            epsilon_rdp=1.5,
            unit="example",
            relation="replace_special",
            code_digest="0" * 64,
        ).id
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
