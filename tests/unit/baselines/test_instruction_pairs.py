"""Pairs without a professional model: six ways, and what their prompts show."""

import pytest

from understudy.baselines import instruction_pairs
from understudy.baselines.instruction_pairs import WAYS, Making, make_pairs
from understudy.errors import InputError
from understudy.generation.config import SamplingConfig
from understudy.generation.instructions import Pair
from understudy.generation.self_instruct import first_pair
from understudy.models.loading import load_model

EXAMPLES = [Pair(f"Name bird number {i}.", f"Bird {i} is a wren.") for i in range(6)]
SHORT = SamplingConfig(max_new_tokens=12, temperature=0.7)
MAKING = Making(count=5, shots=2, about="birds", requests=SHORT, answers=SHORT)


@pytest.fixture(scope="module")
def base():
    return load_model("tiny-llama")


@pytest.mark.parametrize("name", WAYS)
def test_a_way_shows_its_examples_and_writes_pairs(name, base, monkeypatch):
    shown = []
    exact = instruction_pairs.self_instruct.continue_prompts

    def watched(model, prompts, **options):
        shown.extend(base.tokenizer.batch_decode(prompts))
        return exact(model, prompts, **options)

    monkeypatch.setattr(instruction_pairs.self_instruct, "continue_prompts", watched)
    made = make_pairs(WAYS[name], base, EXAMPLES, MAKING)
    assert len(shown) == 5
    assert all("birds" in prompt and "Name bird number" in prompt for prompt in shown)
    assert all(("is a wren" in prompt) == (WAYS[name].steps == 1) for prompt in shown), "answers in one step only"
    assert len(made) <= 5
    assert all(pair.instruction and pair.response for pair in made)
    assert made == make_pairs(WAYS[name], base, EXAMPLES, MAKING)


def test_examples_that_do_not_fit_are_refused(base):
    long = [Pair("word " * 600, "a")]
    with pytest.raises(InputError, match="no room for one example"):
        make_pairs(WAYS["self_instruct"], base, long, MAKING)


def test_half_a_pair_is_none():
    assert first_pair(" Name a bird.\nAnswer: A wren.\n\nRequest: More") == Pair("Name a bird.", "A wren.")
    assert first_pair(" Name a bird.") is None
    assert first_pair("Answer: A wren.") is None
    assert first_pair("Name a bird. Answer: Request: b") is None
