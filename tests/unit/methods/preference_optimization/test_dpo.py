"""DPO against the formula written out by hand, on models that are small but have real tokenizers."""

import copy
import hashlib
import math
import os
import random
from dataclasses import replace
from pathlib import Path

import fork_server
import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch.nn.functional import logsigmoid
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from understudy.errors import InputError, UnderstudyError
from understudy.methods.preference_optimization import dpo, dpo_pairs
from understudy.methods.preference_optimization.config import PreferenceConfig
from understudy.methods.preference_optimization.dpo import build_trainer, train_round
from understudy.methods.preference_optimization.dpo_pairs import (
    NothingLearnt,
    Pairs,
    encode_pairs,
    pairs_at_once,
    step_bytes,
)
from understudy.models.adapters import put_adapter, same_weights, take_adapter, with_adapter, wrap
from understudy.models.checkpoints import TrainingCheckpoint
from understudy.models.loading import LoadedModel, load_model
from understudy.models.shape import ModelShape

ANIMALS = ["cat", "dog", "horse", "bird", "fish", "mouse", "sheep", "cow"]
ALL_AT_ONCE = PreferenceConfig(lora_rank=3, lora_alpha=6, batch_size=64, epochs=1, learning_rate=1e-3, beta=0.3)

TINY = ModelShape(
    layers=4, hidden=256, queries=256, keys=256, inner=688, gated=True, vocabulary=8192, parameters=6_000_000
)
# Of SmolLM2-135M.
BIG = ModelShape(
    layers=30, hidden=576, queries=576, keys=192, inner=1536, gated=True, vocabulary=49_152, parameters=134_515_008
)


def small_model(family: str) -> LoadedModel:
    """One random layer with a shipped tokenizer."""
    shipped = load_model({"llama": "tiny-llama", "gpt2": "tiny-gpt2"}[family])
    common = {"vocab_size": len(shipped.tokenizer), "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if family == "gpt2":
            shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 48}
            off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
            model = GPT2LMHeadModel(GPT2Config(**shape, **off, **common, initializer_range=0.3))
        else:
            shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
            model = LlamaForCausalLM(LlamaConfig(**shape, **common, max_position_embeddings=48, initializer_range=0.3))
    return replace(shipped, model=model.eval(), name=family)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def base(request) -> LoadedModel:
    return small_model(request.param)


@pytest.fixture(scope="module")
def gpt2() -> LoadedModel:
    return small_model("gpt2")


def animal_pairs(animals) -> Pairs:
    prompts = [f"Text 1: about a {animal}\n\nText 2:" for animal in animals]
    chosen = [f"the {animal} was very good" for animal in animals]
    return Pairs(prompts, chosen, [f"a bad {animal}" for animal in animals])


PAIRS = animal_pairs(ANIMALS[:5])


def random_adapter(base: LoadedModel, *, size: float = 0.2, seed: int = 1) -> dict[str, torch.Tensor]:
    fresh = take_adapter(wrap(same_weights(base.model), rank=3, alpha=6, seed=0))
    generator = torch.Generator().manual_seed(seed)
    return {name: size * torch.randn(tensor.shape, generator=generator) for name, tensor in fresh.items()}


def log_probability(model, tokenizer, prompt: str, text: str) -> torch.Tensor:
    """Of a text and its line break after a prompt: one sequence, no padding."""
    before = [0, *tokenizer.encode(prompt)]
    after = [*(tokenizer.encode(" " + text) if text else []), *tokenizer.encode("\n")]
    logits = model(input_ids=torch.tensor([before + after])).logits[0].double()
    scores = logits.log_softmax(-1)[len(before) - 1 : -1]
    return scores.gather(1, torch.tensor(after)[:, None]).sum()


