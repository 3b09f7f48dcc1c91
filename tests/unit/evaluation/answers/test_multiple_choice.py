"""Multiple choice by mean log-likelihood."""

import pytest
import torch

from understudy.errors import InputError
from understudy.evaluation.answers import multiple_choice
from understudy.evaluation.answers.multiple_choice import Question, likelihoods, questions_of, rightly_answered
from understudy.generation.instructions import Pair, PairEncoder
from understudy.models.loading import load_model

PAIRS = [Pair(f"film {n}", ("bad", "good")[n % 2]) for n in range(6)]


@pytest.fixture(scope="module")
def base():
    """The shipped model."""
    return load_model("tiny-llama")


def test_questions_are_made_of_responses_that_repeat():
    questions = questions_of(PAIRS)
    assert [question.candidates for question in questions] == [("bad", "good")] * 6
    assert [question.answer for question in questions] == [0, 1, 0, 1, 0, 1]
    assert questions_of([Pair("a", "one"), Pair("b", "two"), Pair("c", "three")]) == []


def test_a_question_without_a_choice_is_refused():
    with pytest.raises(InputError, match="two candidates"):
        Question("a", ("b",), 0)
    with pytest.raises(InputError, match="found none"):
        rightly_answered(None, None, [])


def test_likelihoods_are_means_over_the_response_one_by_one(base):
    encoder = PairEncoder(base.tokenizer)
    pairs = [Pair("a film", "very good indeed"), Pair("another longer film about a dog", "bad")]
    found = likelihoods(base.model, encoder, pairs, max_length=64)
    for n, pair in enumerate(pairs):
        row = encoder.encode([pair], max_length=64)
        with torch.no_grad():
            logits = base.model(input_ids=row.input_ids, attention_mask=row.attention_mask).logits
        losses = torch.nn.functional.cross_entropy(logits[0, :-1], row.input_ids[0, 1:], reduction="none")
        assert float(found[n]) == pytest.approx(-float(losses[row.loss_mask[0, 1:]].mean()), rel=1e-4)


def test_the_choice_is_what_the_model_holds_likelier(base):
    """Whatever it prefers is right in one list of questions and wrong in the other."""
    questions = questions_of(PAIRS)
    swapped = [Question(q.instruction, q.candidates, 1 - q.answer) for q in questions]
    plain = rightly_answered(base.model, base.tokenizer, questions)
    assert [not right for right in plain] == rightly_answered(base.model, base.tokenizer, swapped)


def test_answered_examples_before_a_question_move_the_choice(base):
    """Twenty answers of one kind make that answer likelier than it was."""
    questions = questions_of(PAIRS)
    encoder = PairEncoder(base.tokenizer)
    shots = [Pair(f"film {n}", "good") for n in range(20)]
    before = "".join(f"{shot.instruction}\n{shot.response}\n\n" for shot in shots)
    plain, led = (
        likelihoods(base.model, encoder, [Pair(f"{text}film 1", "good")], max_length=400) for text in ("", before)
    )
    assert float(led) != pytest.approx(float(plain), abs=1e-3)
    whole = rightly_answered(base.model, base.tokenizer, questions, shots=shots, max_length=400)
    alone = rightly_answered(
        base.model,
        base.tokenizer,
        [Question(f"{before}{q.instruction}", q.candidates, q.answer) for q in questions],
        max_length=400,
    )
    assert whole == alone


def test_examples_give_way_to_the_question(base, monkeypatch):
    encoder, seen = PairEncoder(base.tokenizer), []
    shots = [Pair(f"Is film {n} good or bad? " + "The plot was thin. " * 4, "bad") for n in range(9)]
    questions = [Question(text, ("yes", "no"), 0) for text in ("Is it blue?", "Is the other one red?")]

    def recorded(model, encoder, pairs, *, max_length):
        seen.extend(pairs)
        return torch.zeros(len(pairs))

    monkeypatch.setattr(multiple_choice, "likelihoods", recorded)
    assert rightly_answered(None, base.tokenizer, questions, shots=shots, max_length=128) == [True, True]
    rows = encoder.encode(seen, max_length=128)
    assert (rows.cut_instructions, rows.cut_responses) == (0, 0)
    assert not torch.equal(rows.input_ids[0], rows.input_ids[2])
    for pair, question in zip(seen[::2], questions, strict=True):
        assert pair.instruction.endswith(question.instruction)
        assert "film 8" in pair.instruction, "the last example stays longest"
        assert "film 0" not in pair.instruction
    seen.clear()
    rightly_answered(None, base.tokenizer, questions, shots=shots, max_length=2000)
    assert all("film 0" in pair.instruction for pair in seen)


def test_a_question_that_does_not_fit_is_refused_behind_examples_alone(base):
    questions = [Question("Is it blue?", ("yes", "no"), 0), Question("Is it red? " * 90, ("yes", "no"), 0)]
    with pytest.raises(InputError, match=r"question 1: .*max_length=96"):
        rightly_answered(base.model, base.tokenizer, questions, shots=PAIRS, max_length=96)
    assert len(rightly_answered(base.model, base.tokenizer, questions, max_length=96)) == 2
