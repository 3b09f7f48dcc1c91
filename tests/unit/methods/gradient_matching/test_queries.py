import math

import mpmath
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import scheduled_by

from understudy.errors import InputError
from understudy.methods.gradient_matching import queries
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.queries import (
    LENGTH,
    TARGET,
    QuerySchedule,
    calibrations,
    paper_noise_multiplier,
    signal_to_noise_bound,
    signal_to_noise_warning,
)
from understudy.privacy.accounting import combined_noise_multiplier, epsilon_pld, event_from_json, event_to_json
from understudy.privacy.queries import event_of, queries_from_json, queries_to_json

scheduled = scheduled_by(queries)
DELTA = 1e-4


def make(calibration="analytic", length=20, clip=1.0):
    return GradientMatchingConfig(target={"calibration": calibration, "l2_clip_norm": clip}, length=length)


@pytest.mark.parametrize("length", [20, "as_in_data"])
@pytest.mark.parametrize("calibration", ["analytic", "paper"])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 3.0])
def test_the_whole_event_meets_the_target(calibration, length, epsilon):
    planned = scheduled(make(calibration, length), n=400, epsilon=epsilon, delta=DELTA)
    charged = epsilon_pld(event_of(planned.queries), DELTA)
    assert charged <= epsilon
    if calibration == "analytic":
        assert charged > 0.9999 * epsilon
    assert isinstance(event_of(planned.queries), ComposedDpEvent if length == "as_in_data" else GaussianDpEvent)
    assert event_from_json(event_to_json(event_of(planned.queries))) == event_of(planned.queries)
    assert QuerySchedule.model_validate_json(planned.model_dump_json()) == planned


@pytest.mark.parametrize("length", [20, "as_in_data"])
def test_the_list_of_queries_is_all_that_the_rows_are_asked(length):
    planned = scheduled(make(length=length, clip=0.5), n=400, epsilon=1.0, delta=DELTA)
    target, *rest = planned.queries
    assert (target.kind, target.name, target.units, target.steps, target.batch) == (
        "gaussian_sum",
        TARGET,
        400,
        1,
        None,
    )
    assert (target.sensitivity, target.noise_multiplier) == (0.5, planned.noise_multiplier)
    found = [(query.name, query.units, query.sensitivity, query.noise_multiplier) for query in rest]
    length_noise = planned.length_noise_multiplier
    assert found == ([] if length == 20 else [(LENGTH, 400, math.sqrt(2), length_noise)])
    assert queries_from_json(queries_to_json(planned.queries)) == planned.queries


def exact_delta(noise_multiplier, epsilon):
    """Balle & Wang 2018, Theorem 8, in 50 digits."""
    with mpmath.workdps(50):
        z, e = mpmath.mpf(noise_multiplier), mpmath.mpf(epsilon)
        first, second = mpmath.ncdf(1 / (2 * z) - e * z), mpmath.ncdf(-1 / (2 * z) - e * z)
        return first - mpmath.exp(e) * second


def test_the_analytic_noise_is_the_least():
    planned = scheduled(make(), n=400, epsilon=1.0, delta=DELTA)
    assert exact_delta(planned.noise_multiplier, 1.0) <= DELTA
    assert exact_delta(planned.noise_multiplier * (1 - 1e-5), 1.0) > DELTA


