"""Poisson masks: a slot's bit is a function of the key and the slot alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.privacy.noise import uniform_words
from understudy.privacy.sampling import poisson_mask

KEY = bytes(range(32))


@given(st.integers(0, 500), st.integers(0, 500), st.floats(0, 1))
def test_more_slots_do_not_change_the_first_ones(n, m, probability):
    few, many = sorted((n, m))
    assert torch.equal(
        poisson_mask(KEY, many, probability=probability)[:few], poisson_mask(KEY, few, probability=probability)
    )


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_larger_probability_takes_in_more(p, q):
    low, high = sorted((p, q))
    assert bool((poisson_mask(KEY, 300, probability=low) <= poisson_mask(KEY, 300, probability=high)).all())


def test_certain_cases():
    assert bool(poisson_mask(KEY, 100, probability=1.0).all())
    assert not bool(poisson_mask(KEY, 100, probability=0.0).any())
    assert poisson_mask(KEY, 0, probability=0.3).shape == (0,)
    assert poisson_mask(KEY, 7, probability=0.3).dtype == torch.bool


def test_bit_compares_the_slot_s_word_with_the_probability():
    words = uniform_words(KEY, 50).tolist()
    expected = [w < 2**62 for w in words]
    assert poisson_mask(KEY, 50, probability=0.25).tolist() == expected


@pytest.mark.parametrize(("n", "probability"), [(-1, 0.5), (3, -0.1), (3, 1.1), (3, float("nan"))])
def test_refuses_what_is_out_of_range(n, probability):
    with pytest.raises(ValueError, match="probability"):
        poisson_mask(KEY, n, probability=probability)
