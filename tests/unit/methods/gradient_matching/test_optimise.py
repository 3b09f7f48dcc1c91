"""One shard from target to table: its losses by an independent computation, its independence of cuts and kills."""

import pytest
import torch
from random_models import random_model
from torch.nn import functional

from understudy.errors import InputError
from understudy.generation.prompts import Instruction
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.optimise import (
    SCHEMA,
    check_matching,
    instruction_prompts,
    match_shard,
    starting_tokens,
)
from understudy.methods.gradient_matching.projection import allowed_tokens, l2_projection
from understudy.methods.gradient_matching.release import Target
from understudy.models.checkpoints import TrainingCheckpoint
from understudy.models.loading import LoadedModel

NAMES = ("bad", "good", "so so")
EXAMPLES = [(0, 0), (1, 0), (2, 0), (0, 1), (2, 7)]
LENGTH = 6

STILL = {"inner_steps": 1, "swap_sweeps": 0}
EMITS = ("last", "nearest")
PAPER_EMITS = {"inner_steps": 8, "penalty": 0.01, "emit": "last", "swap_sweeps": 0}


@pytest.fixture(scope="module")
def base(small_tokenizer) -> LoadedModel:
    tokenizer = small_tokenizer
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "tie_word_embeddings": True}
    model = random_model("llama", vocabulary=len(tokenizer), width=16, positions=64, initializer_range=0.3, **ends)
    return LoadedModel(model, tokenizer, digest="0" * 64, name="random-llama", notes=())


def make_config(**changes) -> GradientMatchingConfig:
    data = {
        "max_length": 12,
        "length": LENGTH,
        "verbalizer": {"words": {"bad": "bad", "good": "good", "so so": "okay"}},
        "target": {"kind": "head", "sketch_dimension": 64},
        "matching": {"rounds": 3, "inner_steps": 4, "learning_rate": 0.05, "batch_size": 16, "swap_sweeps": 2},
        "projection": {"k": 50},
    }
    for section, values in changes.items():
        data[section] = {**data[section], **values} if isinstance(values, dict) else values
    return GradientMatchingConfig.model_validate(data)


def head_gradient(base: LoadedModel, text_ids: list[int], word: str) -> torch.Tensor:
    """Gradient of the label loss by the head's weight alone, by plain backward: `(V, d)`."""
    tokenizer, model = base.tokenizer, base.model
    template = tokenizer.encode(" It was", add_special_tokens=False)
    label = tokenizer.encode(" " + word, add_special_tokens=False)[0]
    with torch.no_grad():
        ids = torch.tensor([[tokenizer.bos_token_id, *text_ids, *template]])
        hidden = model.model(input_ids=ids).last_hidden_state[:, -1]
    weight = model.lm_head.weight.detach().clone().requires_grad_()
    loss = functional.cross_entropy(hidden @ weight.T, torch.tensor([label]))
    return torch.autograd.grad(loss, weight)[0]


def loss_by_definition(base: LoadedModel, text_ids: list[int], target: Target, label: int) -> float:
    name = NAMES[label]
    gradient, wanted = (
        t.double().flatten() for t in (head_gradient(base, text_ids, WORDS[name]), target.tensors[name])
    )
    return float(1 - gradient @ wanted / gradient.norm() / wanted.norm())


def encoded(base: LoadedModel, text: str) -> list[int]:
    return base.tokenizer.encode(" " + text, add_special_tokens=False)


REAL = {"bad": "a dull and lifeless mess", "good": "a wonderful film", "so so": "neither good nor bad"}
WORDS = {"bad": "bad", "good": "good", "so so": "okay"}


def head_target(base: LoadedModel, config: GradientMatchingConfig) -> Target:
    tensors = {name: head_gradient(base, encoded(base, REAL[name]), WORDS[name]) for name in NAMES}
    return Target(tensors, LENGTH, base.digest, config)


def random_target(base: LoadedModel, config: GradientMatchingConfig, shape: tuple[int, ...]) -> Target:
    generator = torch.Generator().manual_seed(9)
    return Target({name: torch.randn(shape, generator=generator) for name in NAMES}, LENGTH, base.digest, config)


