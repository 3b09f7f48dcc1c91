"""The plan of the rounds: one series of queries, its event within the target, masked sums with their share of delta."""

import math

import numpy as np
import pytest
from tests_support import scheduled_by

from understudy.errors import InputError, UnderstudyError
from understudy.methods.method import Promise
from understudy.methods.preference_optimization import queries
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.method import METHOD
from understudy.methods.preference_optimization.pool import ClientPool
from understudy.methods.preference_optimization.queries import QuerySchedule
from understudy.methods.preference_optimization.release import release_scores
from understudy.privacy.accounting import epsilon_pld
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
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


@pytest.mark.parametrize(("n", "prompts"), [(10**6 + 1, 16), (N, 20_000)])
def test_more_than_the_rounding_of_sums_is_covered_for_is_refused(n, prompts):
    config = PreferenceOptimizationConfig(candidates={"prompts": prompts, "per_prompt": 6})
    with pytest.raises(InputError, match="at most 1,000,000 units and 100,000 candidates"):
        queries.queries_of(config, n=n, epsilon=math.inf, delta=1e-8)


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


@pytest.mark.parametrize(
    ("n", "scoring", "labels", "refused"),
    [
        (3, {}, (), "n=3"),
        (100, {"fractional_bits": 4}, (), "fractional_bits=4"),
        (100, {"colluding": 30}, (), "colluding=30"),
        (100, {"survivors": 0.2}, (), "survivors=0.2"),
        (40, {}, (), None),
        (40, {"colluding": 2, "survivors": 0.9}, ("bad", "good"), None),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.9])
def test_masked_settings_that_scoring_would_refuse_are_refused_before_the_charge(n, scoring, labels, refused, noise):
    """What a run says about itself is asked for before it is charged; scoring comes after."""
    config = PreferenceOptimizationConfig(
        rounds=1,
        candidates={"prompts": 2, "per_prompt": 4},
        scoring={"aggregation": "masked", **scoring},
    )
    schedule = QuerySchedule(n=n, rounds=1, sampling_probability=1.0, noise_multiplier=noise, masked=True)
    promise = Promise(schedule.queries, n, math.inf, 1e-3, labels)
    random, count = np.random.default_rng(0), 8 * max(1, len(labels))
    pool = ClientPool(random.normal(size=(n, 5)), np.zeros((0, 5), np.float32), np.zeros(0, np.int64), None)

    def scored():
        mechanisms = Mechanisms.live(KeyMaterial(b"s" * 32, "charge", b"t" * 32, schedule.queries))
        return release_scores(
            pool,
            random.normal(size=(count, 5)),
            labels=None,
            config=config,
            schedule=schedule,
            mechanisms=mechanisms,
            round=0,
        )

    if refused is None or (noise == 0 and "fractional_bits" in refused):  # too coarse for noise, and there is none
        assert METHOD.preparation.describe(config, promise).trust.startswith("Each client sees its own texts")
        assert len(scored()) == count
        return
    with pytest.raises(InputError, match=f"masked.*{refused}.*scoring.aggregation=trusted"):
        METHOD.preparation.describe(config, promise)
    with pytest.raises(InputError):
        scored()


@pytest.mark.parametrize("masked", [False, True])
def test_a_round_that_was_scored_is_asked_nothing_else(tmp_path, masked):
    """Candidates may come out differently when a run goes on; the same ones get the same scores, others none."""
    config = make_config(masked=masked, rounds=2)
    schedule = QuerySchedule(n=40, rounds=2, sampling_probability=1.0, noise_multiplier=2.0, masked=masked)
    random = np.random.default_rng(0)
    pool = ClientPool(random.normal(size=(40, 5)), np.zeros((0, 5), np.float32), np.zeros(0, np.int64), None)
    candidates = random.normal(size=(config.candidates.prompts * config.candidates.per_prompt, 5))

    def scored(candidates, *, round=0):
        material = KeyMaterial(b"s" * 32, "charge", b"t" * 32, schedule.queries)
        asked = {"config": config, "schedule": schedule, "mechanisms": Mechanisms.live(material, tmp_path)}
        return release_scores(pool, candidates, labels=None, round=round, **asked)

    first = scored(candidates)
    assert first.equal(scored(candidates))
    with pytest.raises(UnderstudyError, match="a second release that nobody paid for"):
        scored(candidates[::-1])
    assert not first.equal(scored(candidates, round=1))
