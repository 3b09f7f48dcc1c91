import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.evaluation.texts.memorization import longest_verbatim_match
from understudy.evaluation.texts.words import join, number_ngrams, tokenize, tokenized, words

texts = st.lists(st.lists(st.sampled_from("abc"), max_size=9).map(" ".join), max_size=6)


def test_case_spacing_and_typographic_variants_are_one_word():
    assert words("It’s  ﬁne.\nREALLY") == ("it's", "fine", ".", "really")
    assert words("“No” – it’s O’Neil’s") == words("\"No\" - it's O'Neil's")


def test_invisible_characters_split_no_word():
    """A model writes none of the soft hyphens of a web page, and its copy of the text is a copy all the same."""
    row = "the co\u00adoper\u200bation of\u2060 patients is\ufeff re\u200cgu\u200dlar"
    assert words(row) == ("the", "cooperation", "of", "patients", "is", "regular")
    made, private = tokenize(["The cooperation of patients is regular"], [row])
    assert longest_verbatim_match(made, private).words == 6


def test_underscores_digits_and_other_scripts_are_words():
    assert words("a_b 3,5 größe 단어") == ("a_b", "3", ",", "5", "grösse", "단어")


def test_a_script_without_spaces_is_read_character_by_character():
    """Otherwise a copied clause would be one word, and a copy with a word more would share nothing."""
    assert words("我今天。abc我") == ("我", "今", "天", "。", "abc", "我")
    row = "患者在五月三日被诊断为糖尿病需要长期服药"
    made, private = tokenize([row + "了吗"], [row])
    assert longest_verbatim_match(made, private).words == len(row)


def test_empty_and_blank_texts_have_no_words():
    assert words("") == words(" \n\t") == ()


def tuples(rows, n):
    """The n-grams that begin at each word, None where the text is too short: by hand."""
    return [
        tuple(tokens[i : i + n]) if i + n <= len(tokens) else None
        for tokens in map(words, rows)
        for i in range(len(tokens))
    ]


@settings(deadline=None)  # the first call of pyarrow imports pandas
@given(texts, st.integers(1, 5))
def test_runs_have_equal_numbers_if_and_only_if_their_words_are_equal(rows, longest):
    (read,) = tokenize(rows)
    for n, numbers in enumerate(number_ngrams(read, longest), 1):
        grams = tuples(rows, n)
        assert len(numbers) == len(grams)
        assert [number < 0 for number in numbers] == [gram is None for gram in grams]
        pairs = {(number, gram) for number, gram in zip(numbers.tolist(), grams, strict=True) if gram is not None}
        distinct = {gram for gram in grams if gram is not None}
        assert len(pairs) == len(distinct)
        assert {number for number, _ in pairs} == set(range(len(distinct)))


def test_a_run_has_at_least_one_word():
    with pytest.raises(ValueError, match="longest=0"):
        next(number_ngrams(tokenize(["a"])[0], 0))


@given(texts, texts)
def test_texts_of_two_sets_are_equal_when_their_words_are(one, other):
    made, read = tokenize(one, other)
    for i, text in enumerate(made.texts()):
        for j, reference in enumerate(read.texts()):
            assert (text == reference) == (words(one[i]) == words(other[j]))


@given(texts, st.data())
def test_rows_taken_and_sets_joined_are_those_of_tokenising_them(rows, data):
    some = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8)) if rows else []
    whole, chosen = tokenize(rows, [rows[i] for i in some])
    taken = whole.take(np.array(some, np.int64))
    assert taken.ids.tolist() == chosen.ids.tolist()
    assert taken.lengths.tolist() == chosen.lengths.tolist()
    both = join(whole, taken)
    assert both.texts() == whole.texts() + chosen.texts()
    assert both.words_left().tolist() == [left for n in both.lengths.tolist() for left in range(n, 0, -1)]


def test_sets_that_were_tokenised_apart_are_refused():
    (one,), (other,) = tokenize(["a"]), tokenize(["b"])
    assert tokenized(one, one) == (one, one)
    for sets in ((one, other), (one, ["b"])):
        with pytest.raises(ValueError, match="one call of `tokenize`"):
            tokenized(*sets)
