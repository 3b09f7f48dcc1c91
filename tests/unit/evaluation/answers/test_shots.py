"""Multiple choice behind public examples: which they are, that they fit, and that the choice is made behind them."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from understudy.errors import InputError
from understudy.evaluation.answers import shots as module
from understudy.evaluation.answers.config import AnswersConfig
from understudy.evaluation.answers.digests import with_digests
from understudy.evaluation.answers.multiple_choice import Question, rightly_answered
from understudy.evaluation.answers.shots import check_shots, draw_shots, few_shot, shots_width
from understudy.generation.instructions import PairEncoder
from understudy.models.loading import load_model

QUESTIONS = [Question(f"film {n}", ("bad", "good"), n % 2) for n in range(6)]


@pytest.fixture(scope="module")
def base():
    """The shipped model."""
    return load_model("tiny-llama")


@pytest.fixture
def public(tmp_path):
    """A public table of twelve answered pairs."""
    path = tmp_path / "public.parquet"
    asked = [f"film number {n}" for n in range(12)]
    pq.write_table(pa.table({"instruction": asked, "response": [("bad", "good")[n % 2] for n in range(12)]}), path)
    return path


def of(public, count=3, **more):
    return AnswersConfig(shots=count, shots_from=str(public), **more)


def test_examples_need_a_table():
    with pytest.raises(ValidationError, match=r"evaluation\.shots=2.*evaluation\.shots_from"):
        AnswersConfig(shots=2)


def test_the_public_seed_draws_the_examples_and_their_digest_holds_them(public):
    settings = with_digests(of(public))
    assert len(settings.shots_digest) == 64
    drawn = draw_shots(settings, seed=0)
    assert len(drawn) == len(set(drawn)) == 3
    assert drawn == draw_shots(settings, seed=0)
    assert any(draw_shots(settings, seed=seed) != drawn for seed in range(1, 4))
    with pytest.raises(InputError, match=r"evaluation\.shots=13.*found 12"):
        draw_shots(of(public, 13), seed=0)
    pq.write_table(pq.read_table(public).slice(0, 11), public)
    with pytest.raises(InputError, match=r"evaluation\.shots_from=.*expected the pairs that the run began with"):
        draw_shots(settings, seed=0)
    assert draw_shots(AnswersConfig(), seed=0) == []
    assert with_digests(AnswersConfig()) == AnswersConfig()


def test_examples_that_the_context_does_not_hold_are_refused(base, public):
    check_shots(base.model, base.tokenizer, of(public), max_length=96, seed=0)
    with pytest.raises(InputError, match=r"evaluation\.shots=12.*context of 512"):
        check_shots(base.model, base.tokenizer, of(public, 12), max_length=480, seed=0)


def test_every_example_stands_before_every_question_that_fits_whole(base, public, monkeypatch):
    """The width grows by the examples; a question that would be cut is left out, whatever it would have been."""
    seen, plain = [], module.rightly_answered

    def recorded(*arguments, **named):
        seen.append((arguments[2], named))
        return plain(*arguments, **named)

    monkeypatch.setattr(module, "rightly_answered", recorded)
    drawn, long = draw_shots(of(public, 4), seed=0), Question("Is it red? " * 90, ("bad", "good"), 0)
    found = few_shot(base.model, base.tokenizer, [*QUESTIONS, long], drawn, max_length=48)
    ((asked, named),) = seen
    assert (asked, named["shots"]) == (QUESTIONS, drawn)
    assert named["max_length"] == shots_width(base.tokenizer, drawn, max_length=48)
    before = "".join(f"{pair.instruction}\n{pair.response}\n\n" for pair in drawn)
    led = [Question(f"{before}{one.instruction}", one.candidates, one.answer) for one in QUESTIONS]
    assert found == rightly_answered(base.model, base.tokenizer, led, max_length=400)
    rows = [module.Pair(f"{before}{QUESTIONS[0].instruction}", "good")]
    assert PairEncoder(base.tokenizer).count_cut(rows, max_length=named["max_length"]) == (0, 0)


def test_without_examples_or_questions_that_fit_nothing_is_asked(base, public):
    drawn = draw_shots(of(public), seed=0)
    assert few_shot(None, base.tokenizer, QUESTIONS, [], max_length=48) == []
    assert few_shot(None, base.tokenizer, [Question("Is it? " * 90, ("a", "b"), 0)], drawn, max_length=48) == []
