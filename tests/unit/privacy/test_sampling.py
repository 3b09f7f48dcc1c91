"""Poisson masks: a slot's bit is a function of the key and the slot alone."""

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given
from hypothesis import strategies as st

from understudy.privacy import sampling
from understudy.privacy.noise import uniform_words
from understudy.privacy.sampling import poisson_mask, poisson_mask_of

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


def identifiers(*words: int) -> np.ndarray:
    """Of units whose encrypted identifiers begin with these words; behind each is one that would never take part."""
    blocks = b"".join(word.to_bytes(8, "little") + b"\xff" * 8 for word in words)
    decryptor = Cipher(AES256(KEY), ECB()).decryptor()
    return np.frombuffer(decryptor.update(blocks), np.uint8).reshape(-1, 16)


# Words that take part at most: below probability * 2^64, rounded down.
@pytest.mark.parametrize(
    ("probability", "words"), [(0.25, 2**62), (3 * 2.0**-64, 3), (2.5 * 2.0**-64, 2), (2.0**-65, 0)]
)
def test_no_more_words_take_part_than_the_probability_says(probability, words, monkeypatch):
    around = [0, max(words - 1, 0), words, words + 1]
    expected = [word < words for word in around]
    assert poisson_mask_of(KEY, identifiers(*around), probability=probability).tolist() == expected
    monkeypatch.setattr(sampling, "uniform_words", lambda key, n: np.array(around[:n], dtype=np.uint64))
    assert poisson_mask(KEY, len(around), probability=probability).tolist() == expected


@pytest.mark.parametrize(("n", "probability"), [(-1, 0.5), (3, -0.1), (3, 1.1), (3, float("nan"))])
def test_refuses_what_is_out_of_range(n, probability):
    with pytest.raises(ValueError, match="probability"):
        poisson_mask(KEY, n, probability=probability)