def margins(model, base: LoadedModel, pairs: Pairs) -> torch.Tensor:
    """(log pi/ref of chosen) - (log pi/ref of rejected), the reference being the base model."""
    rows = []
    for prompt, chosen, rejected in zip(pairs.prompts, pairs.chosen, pairs.rejected, strict=True):
        policy = [log_probability(model, base.tokenizer, prompt, text) for text in (chosen, rejected)]
        with torch.no_grad():
            reference = [log_probability(base.model, base.tokenizer, prompt, text) for text in (chosen, rejected)]
        rows.append((policy[0] - reference[0]) - (policy[1] - reference[1]))
    return torch.stack(rows)


def loss_by_hand(model, base: LoadedModel, pairs: Pairs, config: PreferenceConfig) -> torch.Tensor:
    h = config.beta * margins(model, base, pairs)
    wrong = config.label_smoothing if config.loss == "conservative" else 0.0
    return (-(1 - wrong) * logsigmoid(h) - wrong * logsigmoid(-h)).mean()


def run(base, previous, folder, *, pairs=PAIRS, config=ALL_AT_ONCE, round=0, **more):
    return train_round(
        base,
        previous,
        rows=encode_pairs(base, pairs),
        config=config,
        **{"public_seed": 7, "round": round, "folder": folder, **more},
    )


@pytest.mark.parametrize("smoothing", [None, 0.1, 0.4])
def test_loss_and_gradient_are_those_of_the_formula(base, smoothing, tmp_path):
    change = {} if smoothing is None else {"loss": "conservative", "label_smoothing": smoothing}
    config = ALL_AT_ONCE.model_copy(update=change)
    adapter = random_adapter(base)
    pairs = Pairs([*PAIRS.prompts, "Text 1:"], [*PAIRS.chosen, "some words"], [*PAIRS.rejected, ""])
    with dpo._as_found(base.model):
        trainer = build_trainer(
            base, adapter, encode_pairs(base, pairs), config=config, seeds=(0, 0), folder=tmp_path, progress=None
        )
        batch = trainer.data_collator([trainer.train_dataset[row] for row in range(6)])
        trainer.model.train()
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        found = {name: p.grad for name, p in trainer.model.named_parameters() if p.requires_grad}
        wrapped = wrap(same_weights(base.model), rank=3, alpha=6, seed=0)
        put_adapter(wrapped, adapter)
        expected = loss_by_hand(wrapped, base, pairs, config)
        expected.backward()
        gradients = {name: p.grad for name, p in wrapped.named_parameters() if p.requires_grad}
    assert loss.item() == pytest.approx(expected.item(), abs=2e-5)
    assert abs(loss.item() - math.log(2)) > 0.01
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert torch.allclose(found[name], gradient, atol=1e-4 * gradient.abs().max().item() + 1e-6), name
    assert max(g.abs().max().item() for g in gradients.values()) > 1e-3


def test_the_reference_is_the_base_in_every_round(base, tmp_path):
    adapter, losses = None, []
    for number in range(2):
        policy = with_adapter(base, adapter, alpha=6)
        with torch.no_grad():
            expected = loss_by_hand(policy.model, base, PAIRS, ALL_AT_ONCE).item()
        seen = []
        adapter = run(base, adapter, tmp_path, round=number, progress=lambda *step: seen.append(step))  # noqa: B023
        assert [step[:2] for step in seen] == [(1, 1)]
        assert seen[0][2] == pytest.approx(expected, abs=1e-4)
        losses.append(seen[0][2])
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6)
    # Were the reference the round before, this would be log 2 again.
    assert losses[1] < math.log(2) - 0.01


def test_training_widens_the_margin_of_pairs_it_has_not_seen(base, tmp_path):
    config = ALL_AT_ONCE.model_copy(update={"batch_size": 2, "epochs": 3, "learning_rate": 5e-3})
    held = animal_pairs(ANIMALS[5:])
    adapter = run(base, None, tmp_path, config=config)
    turned = run(base, None, tmp_path, pairs=Pairs(PAIRS.prompts, PAIRS.rejected, PAIRS.chosen), config=config)
    with torch.no_grad():
        after = margins(with_adapter(base, adapter, alpha=6).model, base, held)
        against = margins(with_adapter(base, turned, alpha=6).model, base, held)
    assert bool((after > 0.5).all())
    assert bool((against < -0.5).all())


