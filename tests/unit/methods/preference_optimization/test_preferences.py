"""Ranks to pairs, by definition and by sorting with plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.errors import InputError
from understudy.methods.preference_optimization.preferences import drop_identical, preference_pairs, recovery_rate


@settings(max_examples=200, deadline=None)
@given(data=st.data(), prompts=st.integers(0, 5), per_prompt=st.integers(2, 6))
def test_chosen_is_rank_one_and_rejected_rank_l_with_ties_by_index(data, prompts, per_prompt):
    value = st.sampled_from([-1.5, -0.0, 0.0, 0.25, 3.0])
    scores = data.draw(st.lists(value, min_size=prompts * per_prompt, max_size=prompts * per_prompt))
    rank = data.draw(st.integers(2, per_prompt))
    expected = []
    for prompt in range(prompts):
        own = range(prompt * per_prompt, (prompt + 1) * per_prompt)
        ranked = sorted(own, key=lambda j: (-scores[j], j))
        expected.append([ranked[0], ranked[rank - 1]])
    found = preference_pairs(np.array(scores, dtype=np.float32), per_prompt=per_prompt, rejected_rank=rank)
    assert found.dtype == np.int64
    assert found.shape == (prompts, 2)
    assert found.tolist() == expected


def test_bad_ranks_and_scores_are_refused():
    scores = np.zeros(6)
    for rank in (1, 4):
        with pytest.raises(InputError, match=f"rejected_rank={rank}: .*per_prompt=3"):
            preference_pairs(scores, per_prompt=3, rejected_rank=rank)
    with pytest.raises(ValueError, match="whole prompts"):
        preference_pairs(scores, per_prompt=4, rejected_rank=2)
    with pytest.raises(ValueError, match="finite"):
        preference_pairs(np.array([0.0, np.nan]), per_prompt=2, rejected_rank=2)


def test_prompts_with_two_equal_texts_are_dropped_and_counted():
    pairs = np.array([[1, 0], [2, 3], [5, 4]])
    kept = drop_identical(pairs, ["a", "b", "same", "same", "c", "c "])
    assert kept.prompts.tolist() == [0, 2]
    assert kept.pairs.tolist() == [[1, 0], [5, 4]]
    assert kept.identical == 1
    none = drop_identical(pairs[1:2], ["", "", "x", "x"])
    assert none.pairs.shape == (0, 2)
    assert none.identical == 1
    assert drop_identical(np.zeros((0, 2), np.int64), []).pairs.shape == (0, 2)


def test_recovery_counts_pairs_whose_noiseless_order_agrees():
    noiseless = np.array([0.0, 1.0, 2.0, 2.0, 5.0, 1.0])
    assert recovery_rate(np.array([[1, 0], [2, 3], [5, 4], [4, 5]]), noiseless) == 0.5
    assert recovery_rate(np.zeros((0, 2), np.int64), noiseless) == 0.0


def test_recovery_is_whole_without_noise_and_near_a_half_in_noise():
    generator = np.random.default_rng(0)
    noiseless = generator.normal(size=20_000)
    assert recovery_rate(preference_pairs(noiseless, per_prompt=10, rejected_rank=5), noiseless) == 1.0
    drowned = noiseless + 1000 * generator.normal(size=20_000)
    assert recovery_rate(preference_pairs(drowned, per_prompt=10, rejected_rank=5), noiseless) == pytest.approx(
        0.5, abs=0.05
    )