def test_the_papers_formulas_give_its_numbers():
    """Section 4.5 with C = 1 and |D| = 1, computed by hand in 50 digits."""
    with mpmath.workdps(50):
        low = mpmath.sqrt(2 * mpmath.log(mpmath.mpf("1.25") / mpmath.mpf("1e-4"))) / mpmath.mpf("0.05")
        c = mpmath.sqrt(mpmath.log(2 / (mpmath.sqrt(16 * mpmath.mpf("1e-4") + 1) - 1)))
        high = (c + mpmath.sqrt(c**2 + 8)) / (mpmath.sqrt(2) * 8)
    assert paper_noise_multiplier(0.05, 1e-4) == pytest.approx(float(low), rel=1e-12)
    assert paper_noise_multiplier(8, 1e-4) == pytest.approx(float(high), rel=1e-12)
    # Small delta: sqrt(16 delta + 1) - 1 is 8 delta.
    assert paper_noise_multiplier(8, 1e-18) == pytest.approx(
        (math.sqrt(math.log(2 / 8e-18)) + math.sqrt(math.log(2 / 8e-18) + 8)) / (math.sqrt(2) * 8), rel=1e-9
    )


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 4.0])
def test_both_calibrations_stand_side_by_side_for_sum_and_mean(epsilon):
    planned = scheduled(make("paper", clip=2.0), n=50, epsilon=epsilon, delta=DELTA)
    rows = {row.formula: row for row in calibrations(make("paper", clip=2.0), n=50, epsilon=epsilon, delta=DELTA)}
    assert set(rows) == {"analytic", "paper"}
    assert rows["paper"].sigma_sum == pytest.approx(2.0 * paper_noise_multiplier(epsilon, DELTA))
    assert planned.noise_multiplier == pytest.approx(rows["paper"].sigma_sum / 2.0)
    for row in rows.values():
        assert row.sigma_mean == pytest.approx(row.sigma_sum / 50)
    assert rows["analytic"].sigma_sum < rows["paper"].sigma_sum
    assert rows["paper"].epsilon < rows["analytic"].epsilon == pytest.approx(epsilon, rel=1e-4)


def test_a_formula_that_would_cost_more_than_the_target_is_raised(monkeypatch):
    monkeypatch.setattr(
        "understudy.methods.gradient_matching.queries.paper_noise_multiplier", lambda epsilon, delta: 3.0
    )
    planned = scheduled(make("paper"), n=50, epsilon=1.0, delta=DELTA)
    assert calibrations(make("paper"), n=50, epsilon=1.0, delta=DELTA)[1].epsilon > 1.0
    assert epsilon_pld(event_of(planned.queries), DELTA) <= 1.0
    least = scheduled(make("analytic"), n=50, epsilon=1.0, delta=DELTA).noise_multiplier
    assert planned.noise_multiplier == pytest.approx(least, rel=1e-4)


def test_the_length_gets_its_share_and_the_rest_goes_to_the_target():
    planned = scheduled(make(length="as_in_data"), n=400, epsilon=1.0, delta=DELTA)
    alone = scheduled(make(), n=400, epsilon=1.0, delta=DELTA)
    assert alone.length_noise_multiplier is None
    length = planned.length_noise_multiplier
    assert length is not None
    assert exact_delta(length, 0.05) <= 0.05 * DELTA < exact_delta(length * (1 - 1e-6), 0.05)
    both = combined_noise_multiplier(planned.noise_multiplier, length)
    assert both == pytest.approx(alone.noise_multiplier, rel=1e-5)
    assert alone.noise_multiplier < planned.noise_multiplier < 1.01 * alone.noise_multiplier


@pytest.mark.parametrize("length", [20, "as_in_data"])
@pytest.mark.parametrize("calibration", ["analytic", "paper"])
def test_infinite_epsilon_means_no_noise(calibration, length):
    planned = scheduled(make(calibration, length), n=5, epsilon=math.inf, delta=DELTA)
    assert planned.noise_multiplier == 0
    assert planned.length_noise_multiplier in (None, 0.0)
    assert epsilon_pld(event_of(planned.queries), DELTA) == math.inf
    assert QuerySchedule.model_validate_json(planned.model_dump_json()) == planned


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": math.nan}, {"delta": 0.0}, {"delta": 1.0}, {"n": 0}])
def test_values_out_of_range_are_refused(wrong):
    with pytest.raises(InputError, match="epsilon"):
        scheduled(make(), **{"n": 400, "epsilon": 3.0, "delta": DELTA, **wrong})