def shard(base, target, config, examples=EXAMPLES, **options):
    return match_shard(base, target, config=config, examples=examples, public_seed=3, **options)


def test_a_row_tells_the_loss_of_its_emitted_string(base):
    config = make_config()
    target = head_target(base, config)
    table = shard(base, target, config)
    assert table.schema == SCHEMA
    rows = table.to_pylist()
    assert [(row["label"], row["example"]) for row in rows] == EXAMPLES
    for row in rows:
        expected = loss_by_definition(base, encoded(base, row["text"]), target, row["label"])
        assert row["emitted_loss"] == pytest.approx(expected, abs=1e-5)
        assert row["text"] == row["text"].strip()
        assert row["text"].isprintable()
        assert (len(row["relaxed"]), len(row["losses"]), len(row["residuals"])) == (4, 3, 3)
        assert all(0 <= loss <= 2 for loss in (*row["relaxed"], *row["losses"], row["projected_loss"]))
        assert all(residual > 0 for residual in row["residuals"])
    assert len({row["text"] for row in rows}) == len(rows)


def test_a_text_that_comes_back_as_other_tokens_has_the_loss_of_those(base):
    config = make_config(projection={"kind": "l2"}, matching={"rounds": 1, "inner_steps": 1})
    target = head_target(base, config)
    rows = shard(base, target, config, [(1, number) for number in range(24)]).to_pylist()
    longer = [row for row in rows if len(encoded(base, row["text"])) > LENGTH]
    assert 0 < len(longer) < len(rows)
    for row in longer:
        expected = loss_by_definition(base, encoded(base, row["text"]), target, 1)
        assert row["emitted_loss"] == pytest.approx(expected, abs=1e-5)
    assert max(abs(row["emitted_loss"] - row["projected_loss"]) for row in longer) > 0.01


def test_the_projected_loss_is_that_of_the_projected_tokens(base):
    config = make_config(projection={"k": 1, "instruction": "{label}"})
    target = head_target(base, config)
    for row in shard(base, target, config).to_pylist():
        # With one proposal every round projects to the same tokens: greedy decoding after the instruction.
        name = NAMES[row["label"]]
        prompt = [base.tokenizer.bos_token_id, *base.tokenizer.encode(name, add_special_tokens=False)]
        allowed = allowed_tokens(base.tokenizer, "printable")
        ids: list[int] = []
        for _ in range(LENGTH):
            with torch.no_grad():
                logits = base.model(input_ids=torch.tensor([prompt + ids])).logits[0, -1]
            ids.append(int(logits.masked_fill(~allowed, -torch.inf).argmax()))
        assert row["text"] == base.tokenizer.decode(ids).strip()
        expected = loss_by_definition(base, ids, target, row["label"])
        assert row["projected_loss"] == pytest.approx(expected, abs=1e-5)
        assert row["losses"] == pytest.approx([row["projected_loss"]] * 3, abs=1e-6)


@pytest.mark.parametrize("kind", ["head", "label_rows", "sketch"])
def test_two_shards_and_other_batches_give_the_rows_of_one(base, kind):
    shorter = {"rounds": 2, "swap_sweeps": 1}
    config = make_config(target={"kind": kind}, matching=shorter)
    shape = {"head": (len(base.tokenizer), 16), "label_rows": (3, 16), "sketch": (64,)}[kind]
    target = random_target(base, config, shape)
    whole = shard(base, target, config).to_pylist()
    halves = (
        shard(base, target, config, EXAMPLES[3:]).to_pylist() + shard(base, target, config, EXAMPLES[:3]).to_pylist()
    )
    small = shard(base, target, make_config(target={"kind": kind}, matching={**shorter, "batch_size": 2})).to_pylist()
    assert len({row["text"] for row in whole}) == len(EXAMPLES)
    for rows in (halves[2:] + halves[:2], small):
        for row, expected in zip(rows, whole, strict=True):
            assert (row["text"], row["label"], row["example"]) == tuple(
                expected[key] for key in ("text", "label", "example")
            )
            for key in SCHEMA.names[3:]:
                assert row[key] == pytest.approx(expected[key], abs=1e-3), key


