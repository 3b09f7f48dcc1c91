"""Which held-out pairs are measured, what is counted as cut, and the comparison of answers."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
from tests_support import write_random_model

from understudy.compute import ON_CPU
from understudy.evaluation.answers import pairwise
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.metrics import Metrics
from understudy.generation.instructions import Pair, PairEncoder
from understudy.methods.knowledge_distillation import evaluation
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.evaluation import chosen_pairs, measure_cut, measure_wins
from understudy.methods.knowledge_distillation.report import answer_section
from understudy.models.loading import load_model
from understudy.runs.overrides import apply_overrides

SORTED = [Pair(f"Question {row} about {'ferns' if row < 500 else 'banks'}.", "Yes.") for row in range(1000)]


def test_held_out_pairs_are_measured_from_every_part_of_their_file():
    config = apply_overrides(KnowledgeDistillationConfig(), ["measure.most_pairs=200"])
    chosen = chosen_pairs(SORTED, config)
    assert len({pair.instruction for pair in chosen}) == 200
    assert chosen == chosen_pairs(SORTED, config), "the public seed alone decides"
    assert chosen != chosen_pairs(SORTED, apply_overrides(config, ["public_seed=1"]))
    for part in (chosen, chosen[:50]):  # answers are compared on the first of them
        ferns = np.mean([pair.instruction.endswith("ferns.") for pair in part])
        assert abs(ferns - 0.5) < 0.3, "more than four standard deviations"
    assert sorted(map(SORTED.index, chosen_pairs(SORTED[:90], config))) == list(range(90)), "all of them where few"


def test_private_texts_that_are_cut_are_counted():
    base = load_model("tiny-llama")
    widths = ["train.max_length=60", "tune.max_length=80"]
    config = apply_overrides(KnowledgeDistillationConfig(), widths)
    long = "word " * 60
    train = [Pair("Why?", "So."), Pair(long, "So."), Pair(long, long), Pair("Why?", long)]
    scored = PairEncoder(base.tokenizer).encode([Pair("Why?", long)], max_length=config.tune.max_length)
    asked = ["Why?", "word " * 600]
    found = measure_cut(train, scored, asked, model=base, config=config)
    assert found.values == {
        "cut.train.instructions": 2.0,
        "cut.train.responses": 2.0,
        "cut.test.instructions": 0.0,
        "cut.test.responses": 1.0,
        "cut.asked.instructions": 1.0,
    }
    assert "cut.asked.instructions" not in measure_cut(train, scored, [], model=base, config=config).values


def test_answers_of_a_fixed_set_are_read_and_compared_question_by_question(monkeypatch):
    asked, said = [], {"base": "Who knows?", "dp_only": "No.", "target": "yes, it is"}

    def answered(texts, model, config):
        asked.append((list(texts), config.professional.sampling.max_new_tokens))
        return [said[model.name]] * len(texts)

    monkeypatch.setattr(evaluation, "write_responses", answered)
    base = load_model("tiny-llama")
    held_out = [Pair(f"Question {row}", ("yes", "no")[row % 4 == 0]) for row in range(80)]
    questions = evaluation.fixed_questions(held_out[:40], held_out)
    config = KnowledgeDistillationConfig()
    choices = {name: evaluation.answer_questions(questions, replace(base, name=name), config) for name in said}
    assert asked[0][0] == [pair.instruction for pair in held_out[:40]]
    assert max(most for _, most in asked) < config.professional.sampling.max_new_tokens
    found = evaluation.measure_choices(choices, EvaluationConfig())
    assert [found.values[f"answers.{name}.accuracy"] for name in said] == [0, 0.25, 0.75]
    assert [found.values[f"answers.{name}.unread"] for name in said] == [1, 0, 0]
    assert found.values["answers.target.macro_f1"] == pytest.approx(6 / 7 / 2)
    assert found.values["answers.target_minus_dp_only.accuracy"] == 0.5
    low, high = found.intervals["answers.target_minus_dp_only.accuracy"]
    assert low < 0.5 < high
    section = answer_section(found)
    assert "75" in section.lead[0]
    assert len(section.table.rows) == 3


def test_responses_that_do_not_repeat_are_no_fixed_set():
    held_out = [Pair(f"Question {row}", f"answer {row}") for row in range(20)]
    assert evaluation.fixed_questions(held_out, held_out) == []
    assert answer_section(Metrics()) is None


@pytest.fixture
def answers():
    return {"target": ["A wren.", "A cough. " * 900], "dp_only": ["A robin.", "Rest."]}


def test_comparisons_whose_texts_were_shortened_are_counted(answers, monkeypatch):
    monkeypatch.setattr(pairwise, "preferences", lambda model, prompts, **_: np.full(len(prompts[0]), 0.5))
    found = measure_wins(["Name a bird.", "Sum up."], answers, KnowledgeDistillationConfig(), ON_CPU)
    assert found.values["wins.pairs"] == 2
    assert found.values["wins.shortened"] == 1
    assert found.values["wins.target_over_dp_only"] == 0.5, "a judge without a preference is on nobody's side"


def test_a_judge_without_room_for_the_question_is_said_to_be_missing(answers, tmp_path):
    folder = write_random_model(tmp_path / "narrow", positions=40)
    config = apply_overrides(KnowledgeDistillationConfig(), [f"professional.model={folder}"])
    found = measure_wins(["Name a bird.", "Sum up."], answers, config, ON_CPU)
    assert found.values == {}
    assert "max_length=40" in found.missing[0]


def test_a_judge_that_is_in_the_server_zone_alone_is_said_to_be_missing(answers):
    """The charge is paid by then: everything else is measured and exported."""
    config = apply_overrides(KnowledgeDistillationConfig(), ["professional.model=of-the-server/zone"])
    found = measure_wins(["Name a bird.", "Sum up."], answers, config, ON_CPU)
    assert found.values == {}
    assert "of-the-server/zone" in found.missing[0]


def test_one_model_is_held_at_a_time(monkeypatch):
    """Neither the one before, while the next is loaded, nor any of them beside the judge."""
    shipped = load_model("tiny-gpt2")
    loaded: list[weakref.ref] = []
    beside = []

    def load(*_):
        beside.append([one for one in loaded if one() is not None])
        model = replace(shipped, model=type(shipped.model)(shipped.model.config).eval())
        loaded.append(weakref.ref(model.model))
        return model

    for name in ("measure_ifd", "measure_encoders", "measure_diversity", "measure_memorization", "measure_identifiers"):
        monkeypatch.setattr(evaluation, name, lambda *_, **__: Metrics())
    monkeypatch.setattr(evaluation, "write_responses", lambda asked, *_: ["yes"] * len(asked))
    monkeypatch.setattr(evaluation, "load_professional", load)
    pairs = [Pair(f"What is {number}?", f"It is {number}.") for number in range(4)]
    models = dict.fromkeys(("base", "public_only", "dp_only", "target"), load)
    inputs = evaluation.EvaluationInputs(pairs, pairs, pairs, pairs, models)
    evaluation.evaluate_run(
        inputs, config=KnowledgeDistillationConfig(), profile="tiny", embedder=lambda _: np.zeros(0)
    )
    assert beside == [[]] * 5
