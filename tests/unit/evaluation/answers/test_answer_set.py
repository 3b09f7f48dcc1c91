"""Free answers read against a fixed set."""

import pytest

from understudy.errors import InputError
from understudy.evaluation.answers.answer_set import read_answer, score_answers

SET = ("negative", "neutral", "positive")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("positive", 2),
        ("The sentiment is NEGATIVE!", 0),
        ("Positive, very positive.", 2),
        ("positively", None),
        ("neither positive nor negative", None),
        ("", None),
    ],
)
def test_an_answer_is_read_by_whole_words(text, place):
    assert read_answer(text, SET) == place


def test_accuracy_and_f1_worked_out_by_hand():
    """Given -, =, +, ? (counts as =); right -, =, =, +: two of four. F1: - 1, = 2*1/(2+2), + 0."""
    found = score_answers(["negative", "neutral", "positive", "who knows"], [0, 1, 1, 2], answers=SET, neutral=1)
    assert found.given.tolist() == [0, 1, 2, 1]
    assert found.correct.tolist() == [True, True, False, False]
    assert (found.accuracy, found.unparsed) == (0.5, 1)
    assert found.macro_f1 == pytest.approx((1 + 0.5 + 0) / 3)


def test_an_answer_within_a_longer_one_is_not_named_and_without_a_neutral_one_the_unread_are_wrong():
    answers = ("positive", "very positive", "C++", "no")
    assert [read_answer(text, answers) for text in ("Very positive.", "positive", "C++!")] == [1, 0, 2]
    assert read_answer("positive or very positive", answers) is None
    found = score_answers(["who knows", "no"], [3, 3], answers=answers)
    assert found.given.tolist() == [-1, 3]
    assert (found.correct.tolist(), found.unparsed) == ([False, True], 1)
    assert found.macro_f1 == pytest.approx(2 / 3)


def test_a_text_without_a_right_answer_is_refused():
    with pytest.raises(InputError, match="right answer for each"):
        score_answers(["a"], [], answers=SET, neutral=1)
