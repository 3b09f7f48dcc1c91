"""Calibration never spends more than asked, and the closed form of one query meets its condition."""

import json
import math

import pytest
from accounted_events import one_shot, run_with_histogram, short_run
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from understudy.errors import InputError
from understudy.privacy import accounting
from understudy.privacy.accounting import (
    epsilon_pld,
    epsilon_rdp,
    histogram_event,
)
from understudy.privacy.calibration import CALIBRATION_TOLERANCE, analytic_gaussian_sigma, calibrate_noise_multiplier


@pytest.mark.parametrize(
    ("make_event", "epsilon", "delta"),
    [
        (short_run, 0.5, 1e-5),
        (short_run, 4.0, 1e-5),
        (run_with_histogram, 1.0, 1e-4),
        (one_shot, 0.05, 1e-4),
        (one_shot, 0.005, 1e-6),  # below the floor of RDP's conversion
        (one_shot, 8.0, 1e-4),
    ],
)
def test_calibration_lands_just_below_the_target(make_event, epsilon, delta):
    z = calibrate_noise_multiplier(make_event, epsilon=epsilon, delta=delta, cache=None)
    reached = epsilon_pld(make_event(z), delta)
    assert epsilon * (1 - CALIBRATION_TOLERANCE) <= reached <= epsilon


def test_calibration_of_one_query_agrees_with_the_analytic_condition():
    z = calibrate_noise_multiplier(one_shot, epsilon=1.0, delta=1e-5, cache=None)
    exact = analytic_gaussian_sigma(epsilon=1.0, delta=1e-5, sensitivity=1.0)
    assert exact <= z <= exact * 1.002


def test_no_privacy_needs_no_noise():
    assert calibrate_noise_multiplier(short_run, epsilon=math.inf, delta=1e-5, cache=None) == 0.0
    assert epsilon_pld(short_run(0.0), 1e-5) == math.inf
    assert epsilon_rdp(short_run(0.0), 1e-5) == math.inf
    assert epsilon_pld(histogram_event(sigma=0.0), 1e-5) == math.inf


def test_an_unreachable_target_is_refused():
    # The histogram alone costs more than 0.1.
    with pytest.raises(InputError, match="larger epsilon"):
        calibrate_noise_multiplier(run_with_histogram, epsilon=0.1, delta=1e-4, cache=None)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (math.nan, 1e-5), (1.0, 0.0), (1.0, 1.0)])
def test_targets_out_of_range_are_refused(epsilon, delta):
    with pytest.raises(InputError, match="expected"):
        calibrate_noise_multiplier(short_run, epsilon=epsilon, delta=delta, cache=None)


def test_cache_spares_the_search_and_gives_the_same(tmp_path, monkeypatch):
    ask = {"epsilon": 2.0, "delta": 1e-5, "cache": tmp_path / "calibration"}
    first = calibrate_noise_multiplier(short_run, **ask)

    def evaluated(*_):
        raise LookupError("an epsilon was asked for")

    monkeypatch.setattr(accounting, "_remembered", evaluated)
    assert calibrate_noise_multiplier(short_run, **ask) == first
    with pytest.raises(LookupError):
        calibrate_noise_multiplier(short_run, **(ask | {"epsilon": 2.1}))


@pytest.mark.parametrize("damage", ["", "{", '{"noise_multiplier": 0.3}', "[]", "other event", "negative"])
def test_a_damaged_cache_entry_is_replaced(tmp_path, damage):
    first = calibrate_noise_multiplier(one_shot, epsilon=1.0, delta=1e-5, cache=tmp_path)
    (entry,) = tmp_path.iterdir()
    if damage == "other event":
        damage = json.dumps(json.loads(entry.read_text()) | {"noise_multiplier": first / 2})
    elif damage == "negative":
        damage = json.dumps(json.loads(entry.read_text()) | {"noise_multiplier": -1.0})
    entry.write_text(damage)
    assert calibrate_noise_multiplier(one_shot, epsilon=1.0, delta=1e-5, cache=tmp_path) == first
    assert json.loads(entry.read_text())["noise_multiplier"] == first
    assert [p.name for p in tmp_path.iterdir()] == [entry.name]


@settings(deadline=None, max_examples=60)
@given(
    st.floats(0.01, 20.0),
    st.floats(1e-9, 0.1),
    st.floats(1e-3, 1e3),
)
def test_analytic_gaussian_meets_its_condition(epsilon, delta, sensitivity):
    sigma = analytic_gaussian_sigma(epsilon=epsilon, delta=delta, sensitivity=sensitivity)

    def delta_of(s):
        a, b = sensitivity / (2 * s), epsilon * s / sensitivity
        return norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b)

    assert delta_of(sigma) <= delta * (1 + 1e-6)
    assert delta_of(sigma * 0.999) > delta


@pytest.mark.parametrize("bad", [{"epsilon": 0.0}, {"epsilon": math.inf}, {"sensitivity": 0.0}, {"delta": 1.0}])
def test_analytic_gaussian_refuses_what_is_out_of_range(bad):
    with pytest.raises(InputError, match="expected"):
        analytic_gaussian_sigma(**({"epsilon": 1.0, "delta": 1e-5, "sensitivity": 1.0} | bad))
