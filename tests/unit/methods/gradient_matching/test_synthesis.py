"""Which texts are matched, wave by wave, when a run stops asking for more, and what it then delivers."""

import pyarrow as pa
import pytest

from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.shards import further_shards, shards
from understudy.methods.gradient_matching.synthesis import select_texts

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
    assert (
        further_shards(config(), {"drawn": {"bad": 8, "good": 6, "so-so": 6}, "shortfall": {}, "unbalanced": {}}, NAMES)
        == []
    )


def test_a_label_gets_what_it_lacks_over_the_share_that_was_kept_under_new_numbers():
    report = {"drawn": {"bad": 8, "good": 6, "so-so": 6}, "shortfall": {"bad": 2}, "unbalanced": {"so-so": 1}}
    # bad: 2 of 4 kept from 8, so 2 lacking ask for 8 more; so-so: 2 of 3 kept from 6, so 1 lacking asks for 3.
    assert flat(further_shards(config(), report, NAMES)) == [(0, n) for n in range(8, 16)] + [(2, 6), (2, 7), (2, 8)]


@pytest.mark.parametrize("kept", [0, 1])
def test_waves_end_at_the_bound_whatever_is_kept(kept):
    drawn, waves = {"bad": 8, "good": 6, "so-so": 6}, 0
    while more := flat(
        further_shards(config(), {"drawn": drawn, "shortfall": {"good": 3 - kept}, "unbalanced": {}}, NAMES)
    ):
        assert {label for label, _ in more} == {1}
        assert more[0] == (1, drawn["good"])
        drawn, waves = {**drawn, "good": drawn["good"] + len(more)}, waves + 1
    assert drawn["good"] == 15
    assert 1 <= waves <= 2
    report = {"drawn": drawn, "shortfall": {"good": 3}, "unbalanced": {}}
    assert further_shards(config(filter={"max_draws": 1.0}), report, NAMES) == []


def test_what_only_balancing_dropped_fills_a_label_and_asks_for_further_texts(make_base):
    """Losses of `good` lie above all others: a quarter of its texts would stay, but the rows were asked for."""
    labels = [0] * 8 + [1] * 8
    losses = [0.1 + 0.01 * row for row in range(8)] + [0.9 - 0.01 * row for row in range(8)]
    matched = pa.table(
        {
            "text": [*(f"bad {row}" for row in range(8)), *(f"good {row}" for row in range(8))],
            "label": pa.array(labels, pa.int32()),
            "emitted_loss": losses,
            **{name: [[0.5]] * 16 for name in ("relaxed", "losses", "residuals", "swapped")},
        }
    )
    words = {"words": {"bad": "bad", "good": "good"}, "template": " It was"}
    asked = config(samples=8, verbalizer=words, filter={"label_check": False, "max_draws": 3.0})
    found = select_texts([matched], base=make_base(), config=asked, label_names=("bad", "good"))
    # Two of eight pass; the two lowest of the others join them, which are the later rows.
    assert found.table["text"].to_pylist() == [*(f"bad {n}" for n in range(4)), *(f"good {n}" for n in (7, 6, 5, 4))]
    assert (found.shortfall, found.unbalanced) == ({}, {"good": 2})
    assert found.dropped["good"] == {"empty": 0, "high_loss": 0, "unbalanced": 4, "surplus": 0}
    assert found.dropped["bad"]["surplus"] == 4
    # 2 of 8 kept, so 2 lacking ask for 8 more, and 12 are the most.
    assert flat(further_shards(asked, found.report(), ("bad", "good"))) == [(1, n) for n in range(8, 12)]