def test_matching_lowers_the_loss_of_what_is_matched(base):
    config = make_config(matching={"rounds": 1, "inner_steps": 60})
    table = shard(base, head_target(base, config), config)
    short = make_config(matching={"rounds": 1, "inner_steps": 1})
    before = [row[0] for row in shard(base, head_target(base, short), short)["relaxed"].to_pylist()]
    after = [row[0] for row in table["relaxed"].to_pylist()]
    assert all(late < 0.5 * early for early, late in zip(before, after, strict=True))


def test_the_nearest_text_of_all_rounds_is_emitted(base):
    """Same rounds, other text: never worse than the last round's, and the best of all f(Z) where that is better."""
    settings = {"inner_steps": 8, "penalty": 0.01, "swap_sweeps": 0}
    last, nearest = (
        shard(
            base,
            head_target(base, config),
            config,
        ).to_pylist()
        for config in (make_config(projection={"kind": "l2"}, matching={**settings, "emit": e}) for e in EMITS)
    )
    for before, after in zip(last, nearest, strict=True):
        assert after["losses"] == before["losses"]
        assert after["projected_loss"] == min(before["projected_loss"], *before["losses"])
    assert any(after["text"] != before["text"] for before, after in zip(last, nearest, strict=True))


@pytest.mark.parametrize("kind", ["top_k", "l2"])
def test_swaps_bring_the_text_nearer_and_the_row_tells_how_far(base, kind):
    plain, swapped = (
        shard(base, head_target(base, config), config).to_pylist()
        for config in (make_config(projection={"kind": kind}, matching={"swap_sweeps": n}) for n in (0, 5))
    )
    for before, after in zip(plain, swapped, strict=True):
        assert before["swapped"] == [before["projected_loss"]]
        assert after["swapped"][0] == before["projected_loss"]
        assert after["swapped"] == sorted(after["swapped"], reverse=True)
        assert after["projected_loss"] == after["swapped"][-1]
    assert (
        sum(after["emitted_loss"] < 0.8 * before["emitted_loss"] for before, after in zip(plain, swapped, strict=True))
        > 2
    )


def test_the_last_text_is_the_projection_of_x_after_the_last_round(base, tmp_path):
    config = make_config(projection={"kind": "l2"}, matching=PAPER_EMITS)
    rows = shard(
        base, head_target(base, config), config, checkpoints=lambda name: TrainingCheckpoint(tmp_path / name)
    ).to_pylist()
    step, state = TrainingCheckpoint(tmp_path / "batch-00000").load()
    allowed = allowed_tokens(base.tokenizer, "printable")
    final = l2_projection(base.model, state["x"], allowed=allowed).token_ids
    shifted = l2_projection(base.model, state["x"] + state["dual"] / 0.01, allowed=allowed).token_ids
    assert step == 3
    assert not torch.equal(final, shifted)
    assert [row["text"] for row in rows] == [base.tokenizer.decode(ids).strip() for ids in final]


class Killed(RuntimeError):
    pass


class DyingCheckpoint(TrainingCheckpoint):
    """Fails after a number of saves, counted over all batches."""

    saves_left = 0

    def save(self, step, tensors):
        super().save(step, tensors)
        DyingCheckpoint.saves_left -= 1
        if DyingCheckpoint.saves_left == 0:
            raise Killed


@pytest.fixture(scope="module")
def unbroken(base):
    """A shard of two batches of three rounds and a warm start, eight saves: config, target and rows."""
    config = make_config(matching={"batch_size": 3})
    target = head_target(base, config)
    return config, target, shard(base, target, config)


