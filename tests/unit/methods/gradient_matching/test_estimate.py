"""What a dry run says of a matching's time, for a clock whose parts are known, and of a real one."""

import math

import pytest
from tests_support import write_random_model

from understudy.methods.gradient_matching import estimate, optimise
from understudy.methods.gradient_matching.config import GradientMatchingConfig, MatchingConfig
from understudy.methods.gradient_matching.method import METHOD
from understudy.methods.method import Promise
from understudy.models.loading import load_base

EVALUATION, PROJECTION, SWEEP = 3.0, 7.0, 11.0


def seconds(matching: MatchingConfig) -> float:
    """What a matching takes where nothing but evaluations, projections and sweeps take time; the last projects too."""
    minimisations = (matching.rounds + 1) * matching.inner_steps * EVALUATION
    return minimisations + (matching.rounds + 1) * PROJECTION + matching.swap_sweeps * SWEEP


@pytest.mark.parametrize("profile", ["tiny", "paper"])
@pytest.mark.parametrize("inner_steps", [1, 2, 10])
def test_the_parts_of_a_short_matching_add_up_to_the_whole(profile, inner_steps):
    matching = GradientMatchingConfig(profile=profile, matching={"inner_steps": inner_steps}).matching
    short = estimate.short_matching(matching)
    one = short.inner_steps * EVALUATION
    stamps = 2 * one + PROJECTION, one + PROJECTION, PROJECTION + short.swap_sweeps * SWEEP
    assert estimate.whole_seconds(stamps, matching) == pytest.approx(seconds(matching))


def test_a_clock_that_jumps_gives_no_negative_time():
    matching = MatchingConfig()
    assert estimate.whole_seconds((1.0, 2.0, 0.5), matching) == pytest.approx((matching.rounds + 1) * 2.0)


def test_a_dry_run_times_what_the_run_will_do(tmp_path):
    config = GradientMatchingConfig(
        model=str(write_random_model(tmp_path / "random")),
        samples=40,
        length=4,
        max_length=8,
        verbalizer={"template": " is", "words": "names"},
        matching={"rounds": 400_000, "batch_size": 3},
        projection={"k": 5},
        filter={"label_check": False},
    )
    queries = METHOD.charge.queries(config, n=40, epsilon=8.0, delta=1e-3)
    found = METHOD.preparation.estimate(config, Promise(queries, 40, 8.0, 1e-3, ("bad", "good")))
    assert found["expected_release_minutes"] >= 0
    assert found["expected_matching_minutes"] > 1
    assert math.isfinite(found["expected_matching_minutes"])
    assert found["expected_peak_memory_mib"] > 100


def test_a_dry_run_of_all_layers_counts_every_value_and_slope_of_one_text(tmp_path, monkeypatch):
    """Each text takes a backward pass through all layers for each value of f: a batch of them takes minutes."""
    config = GradientMatchingConfig(
        model=str(write_random_model(tmp_path / "random")),
        samples=3,
        length=4,
        max_length=8,
        verbalizer={"template": " is", "words": "names"},
        matching={"gradient": "full", "rounds": 2, "inner_steps": 3, "swap_sweeps": 2},
        projection={"k": 5},
        filter={"label_check": False},
    )
    base, slopes, values, asked = load_base(config), [], [], optimise.full_objective

    def counted(*given):
        f = asked(*given)
        return lambda x: (slopes if x.requires_grad else values).append(len(x)) or f(x)

    promise = Promise(METHOD.charge.queries(config, n=100, epsilon=8.0, delta=1e-3), 100, 8.0, 1e-3, ("bad", "good"))
    target = estimate._target_of_made_up_rows(base, config, promise, 8)
    monkeypatch.setattr(optimise, "full_objective", counted)
    monkeypatch.setattr(
        estimate, "_seconds", lambda work: 100.0 if "slope" in work.__qualname__.split(".")[-1] else 1.0
    )
    expected = estimate._matching_seconds(base, target, config)
    assert (slopes, values) == ([1], []), "one text is read, whatever the batch"
    slopes.clear()
    optimise.match_shard(base, target, config=config, examples=[(0, i) for i in range(6)], public_seed=0)
    assert (sum(slopes), sum(values)) == (6 * 11, 6 * (2 + 3 + 2 * 4))
    assert expected == 100.0 * sum(slopes) + sum(values)