def test_steps_are_epochs_over_batches_with_a_cosine_schedule(gpt2, tmp_path):
    steps = []
    config = ALL_AT_ONCE.model_copy(update={"batch_size": 2, "epochs": 3})
    run(gpt2, None, tmp_path, config=config, progress=lambda *step: steps.append(step[:2]))
    assert steps == [(i, 9) for i in range(1, 10)]
    with dpo._as_found(gpt2.model):
        trainer = build_trainer(
            gpt2, None, encode_pairs(gpt2, PAIRS), config=config, seeds=(0, 0), folder=tmp_path, progress=None
        )
        trainer.create_optimizer_and_scheduler(9)
        rates = []
        for _ in range(9):
            rates.append(trainer.lr_scheduler.get_last_lr()[0])
            trainer.optimizer.step()
            trainer.lr_scheduler.step()
    assert rates == pytest.approx([1e-3 * (1 + math.cos(math.pi * i / 9)) / 2 for i in range(9)])
    assert type(trainer.optimizer.optimizer if hasattr(trainer.optimizer, "optimizer") else trainer.optimizer) is (
        torch.optim.AdamW
    )


@pytest.mark.parametrize(("count", "sizes"), [(5, (1,)), (6, (1, 2))])
def test_a_step_that_goes_through_in_parts_is_the_whole_step(base, count, sizes, tmp_path, monkeypatch):
    """Also the last step of a pass, which has fewer pairs: to rounding, which Adam would scale up in its first step."""
    config = ALL_AT_ONCE.model_copy(update={"batch_size": 4, "epochs": 2})
    pairs, previous, steps, found = animal_pairs(ANIMALS[:count]), random_adapter(base), [], []
    for at_once in (4, *sizes):
        monkeypatch.setattr(dpo, "pairs_in_a_pass", lambda *_, at_once=at_once: at_once)
        told = []
        folder = tmp_path / str(at_once)
        found.append(
            run(base, previous, folder, pairs=pairs, config=config, progress=lambda *step, told=told: told.append(step))
        )
        steps.append(told)
    assert all([step[:2] for step in told] == [(i, 4) for i in range(1, 5)] for told in steps)
    moved = max(float((found[0][name] - previous[name]).abs().max()) for name in previous)
    assert moved > 1e-3
    for told, adapter in zip(steps[1:], found[1:], strict=True):
        assert [loss for *_, loss in told] == pytest.approx([loss for *_, loss in steps[0]], abs=2e-4)
        for name in previous:
            torch.testing.assert_close(adapter[name], found[0][name], atol=0.02 * moved, rtol=0)


def test_a_step_is_cut_where_it_has_no_room_and_into_equal_parts_only():
    asked = {"longest": 125, "pairs": 32, "batch_size": 16}
    assert pairs_at_once(TINY, **asked) == 16
    assert pairs_at_once(None, **asked) == 16, "a shape that is not known: memory is not looked at"
    assert pairs_at_once(BIG, **asked) == 2
    assert step_bytes(BIG, longest=125, pairs=2) <= dpo_pairs.AMPLE < step_bytes(BIG, longest=125, pairs=4)
    assert pairs_at_once(BIG, **asked | {"pairs": 31}) == 1, "no other number divides step and round"
    assert pairs_at_once(BIG, **asked | {"pairs": 2}) == 16, "a round smaller than a step is looked at as it is"
    assert pairs_at_once(BIG, **asked | {"longest": 100_000}) == 1


def digest(adapter) -> str:
    return hashlib.sha256(save(adapter)).hexdigest()


AGAIN = """
import runpy, sys, tempfile
from pathlib import Path
sys.path.append(str(Path(sys.argv[1]).parents[3]))
test = runpy.run_path(sys.argv[1])
test["torch"].set_num_threads(1)
print(test["second_round"](Path(tempfile.mkdtemp()), round=1))
"""


