"""The first entry of a continued list, and how many examples a prompt shows."""

import copy
from dataclasses import replace

import pytest
from tokenizers import AddedToken

from understudy.errors import InputError
from understudy.generation import self_instruct
from understudy.generation.config import SamplingConfig
from understudy.generation.self_instruct import (
    continue_prompts,
    few_shots,
    first_entry,
    list_prompt,
)

EXAMPLES = [f"Name bird number {i} of the many that live on this island." for i in range(6)]
OWN_NUMBERS = [
    "My blood pressure is 140/90. Is that dangerous?",
    "The patient is 67. Which vaccines does she need?",
    "Solve 2x + 3 = 15. Show every step.",
    "Revenue rose to EUR 45. Is this good news?",
    "Give 3.5 reasons",
]


@pytest.mark.parametrize("entry", OWN_NUMBERS)
def test_numbers_of_an_entry_stay_in_it(entry):
    assert first_entry(f" {entry}", shown=3) == entry
    assert first_entry(f" {entry} 5. Name a fish. 6. Name a tree.", shown=3) == entry
    assert first_entry(f" {entry}\n5. Name a fish.", shown=3) == entry


@pytest.mark.parametrize(
    ("drawn", "first"),
    [
        (" Why is the sky blue? 5. Name a bird.", "Why is the sky blue?"),
        (" Why is the sky blue? 5) Name a bird.", "Why is the sky blue?"),
        (" Name a bird that is not 5.", "Name a bird that is not 5."),
        (" Sum up page 15. Then stop.", "Sum up page 15. Then stop."),
        (" Is it 4. or 6. in this list?", "Is it 4. or 6. in this list?"),
        ("\n\nWhat?", "What?"),
        (" 5. Name a bird.", ""),
        ("   ", ""),
    ],
)
def test_an_entry_ends_at_the_next_number_only(drawn, first):
    assert first_entry(drawn, shown=3) == first


def test_a_prompt_says_how_many_examples_it_shows(tiny_llama):
    def write(chosen):
        return list_prompt([EXAMPLES[place] for place in chosen], about="birds")

    def prompts(room):
        return few_shots(tiny_llama, write, examples=6, shots=3, count=4, room=room, seed=0)

    longest = max(len(prompt.ids) for prompt in prompts(1000))
    for room, most in ((1000, 3), (longest - 10, 2)):
        found = prompts(room)
        assert {prompt.shown for prompt in found} == {most}
        assert all(tiny_llama.tokenizer.decode(one.ids).endswith(f"\n{one.shown + 1}.") for one in found)
    with pytest.raises(InputError, match="one example"):
        prompts(5)


def test_no_special_token_is_drawn_that_is_only_added_as_special(tiny_llama, monkeypatch):
    tokenizer = copy.deepcopy(tiny_llama.tokenizer)
    tokenizer.add_tokens([AddedToken("<|end|>", special=True)])
    asked = []

    def scripted(model, prompts, *, seeds, forbidden, **_):
        asked.append(set(forbidden))
        return [[] for _ in seeds]

    monkeypatch.setattr(self_instruct, "sample", scripted)
    continue_prompts(
        replace(tiny_llama, tokenizer=tokenizer),
        [[5, 6]],
        sampling=SamplingConfig(max_new_tokens=4),
        public_seed=0,
        purpose="test",
        batch_size=1,
    )
    assert asked == [{*tokenizer.all_special_ids, tokenizer.convert_tokens_to_ids("<|end|>")}]
