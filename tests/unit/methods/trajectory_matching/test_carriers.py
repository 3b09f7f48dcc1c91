"""Rows that carry pseudo tokens, written by the public model."""

import pytest

from understudy.generation.instructions import Pair, PairEncoder
from understudy.methods.trajectory_matching import carriers
from understudy.methods.trajectory_matching.carriers import answered, encoded
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.models.loading import load_base

PAIRS = [Pair(f"Name a bird that begins with {letter}.", "A wren.") for letter in "abcd"]


@pytest.mark.parametrize("seed", [1, 2**32, 2**63 - 1])
def test_every_public_seed_writes_answers_of_its_own(seed, one_thread):
    base = load_base(TrajectoryMatchingConfig())
    texts = [
        [pair.response for pair in answered(base, PAIRS, TrajectoryMatchingConfig(public_seed=one, max_length=64))]
        for one in (0, seed, seed)
    ]
    assert texts[0] != texts[1] == texts[2]


LONG = Pair("Summarise this text: " + "the boat leaves the harbour at noon and " * 40, "A boat leaves.")


def test_an_answer_is_the_same_alone_and_beside_a_long_instruction(one_thread):
    base, config = load_base(TrajectoryMatchingConfig()), TrajectoryMatchingConfig(max_length=64)
    alone = [answered(base, PAIRS[:n], config)[-1] for n in (1, 2)]
    assert answered(base, [*PAIRS[:2], LONG], config)[:2] == alone


@pytest.mark.parametrize("context", [98, 150, 1000])
def test_a_limit_follows_from_the_prompt_alone_and_fits_the_context(context, monkeypatch):
    """With 98 positions a prompt and `max_length` tokens behind it do not fit."""
    base, config = load_base(TrajectoryMatchingConfig()), TrajectoryMatchingConfig()
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


def test_an_answer_that_did_not_end_gets_no_end_token(monkeypatch):
    base, config = load_base(TrajectoryMatchingConfig()), TrajectoryMatchingConfig()
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