def second_round(folder, *, round) -> str:
    base = small_model("gpt2")
    config = ALL_AT_ONCE.model_copy(update={"batch_size": 2})
    return digest(run(base, random_adapter(base), folder, config=config, round=round))


def test_equal_seeds_give_equal_bytes_in_another_process(tmp_path):
    torch.manual_seed(123)  # whatever went before
    here = second_round(tmp_path, round=1)
    (tmp_path / "again.py").write_text(AGAIN)
    with (tmp_path / "out").open("w+b") as out, (tmp_path / "error").open("w+b") as error:
        words, streams = [str(tmp_path / "again.py"), __file__], [0, out.fileno(), error.fileno()]
        assert fork_server.start(words, environment=os.environ, streams=streams).wait() == 0
    assert (tmp_path / "out").read_text().split() == [here]
    assert second_round(tmp_path, round=2) != here  # another order of the pairs


def test_start_values_come_from_the_public_seed(gpt2, tmp_path):
    starts = []
    for seed in (7, 7, 8):
        with dpo._as_found(gpt2.model):
            rows, seeds = encode_pairs(gpt2, PAIRS), dpo._seeds(seed, 0)
            trainer = build_trainer(gpt2, None, rows, config=ALL_AT_ONCE, seeds=seeds, folder=tmp_path, progress=None)
            starts.append(digest(take_adapter(trainer.model)))
    assert starts[0] == starts[1] != starts[2]


def test_nothing_is_left_behind(gpt2, tmp_path, monkeypatch, capfd):
    import trl.trainer.base_trainer

    told = []
    monkeypatch.setattr(trl.trainer.base_trainer, "send_telemetry", lambda *a, **k: told.append(a))
    monkeypatch.setattr("socket.socket.connect", lambda *address: told.append(address))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    weights = {name: tensor.clone() for name, tensor in gpt2.model.state_dict().items()}
    flags = [parameter.requires_grad for parameter in gpt2.model.parameters()]
    settings = gpt2.model.config.to_dict()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    run(gpt2, None, tmp_path / "given", config=ALL_AT_ONCE.model_copy(update={"loss": "conservative"}))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    assert all(torch.equal(weights[name], tensor) for name, tensor in gpt2.model.state_dict().items())
    assert [parameter.requires_grad for parameter in gpt2.model.parameters()] == flags
    assert gpt2.model.config.to_dict() == settings
    assert "forward" not in vars(gpt2.model)
    assert not gpt2.model.training
    assert [path for path in Path(tmp_path).rglob("*") if path.is_file()] == []
    assert told == []
    assert capfd.readouterr() == ("", "")


def test_no_token_is_added_or_cut_between_prompt_and_text(base):
    rows = encode_pairs(base, Pairs(["Text 1:"], ["one two"], [""]))
    encode, decode = base.tokenizer.encode, base.tokenizer.decode
    assert rows["prompt_ids"] == [[0, *encode("Text 1:")]]
    assert decode(rows["chosen_ids"][0]) == " one two\n"
    assert rows["rejected_ids"] == [encode("\n")]


def test_an_answer_in_a_chat_follows_without_a_space_and_ends_with_the_end_token(base):
    tokenizer = copy.deepcopy(base.tokenizer)
    tokenizer.chat_template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}<assistant>"
    chat = replace(base, tokenizer=tokenizer)
    rows = encode_pairs(chat, Pairs(["<user>Write.</><assistant>"], ["one\n\ntwo"], [""], in_chat=True))
    assert rows["chosen_ids"] == [[*tokenizer.encode("one\n\ntwo"), tokenizer.eos_token_id]]
    assert rows["rejected_ids"] == [[tokenizer.eos_token_id]]


