"""What is measured on: a part of the held-out rows that says something about all of them."""

import pytest

from understudy.generation.instructions import Pair
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.evaluation import measuring

SORTED = [Pair(f"question {row}", ("bad", "good")[row // 100]) for row in range(200)]


def config(questions, seed=0):
    return TrajectoryMatchingConfig(tuning={"questions": questions}, public_seed=seed)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_of_a_file_sorted_by_label_every_label_is_measured(seed):
    found = measuring(SORTED, config(40, seed))
    assert len(found.rows) == len(found.questions) == 40
    assert len({pair.instruction for pair in found.rows}) == 40
    assert {pair.response for pair in found.rows} == {"bad", "good"}
    assert [pair.instruction for pair in found.rows] == [question.instruction for question in found.questions]
    for pair, question in zip(found.rows, found.questions, strict=True):
        assert question.candidates[question.answer] == pair.response
    assert measuring(SORTED, config(40, seed)) == found
    assert measuring(SORTED, config(40, seed + 1)) != found


def test_an_answer_that_is_among_the_held_out_rows_alone_is_a_candidate():
    rare = [*SORTED, Pair("question 200", "mixed"), Pair("question 201", "mixed")]
    drawn = [measuring(rare, config(10, seed)) for seed in range(5)]
    assert all(question.candidates == ("bad", "good", "mixed") for found in drawn for question in found.questions)
    assert any("mixed" not in {pair.response for pair in found.rows} for found in drawn)


def test_few_rows_are_all_measured_in_their_order():
    found = measuring(SORTED[80:120], config(40))
    assert found.rows == SORTED[80:120]
    assert len(found.questions) == 40


def test_responses_that_do_not_repeat_give_no_question():
    found = measuring([Pair(f"question {row}", f"answer {row}") for row in range(60)], config(40))
    assert len(found.rows) == 40
    assert found.questions == []
