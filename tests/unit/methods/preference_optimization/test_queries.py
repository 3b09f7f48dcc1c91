"""The plan of the rounds: one series of queries, its event within the target, masked sums with their share of delta."""

import math

import pytest
from tests_support import scheduled_by

from understudy.errors import InputError
from understudy.methods.preference_optimization import queries
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.queries import QuerySchedule
from understudy.privacy.accounting import epsilon_pld
from understudy.privacy.queries import (
    Query,
    check_epsilon_of,
    event_delta,
    event_of,
    queries_from_json,
    queries_to_json,
)

scheduled = scheduled_by(queries)
DELTA = 1e-4
N = 300


def make_config(*, masked=False, probability=1.0, rounds=3):
    scoring = {"aggregation": "masked" if masked else "trusted"}
    return PreferenceOptimizationConfig(rounds=rounds, scoring=scoring, clients={"sampling_probability": probability})


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("calibrations")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("probability", [1.0, 0.25])
def test_the_list_of_queries_is_one_series_of_scores(masked, probability):
    planned = scheduled(make_config(masked=masked, probability=probability), n=N, epsilon=math.inf, delta=DELTA)
    planned = planned.model_copy(update={"noise_multiplier": 1.5})
    expected = Query(
        kind="masked_sum" if masked else "gaussian_sum",
        name="scores",
        units=N,
        steps=3,
        sensitivity=1.0,
        noise_multiplier=1.5,
        batch="participation" if probability < 1 else None,
        sampling_probability=probability,
    )
    assert planned.queries == (expected,)
    assert queries_from_json(queries_to_json(planned.queries)) == planned.queries
    assert QuerySchedule.model_validate_json(planned.model_dump_json()) == planned


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("probability", [1.0, 0.25])
def test_the_list_costs_what_was_asked_for(cache, masked, probability):
    config = make_config(masked=masked, probability=probability)
    planned = scheduled(config, n=N, epsilon=2.0, delta=DELTA, cache=cache)
    check_epsilon_of(planned.queries, epsilon=2.0, delta=DELTA)
    left = event_delta(planned.queries, epsilon=2.0, delta=DELTA)
    assert left < DELTA if masked else left == DELTA
    assert 0.99 * 2.0 < epsilon_pld(event_of(planned.queries), left) <= 2.0


@pytest.mark.parametrize("masked", [False, True])
def test_infinite_epsilon_means_no_noise(masked):
    planned = scheduled(make_config(masked=masked), n=N, epsilon=math.inf, delta=DELTA)
    assert planned.noise_multiplier == 0
    assert planned.queries[0].noise_multiplier == 0


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": math.nan}, {"delta": 0.0}, {"n": 0}])
def test_values_out_of_range_are_refused(wrong):
    with pytest.raises(InputError):
        scheduled(make_config(), **{"n": N, "epsilon": 2.0, "delta": DELTA, **wrong})