def test_the_bound_is_that_of_the_design():
    """METHODS, section 2: epsilon 8, V * d of 2 million: 0.03 with 25 rows of a label, 5.4 with 4,265."""
    noise = scheduled(make(), n=50, epsilon=8.0, delta=1e-5).noise_multiplier
    few, many = (signal_to_noise_bound(noise_multiplier=noise, n=n, dimension=2**21) for n in (25, 4265))
    assert few == pytest.approx(0.03, rel=0.1)
    assert many == pytest.approx(5.4, rel=0.1)
    sketched = signal_to_noise_bound(noise_multiplier=noise, n=25, dimension=512)
    assert sketched / few == pytest.approx(64)
    assert signal_to_noise_bound(noise_multiplier=0.0, n=25, dimension=512) == math.inf


@settings(max_examples=100, deadline=None)
@given(
    noise=st.floats(0.01, 1e4), n=st.integers(1, 10**6), dimension=st.integers(1, 10**9), factor=st.floats(1.01, 1e3)
)
def test_the_bound_grows_with_rows_and_falls_with_noise_and_dimension(noise, n, dimension, factor):
    bound = signal_to_noise_bound(noise_multiplier=noise, n=n, dimension=dimension)
    assert bound > 0
    assert signal_to_noise_bound(noise_multiplier=noise, n=2 * n, dimension=dimension) == pytest.approx(2 * bound)
    assert signal_to_noise_bound(noise_multiplier=noise * factor, n=n, dimension=dimension) < bound
    assert signal_to_noise_bound(noise_multiplier=noise, n=n, dimension=4 * dimension) == pytest.approx(bound / 2)


def test_the_papers_private_regime_is_called_what_it_is():
    """Epsilon 0.05, delta 1e-4, 50 rows, phi's V * d of 10^8: the design says about 1e-4."""
    planned = scheduled(GradientMatchingConfig(profile="paper"), n=50, epsilon=0.05, delta=DELTA)
    dimension = 51_200 * 2_048
    bound = signal_to_noise_bound(noise_multiplier=planned.noise_multiplier, n=50, dimension=dimension)
    assert 3e-5 < bound < 3e-4
    sentence = signal_to_noise_warning(planned, dimension=dimension, directions=2048)
    assert sentence is not None
    assert f"at most {bound:.2g}" in sentence
    assert "larger epsilon" in sentence


def test_the_warning_has_two_grades_and_then_none():
    def sentence(noise_multiplier, n, length=None):
        planned = scheduled(make(), n=n, epsilon=math.inf, delta=DELTA)
        noise = {"noise_multiplier": noise_multiplier, "length_noise_multiplier": length}
        return signal_to_noise_warning(planned.model_copy(update=noise), dimension=512, directions=256)

    # Total variation 1/2 is at n C / sigma = 1.349; noise in 256 directions is 16 sigma long. The first grade states
    # the change of probability, the second how many times as strong as the rows the noise is.
    assert "by at most 0.5;" in sentence(100, 134)
    assert "12 times" in sentence(100, 136)
    assert "1 times" in sentence(100, 1599)
    assert sentence(100, 1601) is None
    assert sentence(0.0, 5) is None
    # A precise length would give the rows away, whatever the noise on the target.
    assert "12 times" in sentence(100, 134, length=1.0)


def test_the_stated_change_of_probability_is_that_of_the_gaussian():
    """Total variation of N(0, 1) and N(t, 1) by numeric integration, t = n C / sigma."""
    noise, n = 100.0, 50
    planned = scheduled(make(), n=n, epsilon=math.inf, delta=DELTA).model_copy(update={"noise_multiplier": noise})
    shift = n / noise
    total = mpmath.quad(lambda x: abs(mpmath.npdf(x) - mpmath.npdf(x - shift)) / 2, [-12, shift / 2, 12])
    sentence = signal_to_noise_warning(planned, dimension=10, directions=10)
    assert f"at most {float(total):.2g};" in sentence
