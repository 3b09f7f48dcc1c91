"""Questions about texts: what is shortened, and that the question stays."""

import pytest

from understudy.errors import InputError
from understudy.generation.instructions import Pair, PairEncoder
from understudy.generation.questions import fitted_question


def write(one, two):
    return f"First: {one}\nSecond: {two}\nAre they alike?"


@pytest.fixture
def encoder(tiny_llama):
    return PairEncoder(tiny_llama.tokenizer)


def test_a_question_that_fits_is_left_as_it_is(encoder):
    assert fitted_question(write, ["a cat", "a dog"], encoder, max_length=100) == (write("a cat", "a dog"), False)


def test_long_texts_are_shortened_to_one_length_and_the_question_stays(encoder):
    long, longer, short = "one word " * 100, "other words " * 200, "a dog"
    for texts in ([long, longer], [longer, long], [long, short], [short, longer]):
        found, shortened = fitted_question(write, texts, encoder, max_length=100)
        assert shortened
        assert encoder.prompts([Pair(found)], max_length=100)[2] == 0, "nothing is left to be cut"
        kept = found.removeprefix("First: ").removesuffix("\nAre they alike?").split("\nSecond: ")
        assert all(text.startswith(part) for text, part in zip(texts, kept, strict=True))
        assert short not in texts or short in kept
        lengths = {len(part) for text, part in zip(texts, kept, strict=True) if text != short}
        assert len(lengths) == 1
        most = lengths.pop()
        assert most > 50
        assert not encoder.fits(write(*(text[: most + 1] for text in texts)), max_length=100), "as much as fits"


def test_a_context_without_room_for_the_question_is_refused(encoder):
    with pytest.raises(InputError, match=r"max_length=30.*longer context"):
        fitted_question(write, ["word " * 90, "word"], encoder, max_length=30)
