"""Answers compared by a judge in both orders, means with intervals, and texts as few numbers."""

import numpy as np
import pytest

from understudy.evaluation.answers import pairwise
from understudy.evaluation.answers.pairwise import compare_answers, count_shortened, preference_judge, wilson
from understudy.evaluation.statistics.paired import mean_difference, mean_interval
from understudy.evaluation.texts.term_vectors import term_vectors
from understudy.generation.instructions import PairEncoder
from understudy.models.loading import load_model

ASKED = [f"question {i}" for i in range(20)]
OURS, OTHERS = [f"ours {i}" for i in range(20)], [f"other {i}" for i in range(20)]


def by_name(asked, first, second):
    return np.array([1.0 if text.startswith("ours") else 0.0 for text in first])


def by_place(asked, first, second):
    return np.ones(len(asked))


def test_a_judge_that_reads_decides_and_one_that_takes_the_first_does_not():
    read = compare_answers(ASKED, OURS, OTHERS, judge=by_name)
    assert (read.rate, read.undecided) == (1.0, 0.0)
    assert read.interval[0] > 0.8
    placed = compare_answers(ASKED, OURS, OTHERS, judge=by_place)
    assert (placed.rate, placed.undecided) == (0.5, 1.0)
    turned = compare_answers(ASKED, OTHERS, OURS, judge=by_name)
    assert turned.rate == 0.0
    assert turned.interval[1] == pytest.approx(1 - read.interval[0])


def test_a_judge_without_a_preference_gives_half_a_vote_to_each_side():
    def indifferent(asked, first, second):
        return np.full(len(asked), 0.5)

    def half_decided(asked, first, second):
        return np.array([0.5 if text.startswith("other") else 1.0 for text in first])

    tie = compare_answers(ASKED, OURS, OTHERS, judge=indifferent)
    assert (tie.rate, tie.undecided) == (0.5, 1.0)
    assert tie.interval[0] < 0.5 < tie.interval[1]
    leaning = compare_answers(ASKED, OURS, OTHERS, judge=half_decided)
    assert (leaning.rate, leaning.undecided) == (0.75, 0.0)


def test_wilson_is_that_of_a_table():
    """9 of 10: 0.596 to 0.982 (Brown, Cai and DasGupta 2001)."""
    assert wilson(0.9, 10) == pytest.approx((0.596, 0.982), abs=1e-3)


def test_a_language_model_as_judge_gives_a_share_for_each_pair():
    base = load_model("tiny-llama")
    judge = preference_judge(base, PairEncoder(base.tokenizer), ([5], [6]))
    found = judge(ASKED[:3], OURS[:3], OTHERS[:3])
    assert found.shape == (3,)
    assert ((found > 0) & (found < 1)).all()
    turned = preference_judge(base, PairEncoder(base.tokenizer), ([6], [5]))(ASKED[:3], OURS[:3], OTHERS[:3])
    assert found + turned == pytest.approx(np.ones(3))


def test_the_question_and_both_answers_stay_where_the_request_is_long(monkeypatch):
    base = load_model("tiny-llama")
    encoder, shown = PairEncoder(base.tokenizer), []

    def scripted(model, prompts, **_):
        shown.extend(base.tokenizer.batch_decode(prompts[0]))
        return np.full(len(prompts[0]), 0.7)

    monkeypatch.setattr(pairwise, "preferences", scripted)
    request = "Sum up the following notes of a visit. " + "The patient reports a cough since Monday. " * 60
    asked = [request, "Name a bird."]
    ours, others = ["A cough, likely viral. " * 60, "A wren."], ["Rest and fluids.", "A robin."]
    preference_judge(base, encoder, ([5], [6]))(asked, ours, others)
    for text in shown:
        assert "\nIs answer 1 better than answer 2? Say yes or no." in text
    assert "Sum up the following notes" in shown[0]
    assert "\nAnswer 1: A cough, likely viral." in shown[0]
    assert "\nAnswer 2: Rest and fluids.\n" in shown[0]
    assert "Request: Name a bird.\nAnswer 1: A wren.\nAnswer 2: A robin.\n" in shown[1]
    assert count_shortened(base, encoder, asked, ours, others) == 1


def test_a_difference_is_taken_row_by_row():
    random = np.random.default_rng(0)
    rows = random.normal(size=200) * 10
    found = mean_difference(rows + 1.0, rows, seed=0)
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 1.0, 1.0))
    plain = mean_interval(rows, seed=0)
    assert plain.low < rows.mean() < plain.high
    half = (plain.high - plain.low) / 2
    assert half == pytest.approx(1.96 * rows.std() / np.sqrt(200), rel=0.15)
    with pytest.raises(ValueError, match="same rows"):
        mean_difference(rows, rows[:-1], seed=0)


def test_texts_on_few_axes_are_near_where_they_share_words():
    texts = ["water the fern", "water the rose", "pay the bank", "pay the loan"] * 3
    vectors = term_vectors(texts, dimensions=3)(["water a fern", "water a rose", "the bank loan"])
    assert vectors.shape == (3, 3)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert unit[0] @ unit[1] > unit[0] @ unit[2]
    assert term_vectors(["a b", "b c"], dimensions=9)(["zzz"]).shape == (1, 1)
    assert term_vectors(["a b", "a b"], dimensions=9)(["a"]).shape == (1, 1), "and numpy warns of nothing"


@pytest.mark.parametrize(
    ("fitted", "found"),
    [(["?!\n..."], [[0.0], [0.0]]), (["\u200b", "!"], [[0.0], [0.0]]), (["yes\nyes"], [[1.0], [0.0]])],
    ids=["no word", "nothing to see", "one word"],
)
def test_held_out_texts_of_no_or_one_word_end_no_run(fitted, found):
    """They are measured after the charge, so what they hold must not decide whether the run ends."""
    encode = term_vectors(fitted, dimensions=32)
    assert encode(["yes", "?"]).tolist() == found


def test_the_interval_of_few_pairs_is_students():
    rows = np.array([1.0, 3.0])
    found = mean_interval(rows, seed=0)
    assert (found.value, found.low, found.high) == pytest.approx((2, 2 - 12.7062, 2 + 12.7062), abs=1e-3)
    alone = mean_difference(np.array([2.5]), np.array([2.0]), seed=0)
    assert alone.value == 0.5
    assert alone.low < 0 < 1 < alone.high


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("mean", [0.0, 0.5, 1.0, 3.0])
def test_the_interval_of_few_pairs_covers(rows, mean):
    drawn = np.random.default_rng(rows).normal(mean, 1, size=(600, rows))
    found = [mean_interval(values, seed=0, replicates=50) for values in drawn]
    assert np.mean([one.low <= mean <= one.high for one in found]) >= 0.925
