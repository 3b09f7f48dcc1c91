import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.evaluation.texts import memorization
from understudy.evaluation.texts.words import tokenized, words


def ngram_overlap(synthetic, reference, n):
    """Share of the distinct word n-grams of `synthetic` that occur in `reference`."""
    return memorization._overlaps(*tokenized(synthetic, reference), lengths=(n,))[n][0]


def test_overlap_by_hand():
    synthetic = ["the cat sat on the mat", "a dog ran"]
    reference = ["The cat sat!", "on the mat", "a dog barked"]
    # distinct 3-grams: 4 + 1; in the reference: "the cat sat", "on the mat"
    assert ngram_overlap(synthetic, reference, 3) == pytest.approx(2 / 5)
    assert ngram_overlap(synthetic, reference, 4) == 0.0


def test_overlap_counts_distinct_ngrams_not_occurrences():
    assert ngram_overlap(["a b c", "a b c", "x y z"], ["a b c"], 3) == 0.5


def test_runs_do_not_cross_rows():
    assert ngram_overlap(["a b c"], ["a b", "c"], 3) == 0.0
    assert memorization.longest_verbatim_match(["a b c"], ["a b", "b c"]).words == 2


def test_nothing_long_enough_overlaps_nothing():
    assert ngram_overlap(["a b"], ["a b"], 3) == 0.0


def test_duplicates_by_hand():
    assert memorization.duplicate_share(["A b.", "a  B .", "c"], ["a b ."]) == pytest.approx(2 / 3)
    assert memorization.duplicate_share([], ["a"]) == 0.0


def test_longest_match_names_the_rows():
    texts = ["nothing here", "so my number is 5 5 5 0 1 9 okay", "my number"]
    reference = ["unrelated words", "x", "call me , my number is 5 5 5 0 1 9 !"]
    found = memorization.longest_verbatim_match(texts, reference)
    assert (found.words, found.row, found.reference_row) == (9, 1, 2)


@pytest.mark.parametrize(
    ("texts", "reference"), [([], []), (["a"], []), ([], ["a"]), (["a b"], ["c d"]), ([""], [" "])]
)
def test_no_match(texts, reference):
    assert memorization.longest_verbatim_match(texts, reference) == memorization.VerbatimMatch(0, -1, -1)


def test_a_set_matches_itself_whole():
    rows = ["a b", "a b c d e", "c d"]
    found = memorization.longest_verbatim_match(rows, rows)
    assert (found.words, found.row, found.reference_row) == (5, 1, 1)


rows_of_letters = st.lists(st.lists(st.sampled_from("ab"), max_size=9).map(" ".join), max_size=5)


@given(rows_of_letters, rows_of_letters)
def test_longest_match_agrees_with_trying_everything(texts, reference):
    best = max(
        (
            n
            for text in texts
            for other in reference
            for n in range(1, 10)
            if {words(text)[i : i + n] for i in range(len(words(text)) - n + 1)}
            & {words(other)[i : i + n] for i in range(len(words(other)) - n + 1)}
        ),
        default=0,
    )
    found = memorization.longest_verbatim_match(texts, reference)
    assert found.words == best
    if best:
        run, other = words(texts[found.row]), words(reference[found.reference_row])
        runs = {run[i : i + best] for i in range(len(run) - best + 1)}
        assert any(other[i : i + best] in runs for i in range(len(other) - best + 1))


def test_same_size_keeps_order_and_the_smaller_set():
    private, holdout = memorization.same_size([str(i) for i in range(100)], ["a", "b", "c"], seed=1)
    assert holdout == ["a", "b", "c"]
    assert len(private) == 3
    assert private == sorted(private, key=int)
    assert memorization.same_size(range(100), "abc", seed=1)[0] != memorization.same_size(range(100), "abc", seed=2)[0]


def test_a_holdout_larger_than_the_private_set_is_cut_too():
    private, holdout = memorization.same_size(["a", "b"], [str(i) for i in range(50)], seed=1)
    assert private == ["a", "b"]
    assert len(holdout) == 2


def test_memorised_text_stands_out_against_the_holdout_and_fresh_text_does_not():
    generator = np.random.default_rng(0)
    vocabulary = [f"w{i}" for i in range(12)]

    def texts(n):
        return [" ".join(generator.choice(vocabulary, 12)) for _ in range(n)]

    private, holdout, fresh = texts(200), texts(80), texts(60)
    for synthetic, is_copy in ((private[:30] + fresh, True), (fresh, False)):
        beside = memorization.ngram_overlap_beside(synthetic, private[:80], holdout, seed=0)
        assert sorted(beside) == [3, 4, 5, 6, 7]
        gap = beside[5].private - beside[5].holdout
        assert (gap > 0.2) == is_copy
    assert beside[3].private > beside[5].private  # longer runs are rarer


def test_ten_thousand_rows_take_seconds():
    generator = np.random.default_rng(0)
    vocabulary = np.array([f"w{i}" for i in range(5000)])
    texts = [" ".join(row) for row in vocabulary[generator.integers(0, 5000, (20_000, 25))]]
    texts[15_000] = " ".join(texts[3].split()[:20])
    start = time.perf_counter()
    found = memorization.longest_verbatim_match(texts[:10_000], texts[10_000:])
    assert (found.words, found.row, found.reference_row) == (20, 3, 5_000)
    assert time.perf_counter() - start < 30
