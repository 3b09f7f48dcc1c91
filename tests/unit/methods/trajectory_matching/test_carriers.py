"""Rows that carry pseudo tokens, written by the public model."""

import copy
from dataclasses import replace

import pytest
import torch
from random_models import random_model

from understudy.generation.instructions import Pair, PairEncoder
from understudy.generation.prompts import special_token_ids
from understudy.methods.trajectory_matching import carriers
from understudy.methods.trajectory_matching.carriers import answered, encoded
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.models.loading import load_base

PAIRS = [Pair(f"Name a bird that begins with {letter}.", "A wren.") for letter in "abcd"]


@pytest.fixture(scope="module")
def base():
    return load_base(TrajectoryMatchingConfig())


@pytest.fixture(scope="module")
def small(base):
    """Two random layers with the same tokenizer."""
    model = random_model("llama", vocabulary=len(base.tokenizer), width=16, positions=512, initializer_range=0.1)
    return replace(base, model=model)


def answers_of(base, seed):
    config = TrajectoryMatchingConfig(public_seed=seed, max_length=52)
    return [pair.response for pair in answered(base, PAIRS, config)]


@pytest.fixture(scope="module")
def answers_of_seed_zero(small):
    return answers_of(small, 0)


@pytest.mark.parametrize("seed", [1, 2**32, 2**63 - 1])
def test_every_public_seed_writes_answers_of_its_own(small, answers_of_seed_zero, seed, one_thread):
    texts = [answers_of(small, seed) for _ in range(2)]
    assert answers_of_seed_zero != texts[0] == texts[1]


class Loud(torch.nn.Module):
    """A head under which some tokens are by far the likeliest."""

    def __init__(self, head, tokens):
        super().__init__()
        self.head, self.tokens = head, list(tokens)

    def forward(self, states):
        logits = self.head(states)
        logits[..., self.tokens] += 1e3
        return logits


def test_an_answer_holds_no_special_token_but_the_one_that_ends_it(small):
    """A special token is no text: it took the room of the answer, and what follows an end of text is another text."""
    end = PairEncoder(small.tokenizer, "auto").end
    others = set(special_token_ids(small.tokenizer)) - {end}
    assert others
    loud = replace(small, model=copy.deepcopy(small.model))
    loud.model.lm_head = Loud(loud.model.lm_head, others)
    assert all(answer and answer != "A wren." for answer in answers_of(loud, 0))


LONG = Pair("Summarise this text: " + "the boat leaves the harbour at noon and " * 40, "A boat leaves.")


def test_an_answer_is_the_same_alone_and_beside_a_long_instruction(small, one_thread):
    config = TrajectoryMatchingConfig(max_length=52)
    alone = [answered(small, PAIRS[:n], config)[-1] for n in (1, 2)]
    assert answered(small, [*PAIRS[:2], LONG], config)[:2] == alone


@pytest.mark.parametrize("context", [98, 150, 1000])
def test_a_limit_follows_from_the_prompt_alone_and_fits_the_context(base, context, monkeypatch):
    """With 98 positions a prompt and `max_length` tokens behind it do not fit."""
    config = TrajectoryMatchingConfig()
    monkeypatch.setattr(base.model.config, "max_position_embeddings", context)
    told, limits = [], {}

    def drawn(_model, prompts, *, config, seeds, **_):
        ids, mask = prompts
        assert ids.shape[1] + config.max_new_tokens <= context
        assert int(mask[:, 0].max()) == 1, "no column is padding alone"
        limits.update({seed: (int(row.sum()), config.max_new_tokens) for seed, row in zip(seeds, mask, strict=True)})
        return [[] for _ in seeds]

    monkeypatch.setattr(carriers, "sample", drawn)
    pairs = [LONG, *PAIRS * 9, Pair("Name a colour and say why you like it.", "Red.")]
    assert answered(base, pairs, config, progress=lambda *step: told.append(step)) == pairs
    assert told[-1] == (38, 38)
    assert len(limits) == 38
    for prompt, limit in limits.values():
        assert limit == min(96, context - prompt)
        assert limit >= 96 - prompt


def test_an_answer_that_did_not_end_gets_no_end_token(base, monkeypatch):
    config = TrajectoryMatchingConfig()
    words = base.tokenizer.encode(" good" * 96, add_special_tokens=False)
    pairs = [*PAIRS, LONG]
    endings = {}
    for name, length in (("endless", 96), ("short", 5)):
        monkeypatch.setattr(carriers, "sample", lambda *_, seeds, length=length, **__: [words[:length] for _ in seeds])
        rows = encoded(answered(base, pairs, config), base.tokenizer, config)
        endings[name] = [int(ids[mask][-1]) for ids, mask in zip(rows.input_ids, rows.loss_mask, strict=True)]
    end = PairEncoder(base.tokenizer, config.template).end
    assert end not in endings["endless"]
    assert set(endings["short"]) == {end}
