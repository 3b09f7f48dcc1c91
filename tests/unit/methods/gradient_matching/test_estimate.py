"""What a dry run says of a matching's time, for a clock whose parts are known, and of a real one."""

import math

import pytest
from tests_support import write_random_model

from understudy.methods.gradient_matching import estimate
from understudy.methods.gradient_matching.config import GradientMatchingConfig, MatchingConfig
from understudy.methods.gradient_matching.method import METHOD
from understudy.methods.method import Promise

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


def test_texts_of_a_batch_take_their_time_each_but_are_projected_together():
    matching = GradientMatchingConfig().matching
    short = estimate.short_matching(matching)
    one = short.inner_steps * EVALUATION
    stamps = 2 * one + PROJECTION, one + PROJECTION, PROJECTION + short.swap_sweeps * SWEEP
    projections = (matching.rounds + 1) * PROJECTION
    assert estimate.whole_seconds(stamps, matching, texts=32) == pytest.approx(
        32 * (seconds(matching) - projections) + projections
    )


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


def test_a_dry_run_of_all_layers_times_one_text_and_some_rows(tmp_path, monkeypatch):
    """Each text takes a backward pass through all layers for each value of f: a batch of them takes minutes."""
    matched, released = [], []
    match, release = estimate.match_shard, estimate.release_target
    monkeypatch.setattr(estimate, "match_shard", lambda *a, **b: matched.append(len(b["examples"])) or match(*a, **b))
    monkeypatch.setattr(
        estimate, "release_target", lambda rows, *a, **b: released.append(len(rows)) or release(rows, *a, **b)
    )
    config = GradientMatchingConfig(
        model=str(write_random_model(tmp_path / "random")),
        length=4,
        max_length=8,
        verbalizer={"template": " is", "words": "names"},
        matching={"gradient": "full"},
        projection={"k": 5},
        filter={"label_check": False},
    )
    queries = METHOD.charge.queries(config, n=100, epsilon=8.0, delta=1e-3)
    found = METHOD.preparation.estimate(config, Promise(queries, 100, 8.0, 1e-3, ("bad", "good")))
    assert (matched, released) == ([1], [32])
    assert found["expected_matching_minutes"] >= 0
