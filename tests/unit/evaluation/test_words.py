import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.evaluation.words import ngrams, words


def test_case_spacing_and_typographic_variants_are_one_word():
    assert words("It’s  ﬁne.\nREALLY") == ("it’s", "fine", ".", "really")


def test_underscores_digits_and_other_scripts_are_words():
    assert words("a_b 3,5 größe 日本") == ("a_b", "3", ",", "5", "grösse", "日本")


def test_empty_and_blank_texts_have_no_words():
    assert words("") == words(" \n\t") == ()


def test_ngrams_of_a_short_text_are_none():
    assert list(ngrams(("a", "b"), 3)) == []


def test_ngrams_refuse_a_length_below_one():
    with pytest.raises(ValueError, match="n=0"):
        ngrams(("a",), 0)


@given(st.lists(st.sampled_from("abc"), max_size=12), st.integers(1, 5))
def test_there_are_length_minus_n_plus_one_ngrams(tokens, n):
    found = list(ngrams(tokens, n))
    assert len(found) == max(0, len(tokens) - n + 1)
    assert all(gram == tuple(tokens[i : i + n]) for i, gram in enumerate(found))