def test_a_pair_that_does_not_fit_is_left_out_not_cut(gpt2, caplog):
    fitting = "a " * 100
    while len(encode_rows := gpt2.tokenizer.encode(" " + fitting.strip())) + 2 > 48 - 1:
        fitting = fitting[:-2]
    prompt = ""  # BOS alone
    assert len(encode_pairs(gpt2, Pairs([prompt], [fitting], ["b"]))["chosen_ids"][0]) == len(encode_rows) + 1 == 46
    rows = encode_pairs(gpt2, Pairs([prompt] * 2, ["b", "b"], ["c", fitting + "a a"]))
    assert [gpt2.tokenizer.decode(ids) for ids in rows["rejected_ids"]] == [" c\n"]
    assert [len(column) for column in rows.values()] == [1, 1, 1]
    assert not caplog.records, "without noise it is private that there is one, as its number is"
    with pytest.raises(NothingLearnt, match="gpt2's context of 48 tokens"):
        encode_pairs(gpt2, Pairs([prompt], ["b"], [fitting + "a a"]))


@pytest.mark.parametrize("sizes", [(0, 0, 0), (2, 2, 1), (1, 2, 2)])
def test_lists_of_pairs_match_and_hold_something(gpt2, sizes, tmp_path):
    prompts, chosen, rejected = sizes
    with pytest.raises(InputError, match=rf"at least 1, found \({prompts}, {chosen}, {rejected}\)"):
        run(gpt2, None, tmp_path, pairs=Pairs(["a"] * prompts, ["b"] * chosen, ["c"] * rejected))


def test_equal_texts_teach_nothing_and_are_left_out(gpt2, tmp_path):
    rows = encode_pairs(gpt2, Pairs(["a:", "b:", "c:"], ["same", "one", ""], [" same ", "two", ""]))
    assert [gpt2.tokenizer.decode(ids) for ids in rows["chosen_ids"]] == [" one\n"]
    assert [len(column) for column in rows.values()] == [1, 1, 1]
    with pytest.raises(NothingLearnt, match=r"texts that differ.* raise candidates\.sampling\.temperature"):
        run(gpt2, None, tmp_path, pairs=Pairs(["a:", "b:"], ["same", "too"], ["same", "too"]))


def test_an_adapter_that_stays_where_it_was_is_no_round(gpt2, tmp_path):
    config = ALL_AT_ONCE.model_copy(update={"learning_rate": 1e-30})
    with pytest.raises(NothingLearnt, match=r"unchanged; raise preferences\.learning_rate"):
        run(gpt2, random_adapter(gpt2), tmp_path, config=config)


def test_numbers_that_are_not_finite_end_the_round(gpt2, tmp_path):
    broken = random_adapter(gpt2)
    broken[next(iter(broken))][0, 0] = math.inf
    with pytest.raises(UnderstudyError, match=r"lower preferences\.learning_rate"):
        run(gpt2, broken, tmp_path)


class Interrupted(RuntimeError):
    pass


class DyingCheckpoint(TrainingCheckpoint):
    """Fails right after it has kept the state of one step."""

    def save(self, step, tensors):
        super().save(step, tensors)
        if step == 3:
            raise Interrupted


@pytest.mark.parametrize("room", [dpo_pairs.AMPLE, 0], ids=["whole steps", "steps in parts"])
def test_a_round_resumed_amid_its_steps_ends_in_the_same_bytes(base, room, tmp_path, monkeypatch):
    monkeypatch.setattr(dpo_pairs, "AMPLE", room)
    config = ALL_AT_ONCE.model_copy(update={"batch_size": 2, "epochs": 2})
    previous, steps = random_adapter(base), []
    whole = run(base, previous, tmp_path / "whole", config=config)
    with pytest.raises(Interrupted):
        run(base, previous, tmp_path / "a", config=config, checkpoint=DyingCheckpoint(tmp_path / "steps", every=3))
    resumed = run(
        base,
        previous,
        tmp_path / "b",
        config=config,
        checkpoint=TrainingCheckpoint(tmp_path / "steps", every=100),
        progress=lambda step, _, __: steps.append(step),
    )
    assert len(PAIRS.prompts) > 4, "it was cut within its first epoch"
    assert steps[0] == 4
    assert save(resumed) == save(whole)
    assert [path.suffix for path in (tmp_path / "steps").iterdir()] == [".safetensors"]