@pytest.mark.parametrize("saves", [1, 3, 4, 5, 8])
def test_a_shard_killed_anywhere_and_run_again_gives_the_same_rows(base, unbroken, tmp_path, saves):
    config, target, whole = unbroken
    DyingCheckpoint.saves_left = saves
    with pytest.raises(Killed):
        shard(base, target, config, checkpoints=lambda name: DyingCheckpoint(tmp_path / name))
    seen = []
    again = shard(
        base,
        target,
        config,
        checkpoints=lambda name: TrainingCheckpoint(tmp_path / name),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert again.equals(whole)
    done = saves - 1 if saves <= 4 else saves - 2  # the second warm start is no round
    # A batch is three rounds and two sweeps; the sweeps are done again, to the same tokens.
    assert seen == [(step, 10) for step in ([*[1, 2, 3][done:], 5, *[6, 7, 8][max(0, done - 3) :], 10])]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch-00000", "batch-00001"]


def test_the_full_gradient_is_matched_too(base):
    config = make_config(matching={"gradient": "full", "rounds": 1, "inner_steps": 2})
    size = sum(parameter.numel() for parameter in base.model.parameters())
    rows = shard(base, random_target(base, config, (size,)), config, EXAMPLES[:2]).to_pylist()
    assert all(0 < row["emitted_loss"] < 2 for row in rows)
    assert rows[0]["relaxed"][1] < rows[0]["relaxed"][0]


def test_the_ablation_without_the_model_takes_the_nearest_tokens(base):
    config = make_config(projection={"kind": "l2", "k": 10_000}, matching={**STILL, "learning_rate": 1e-6})
    target = head_target(base, config)
    start = starting_tokens(
        EXAMPLES, NAMES, length=LENGTH, allowed=allowed_tokens(base.tokenizer, "printable"), public_seed=3
    )
    # Steps too short to leave the starting tokens' cells: they come back.
    texts = shard(base, target, config)["text"].to_pylist()
    assert texts == [base.tokenizer.decode(row).strip() for row in start]


def test_starts_are_public_streams_of_seed_label_and_number():
    allowed = torch.arange(100) % 3 == 0
    draw = {"length": 20, "allowed": allowed}
    tokens = starting_tokens(EXAMPLES, NAMES, public_seed=3, **draw)
    assert bool(allowed[tokens].all())
    assert len({tuple(row) for row in tokens.tolist()}) == len(EXAMPLES)
    alone = [starting_tokens([example], NAMES, public_seed=3, **draw)[0] for example in EXAMPLES]
    assert torch.equal(torch.stack(alone), tokens)
    assert not torch.equal(starting_tokens(EXAMPLES, NAMES, public_seed=4, **draw), tokens)


def test_instructions_name_their_label_and_end_in_the_same_column(base):
    ids, mask = instruction_prompts(base.tokenizer, NAMES, Instruction("{label}? {odd}"))
    for name, row, kept in zip(NAMES, ids, mask, strict=True):
        assert base.tokenizer.decode(row[kept.bool()]) == f"<|endoftext|>{name}? {{odd}}"
    assert bool(mask[:, -1].all())
    assert bool((mask.diff(dim=1) >= 0).all())


def test_unfit_settings_are_refused_by_name(base):
    check_matching(base, NAMES, config=make_config())
    with pytest.raises(InputError, match=r"projection\.k=8200"):
        check_matching(base, NAMES, config=make_config(projection={"k": 8200}))
    check_matching(base, NAMES, config=make_config(projection={"k": 8200, "kind": "l2"}))
    for changes in ({"length": 62, "max_length": 62}, {"length": "as_in_data", "max_length": 62}):
        with pytest.raises(InputError, match="length=62"):
            check_matching(base, NAMES, config=make_config(**changes))


def test_a_shard_that_does_not_fit_its_target_is_refused(base):
    config = make_config()
    target = head_target(base, config)
    with pytest.raises(InputError, match="random-llama"):
        shard(LoadedModel(base.model, base.tokenizer, digest="1" * 64, name=base.name, notes=()), target, config)
    with pytest.raises(InputError, match="indices \\[3\\]"):
        shard(base, target, config, [(0, 0), (3, 0)])
    with pytest.raises(InputError, match="at least one"):
        shard(base, target, config, [])
