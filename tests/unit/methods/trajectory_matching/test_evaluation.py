"""What is measured on: a part of the held-out rows that says something about all; and what a page opens with."""

from dataclasses import replace

import numpy as np
import pytest

from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.metrics import Metrics
from understudy.generation.instructions import Pair
from understudy.methods.trajectory_matching.config import PUBLIC_CARRIERS, TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.evaluation import Answers, compared, measuring
from understudy.methods.trajectory_matching.metric_names import CONDITIONS
from understudy.methods.trajectory_matching.report import sections
from understudy.reporting.text_formatting import MINUS, NARROW_SPACE
from understudy.reporting.worth import worth

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


PUBLIC = {"declared_public": {PUBLIC_CARRIERS: "sample:instructions (written)"}}


def opening(found, statement):
    return worth(found, sections(found, statement).headlines)


def answers(right, losses, rows=200):
    """The first so many rows are right; losses rise evenly around a mean, for every condition alike."""
    return Answers(losses + np.linspace(-1, 1, rows), np.arange(rows) < right)


def test_learned_tokens_are_compared_row_by_row_with_what_never_met_private_rows():
    """All losses shift by as much, so that their differences have no spread; the means themselves do."""
    found = compared(
        {"untuned": answers(100, 4.0), "mean_tokens": answers(120, 3.5), "distilled": answers(160, 3.25)},
        EvaluationConfig(profile="tiny"),
    )
    values, intervals = found.values, found.intervals
    assert values["tuning.distilled.loss"] == pytest.approx(3.25)
    assert values["tuning.distilled.accuracy"] == 0.8
    assert values["tuning.distilled_minus_mean_tokens.accuracy"] == pytest.approx(0.2)
    assert values["tuning.distilled_minus_untuned.accuracy"] == pytest.approx(0.3)
    assert intervals["tuning.distilled_minus_mean_tokens.loss"] == pytest.approx((-0.25, -0.25))
    assert intervals["tuning.distilled_minus_untuned.loss"] == pytest.approx((-0.75, -0.75))
    low, high = intervals["tuning.distilled.loss"]
    assert 3.1 < low < 3.2 < 3.3 < high < 3.4
    low, high = intervals["tuning.distilled_minus_mean_tokens.accuracy"]
    assert 0.1 < low < 0.2 < high < 0.3


def test_choices_behind_examples_and_harness_tasks_have_figures_and_columns_of_their_own():
    """A condition whose tasks failed has none, and the others keep theirs."""
    led = {"untuned": 20, "mean_tokens": 30, "distilled": 45}
    found = {
        name: replace(answers(100, 4.0), few_shot=np.arange(60) < right, harness={"arc_easy": right / 100})
        for name, right in led.items()
    }
    found["expert"] = replace(answers(100, 4.0), failed="ConnectionError: away")
    metrics = compared(found, EvaluationConfig(profile="tiny"))
    assert metrics.values["tuning.distilled.few_shot_accuracy"] == 0.75
    assert metrics.values["tuning.distilled_minus_mean_tokens.few_shot_accuracy"] == pytest.approx(0.25)
    low, high = metrics.intervals["tuning.distilled_minus_untuned.few_shot_accuracy"]
    assert low < 25 / 60 < high
    assert metrics.values["tuning.few_shot_questions"] == 60
    assert metrics.values["tuning.untuned.harness.arc_easy"] == 0.2
    table = sections(metrics, {}).first[0].table
    assert table.columns == ("Model", "Right choices", "Behind examples", "Loss of a response", "arc_easy")
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells[CONDITIONS["distilled"]][1] == f"75.0{NARROW_SPACE}%"
    assert cells[CONDITIONS["expert"]][1] == cells[CONDITIONS["expert"]][3] == "not measured"
    plain = compared({name: answers(100, 4.0) for name in led}, EvaluationConfig(profile="tiny"))
    assert sections(plain, {}).first[0].table.columns == ("Model", "Right choices", "Loss of a response")


def test_the_page_opens_beside_unlearned_tokens_where_anyone_may_see_the_rows_and_else_beside_the_base_model():
    found = compared(
        {"untuned": answers(160, 4.0), "mean_tokens": answers(120, 3.5), "distilled": answers(160, 3.25)},
        EvaluationConfig(profile="tiny"),
    )
    sentence = opening(found, PUBLIC)
    assert sentence.startswith(
        "The learned tokens helped: the base model tuned on the distilled rows chooses the right answer to "
        f"80.0{NARROW_SPACE}% of held-out questions ("
    )
    assert ", +20.0 points beside the same rows behind unlearned tokens (+" in sentence
    real = opening(found, {})
    assert real.startswith("No difference from the base model as it is could be measured: ")
    assert ", +0.0 points beside the base model as it is (" in real
    better = {"untuned": answers(100, 4.0), "mean_tokens": answers(160, 3.5), "distilled": answers(160, 3.25)}
    assert opening(compared(better, EvaluationConfig(profile="tiny")), {}).startswith("The private rows helped: ")


def test_the_page_opens_with_losses_where_there_are_no_questions_and_with_nothing_where_nothing_was_measured():
    losses = {"untuned": answers(0, 4.0), "mean_tokens": answers(0, 3.0), "distilled": answers(0, 3.25)}
    free = {name: Answers(one.losses, np.zeros(0, dtype=bool)) for name, one in losses.items()}
    sentence = opening(compared(free, EvaluationConfig(profile="tiny")), PUBLIC)
    assert sentence.startswith(
        "Worse than the same rows behind unlearned tokens: the mean loss of held-out responses "
        "under the base model tuned on the distilled rows is 3.250 nats per token ("
    )
    assert "+0.250 beside" in sentence
    assert MINUS not in sentence
    none = dict.fromkeys(losses, Answers(np.zeros(0), np.zeros(0, dtype=bool)))
    nothing = compared(none, EvaluationConfig(profile="tiny"))
    assert nothing.values == {}
    assert opening(nothing, PUBLIC) == opening(Metrics(), {}) == ""
