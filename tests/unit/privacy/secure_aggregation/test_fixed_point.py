"""Integers of bounded norm: clipping after rounding, exact sensitivity, words that wrap where they should."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.errors import InputError, UnderstudyError
from understudy.privacy.secure_aggregation.fixed_point import (
    decode,
    encode,
    from_words,
    integer_sensitivity,
    largest_total,
    parse_words,
    squared_norm,
    to_words,
    word_bits,
)

vectors = st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=60)


def clipped(values):
    """An independent clip to norm 1."""
    norm = math.sqrt(math.fsum(v * v for v in values))
    return np.array(values) / max(1.0, norm)


@given(vectors, st.integers(1, 24))
def test_no_vector_is_longer_than_the_bound_or_far_from_its_value(values, bits):
    vector = clipped(values)
    integers = encode(vector, bits=bits)
    assert sum(int(x) ** 2 for x in integers) <= 4**bits
    assert squared_norm(integers) == sum(int(x) ** 2 for x in integers)
    exact = np.array([float(v) * 2**bits for v in vector])
    off = np.abs(exact - integers)
    assert off.max() <= 1.0
    # Clipping moves inwards only.
    assert (off[np.abs(integers) > np.abs(exact)] <= 0.5).all()
    assert ((np.sign(integers) == np.sign(exact)) | (integers == 0)).all()


@given(st.integers(2, 400), st.integers(1, 12), st.integers(0, 2**32))
def test_adding_or_removing_a_client_moves_the_sum_by_at_most_the_sensitivity(d, bits, seed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((3, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    encoded = [encode(row, bits=bits) for row in rows]
    full, without = sum(encoded), encoded[0] + encoded[2]
    assert sum(int(x) ** 2 for x in full - without) <= integer_sensitivity(d, bits) ** 2


def test_rounding_alone_would_break_the_bound():
    """Half of 18,000 coordinates lie just above a half step, so that rounding lengthens the vector."""
    d, bits = 18_000, 12
    vector = np.full(d, 1 / math.sqrt(d))
    scale = 2**bits / math.sqrt(d)
    vector[: d // 2] = (math.floor(scale) + 0.51) / 2**bits
    rest = (1 - (vector[: d // 2] ** 2).sum()) / (d - d // 2)
    vector[d // 2 :] = math.sqrt(rest)
    rounded = np.rint(vector * 2**bits)
    assert (rounded**2).sum() > 4**bits
    integers = encode(vector, bits=bits)
    assert squared_norm(integers) <= 4**bits
    # Nothing is lost beyond what the bound asks for.
    assert squared_norm(integers) > 4**bits - 2 * int(np.abs(integers).max())


def test_clipping_costs_a_typical_vector_next_to_nothing():
    d, bits = 18_000, 12
    vector = np.random.default_rng(0).standard_normal(d)
    vector /= np.linalg.norm(vector)
    integers = encode(vector, bits=bits) / 2**bits
    assert integers @ vector > 1 - 1e-4
    assert np.sqrt(np.square(integers - vector).mean()) * 2**bits < 0.3


@pytest.mark.parametrize("scale", [1 + 1e-12, 1 - 1e-12, 1.0])
@pytest.mark.parametrize("bits", [1, 12, 24])
def test_float_rounding_of_the_norm_is_taken_off(scale, bits):
    for d in (1, 2, 4, 16, 64):
        assert squared_norm(encode(np.full(d, scale / math.sqrt(d)), bits=bits)) <= 4**bits


@pytest.mark.parametrize(
    "bad", [np.full(4, 0.6), np.array([math.nan, 0.0]), np.array([math.inf]), np.zeros((2, 2)), np.zeros(0)]
)
def test_a_client_out_of_range_is_refused_without_a_word_about_its_vector(bad):
    with pytest.raises(InputError, match="expected a") as caught:
        encode(bad, bits=8)
    assert "0.6" not in str(caught.value)
    assert "nan" not in str(caught.value)


@pytest.mark.parametrize(("d", "bits"), [(0, 8), (5, 0), (5, 25)])
def test_sensitivity_refuses_what_is_out_of_range(d, bits):
    with pytest.raises(InputError, match="fractional bits"):
        integer_sensitivity(d, bits)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20))
def test_words_bring_integers_back(values):
    integers = np.array(values, dtype=np.int64)
    for width in (32, 64):
        words = to_words(integers, width)
        assert [int(word) for word in words] == [value % 2**width for value in values]
        assert from_words(words, width).tolist() == values
        assert parse_words(words.tobytes(), d=len(values), width=width).tolist() == words.tolist()


def test_sums_of_words_wrap():
    one = to_words(np.array([2**31 - 1, -5], dtype=np.int64), 32)
    two = to_words(np.array([1, 3], dtype=np.int64), 32)
    assert from_words(one + two, 32).tolist() == [-(2**31), -2]


@pytest.mark.parametrize("length", [0, 11, 13, 24])
def test_a_message_of_another_length_is_refused(length):
    with pytest.raises(UnderstudyError, match="12 bytes"):
        parse_words(bytes(length), d=3, width=32)


def test_words_hold_the_largest_sum():
    assert [word_bits(2**31 - 1), word_bits(2**31), word_bits(2**63 - 1)] == [32, 64, 64]
    with pytest.raises(InputError, match="2\\^63"):
        word_bits(2**63)
    without = largest_total(750, 384, bits=12, share_scale=0.0)
    assert without == 750 * 4096
    tail = largest_total(750, 384, bits=12, share_scale=200.0) - without
    deviation = 200.0 * math.sqrt(750)
    assert 2 * 384 * math.exp(-((tail / deviation) ** 2) / 2) <= 2.0**-60
    assert tail < 11 * deviation


def test_decoding_divides_by_the_scale():
    assert decode(np.array([4096, -2048, 1]), bits=12).tolist() == [1.0, -0.5, 2.0**-12]
