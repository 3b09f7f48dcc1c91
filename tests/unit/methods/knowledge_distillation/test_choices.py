"""Multiple choice behind public examples, and harness tasks, of every model of a run."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.evaluation.answers import harness
from understudy.evaluation.answers.multiple_choice import Question
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.metrics import Metrics
from understudy.methods.knowledge_distillation.choices import Chosen, choose, measure_chosen
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.report import chosen_section
from understudy.models.loading import load_model

QUESTIONS = [Question(f"film {n}", ("bad", "good"), n % 2) for n in range(6)]


def chosen(right, harness=None, failed=None, questions=60):
    return Chosen(np.arange(questions) < right, harness or {}, failed)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_model_is_asked_behind_the_public_examples(swapped, tmp_path, monkeypatch):
    """Whatever it prefers behind them is right in one list of questions and wrong in the other."""
    path = tmp_path / "public.parquet"
    pq.write_table(pa.table({"instruction": ["a film", "another"], "response": ["good", "good"]}), path)
    config = KnowledgeDistillationConfig(
        evaluation={"shots": 2, "shots_from": str(path), "harness_tasks": ("arc_easy",), "harness_questions": 7}
    )
    asked = []

    def measured(model, tokenizer, tasks, **sizes):
        asked.append((tasks, sizes))
        return {"arc_easy": 0.25}

    monkeypatch.setattr(harness, "by_harness", measured)
    base = load_model("tiny-llama")
    questions = [Question(q.instruction, q.candidates, 1 - q.answer if swapped else q.answer) for q in QUESTIONS]
    found = choose(questions, base, config)
    assert len(found.few_shot) == 6
    assert 0 < found.few_shot.sum() < 6, "the same answer to every question"
    assert found.harness == {"arc_easy": 0.25}
    assert asked == [(("arc_easy",), {"shots": 2, "limit": 7})]
    plain = choose(questions, base, KnowledgeDistillationConfig())
    assert (len(plain.few_shot), plain.harness, plain.failed) == (0, {}, None)
    assert len(asked) == 1, "nothing is asked that nobody asked for"


def test_figures_are_compared_question_by_question_and_shown():
    found = {
        "base": chosen(20, {"arc_easy": 0.2}),
        "public_only": chosen(30, {"arc_easy": 0.3}),
        "dp_only": chosen(30, failed="ConnectionError: away"),
        "target": chosen(45, {"arc_easy": 0.5}),
    }
    metrics = measure_chosen(found, EvaluationConfig())
    assert metrics.values["few_shot.target.accuracy"] == 0.75
    assert metrics.values["few_shot.target_minus_public_only.accuracy"] == pytest.approx(0.25)
    low, high = metrics.intervals["few_shot.target_minus_base.accuracy"]
    assert low < 25 / 60 < high
    assert metrics.values["few_shot.questions"] == 60
    assert metrics.values["harness.target.arc_easy"] == 0.5
    assert "harness.dp_only.arc_easy" not in metrics.values
    assert any("the DP model" in reason and "away" in reason for reason in metrics.missing)
    section = chosen_section(metrics)
    assert section.table.columns == ("model", "behind examples", "arc_easy")
    assert section.table.rows[2][2] == "not measured"
    assert "75" in section.lead[0]


def test_nothing_is_shown_where_nothing_was_asked_for():
    empty = {name: chosen(0, questions=0) for name in ("base", "public_only", "dp_only", "target")}
    assert measure_chosen(empty, EvaluationConfig()).values == {}
    assert chosen_section(Metrics()) is None
