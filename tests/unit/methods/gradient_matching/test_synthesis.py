"""Which texts are matched, wave by wave, and when a run stops asking for more."""

import pytest

from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.shards import further_shards, shards

NAMES = ("bad", "good", "so-so")


def config(**fields: object) -> GradientMatchingConfig:
    sizes = {"samples": 10, "filter": {"oversample": 2.0, "max_draws": 5.0}, "matching": {"shard_size": 6}}
    return GradientMatchingConfig.model_validate(sizes | fields)


def flat(parts: list) -> list:
    assert all(0 < len(part) <= 6 for part in parts)
    return [example for part in parts for example in part]


def test_the_first_wave_has_the_oversampled_share_of_each_label():
    examples = flat(shards(config(), 3))
    assert [sum(label == own for label, _ in examples) for own in range(3)] == [8, 6, 6]
    assert len(set(examples)) == 20


def test_nothing_more_is_matched_when_nothing_is_missing():
    assert further_shards(config(), {"drawn": {"bad": 8, "good": 6, "so-so": 6}, "shortfall": {}}, NAMES) == []


def test_a_label_gets_what_it_lacks_over_the_share_that_was_kept_under_new_numbers():
    report = {"drawn": {"bad": 8, "good": 6, "so-so": 6}, "shortfall": {"bad": 2, "so-so": 1}}
    # bad: 2 of 4 kept from 8, so 2 lacking ask for 8 more; so-so: 2 of 3 kept from 6, so 1 lacking asks for 3.
    assert flat(further_shards(config(), report, NAMES)) == [(0, n) for n in range(8, 16)] + [(2, 6), (2, 7), (2, 8)]


@pytest.mark.parametrize("kept", [0, 1])
def test_waves_end_at_the_bound_whatever_is_kept(kept):
    drawn, waves = {"bad": 8, "good": 6, "so-so": 6}, 0
    while more := flat(further_shards(config(), {"drawn": drawn, "shortfall": {"good": 3 - kept}}, NAMES)):
        assert {label for label, _ in more} == {1}
        assert more[0] == (1, drawn["good"])
        drawn, waves = {**drawn, "good": drawn["good"] + len(more)}, waves + 1
    assert drawn["good"] == 15
    assert 1 <= waves <= 2
    assert further_shards(config(filter={"max_draws": 1.0}), {"drawn": drawn, "shortfall": {"good": 3}}, NAMES) == []
