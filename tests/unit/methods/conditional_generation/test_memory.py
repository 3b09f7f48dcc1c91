"""Batch sizes that follow from public facts, and what is refused because it cannot fit."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from understudy import hardware
from understudy.data.private_rows import PrivateRows
from understudy.errors import InputError
from understudy.methods.conditional_generation import memory
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig as Config
from understudy.methods.conditional_generation.encode import prompts_of
from understudy.methods.conditional_generation.memory import (
    check_fits,
    generation_bytes,
    padded_length,
    recomputes,
    resolve,
    resolve_for,
    rows_at_a_time,
    rows_per_pass,
    training_bytes,
)
from understudy.methods.conditional_generation.method import METHOD
from understudy.methods.conditional_generation.queries import Asked, queries_of, schedule_of
from understudy.methods.conditional_generation.train import fit
from understudy.models.loading import load_model
from understudy.models.lora import trainable_parameters
from understudy.models.shape import ModelShape, shape_of
from understudy.privacy import rounded_gaussian

GIB = 2**30
# As instruct models have it: a turn opens with its role, and closes.
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BIG = ModelShape(30, 576, 576, 192, 1536, True, 49_152, 134_515_008)


@pytest.fixture
def machine(monkeypatch):
    """Give the machine so many GiB."""

    def set_limit(gib):
        for module in (memory, hardware):
            monkeypatch.setattr(module, "device_memory", lambda: int(gib * GIB))

    set_limit(16)
    return set_limit


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("batch", "n"), [(256, 8530), (128, 8530), (40, 600), (10, 600), (256, 30), (1, 600)])
def test_fillers_stay_under_a_tenth_of_an_expected_step(batch, n):
    rows = rows_per_pass(Config(train={"batch_size": batch, "max_length": 16}), n, None)
    assert (rows - 1) / 2 <= min(batch, n) / 10
    assert rows >= 1


def test_the_micro_batch_is_the_same_on_every_processor(machine):
    """A run may go on on a machine with less memory."""
    found = set()
    for gib in (0.5, 2, 8, 16, 23.5, 512):
        machine(gib)
        found.add(rows_per_pass(Config(), 8530, BIG))
    assert found == {8}
    machine(0.5)
    with pytest.raises(InputError, match=r"this machine allows 0\.5.*train\.micro_batch=8"):
        check_fits(Config(), BIG)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_charge_does_not_depend_on_the_machine(machine, monkeypatch, device):
    """The same command on another machine must not be charged a second time: it is told that the device differs."""
    monkeypatch.setenv("UNDERSTUDY_DEVICE", device)
    machine(80)
    charged = METHOD.charge.settings(resolve(Config()))
    assert charged == METHOD.charge.settings(resolve(Config(generate={"batch_size": 5})))
    assert charged.train.micro_batch == "auto"


@pytest.mark.parametrize(
    ("gib", "batch", "n", "length", "rows"),
    [
        (80, 256, 8530, 48, 256),
        (40, 256, 8530, 48, 128),  # 256 rows would take more than half of the memory
        (256, 256, 8530, 120, 128),  # more tokens are not faster
        (256, 100, 8530, 48, 64),  # a larger pass would be filled with rows that do not count
        (256, 256, 40, 48, 32),
        (8, 256, 8530, 48, 16),
        (2, 256, 8530, 48, 8),  # as on a CPU; `check_fits` refuses it
    ],
)
def test_a_pass_on_a_gpu_has_as_many_rows_as_make_it_faster(machine, monkeypatch, gib, batch, n, length, rows):
    machine(gib)
    monkeypatch.setenv("UNDERSTUDY_DEVICE", "cuda")
    config = Config(train={"batch_size": batch, "max_length": length})
    assert rows_per_pass(config, n, BIG, device="cuda") == rows
    assert rows == 8 or not recomputes(config, BIG, rows)
    assert rows_per_pass(Config(train={"micro_batch": 7}), n, BIG, device="cuda") == 7
    assert rows_per_pass(config, n, None, device="cuda") == rows_per_pass(config, n, None)


@pytest.mark.parametrize(("gib", "rows"), [(139.8, 2048), (79.6, 2048), (24, 1024), (2, 64)])
def test_a_gpu_draws_as_many_rows_as_have_room_in_half_of_it(machine, monkeypatch, gib, rows):
    machine(gib)
    monkeypatch.setenv("UNDERSTUDY_DEVICE", "cuda")
    assert rows_at_a_time(Config(), BIG) == rows
    assert generation_bytes(Config(), BIG, rows) <= gib * 2**30 / 2
    assert rows_at_a_time(Config(generate={"batch_size": 7}), BIG) == 7
    assert rows_at_a_time(Config(), None) == 128


@pytest.mark.usefixtures("machine")
def test_given_numbers_stay_and_need_no_model():
    given = Config(model="no/such-model", train={"micro_batch": 7}, generate={"batch_size": 3})
    assert resolve(given) is given
    half = resolve_for(Config(train={"micro_batch": 7}), BIG)
    assert (half.train.micro_batch, half.generate.batch_size) == (7, 128)
    for value in (0, 65_537, "automatic", 2.5):
        with pytest.raises(ValueError, match="micro_batch"):
            Config(train={"micro_batch": value})


@pytest.mark.parametrize("topics", [(), (("ferry", "ticket", "price"), ("crew",))], ids=["no topics", "topics"])
@pytest.mark.parametrize("about", ["", "notes to the service desk of a ferry line"])
@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
def test_the_length_that_memory_is_predicted_from_is_nearly_that_of_rows(chat, about, topics):
    """Plain prompts counted as long as those of a chat predicted 1.3 times the measured peak."""
    base, labels = load_model("tiny-llama"), ("negative", "positive")
    if chat:
        base = replace(base, tokenizer=copy.deepcopy(base.tokenizer))
        base.tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
        base.tokenizer.chat_template = CHAT
    config = Config(about=about, topics={"keywords": topics or "auto"})
    width = prompts_of(base.tokenizer, labels, config).width + config.train.max_length
    assert base.shape.chat is chat
    assert padded_length(config, base.shape) == pytest.approx(width, rel=0.1)


def test_sums_of_more_rows_than_floats_add_up_are_counted_in_float64():
    full = Config(lora={"rank": 0})
    each = training_bytes(full, BIG, 32) - training_bytes(full, BIG, 31)
    assert training_bytes(full, BIG, 33) - training_bytes(full, BIG, 32) == pytest.approx(4 * BIG.parameters + each)


@pytest.mark.parametrize("settings", [{"lora": {"rank": 0}}, {}], ids=["all weights", "adapters"])
def test_an_average_is_counted_as_one_more_copy_of_what_is_trained(settings):
    plain, averaged = Config(**settings), Config(**settings, train={"averaging": 0.9})
    trained = BIG.adapter_parameters(8) if not settings else BIG.parameters
    assert training_bytes(averaged, BIG, 8) - training_bytes(plain, BIG, 8) == 4 * trained


def test_less_is_held_on_a_gpu():
    for rank, share in ((8, 1.3), (0, 1.1)):
        config = Config(lora={"rank": rank})
        assert training_bytes(config, BIG, 8, device="cuda") < training_bytes(config, BIG, 8) / share


def test_the_compiler_of_noise_is_counted_from_where_noise_is_compiled():
    """The number stands twice, because memory is predicted without torch."""
    assert memory._COMPILED_FROM == rounded_gaussian.COMPILED_FROM


def test_layers_are_computed_twice_only_where_a_run_would_not_fit_otherwise(machine):
    long = Config(train={"max_length": 1024, "micro_batch": 1})
    assert not recomputes(long, BIG, 1)
    machine(6)
    assert recomputes(long, BIG, 1)
    assert training_bytes(long, BIG, 1, recompute=True) < training_bytes(long, BIG, 1) / 4
    check_fits(long, BIG)


def test_what_cannot_fit_is_refused_with_what_to_lower(machine):
    machine(2)
    with pytest.raises(InputError, match=r"this machine allows 2\.0.*train\.micro_batch=64.*train\.max_length"):
        check_fits(Config(train={"micro_batch": 64, "max_length": 1024}), BIG)
    with pytest.raises(InputError, match=r"lora\.rank=0"):
        check_fits(Config(train={"micro_batch": 1}, lora={"rank": 0}), BIG)
    machine(16)
    check_fits(Config(train={"micro_batch": 8}), BIG)


@pytest.mark.parametrize("threads", [1, 2])
def test_recomputed_layers_give_the_same_bytes(
    machine, make_base, make_config, make_rows, make_mechanisms, label_names, threads
):
    """Activation checkpointing is a matter of memory alone, also where two threads have a copy of the layers each."""
    from understudy.methods.conditional_generation.encode import encode

    torch.set_num_threads(threads)
    found = []
    for gib in (16, 1e-4):
        machine(gib)
        config, base = make_config(lora={"rank": 2}, train={"epochs": 0.5}), make_base("llama")
        assert recomputes(config, shape_of(base.model.config.to_dict(), parameters=1), 8) == (gib < 1)
        texts, labels = make_rows()
        planned = schedule_of(queries_of(config, n=len(texts), epsilon=math.inf, delta=1e-3))
        rows = encode(PrivateRows(texts, labels, label_names), tokenizer=base.tokenizer, config=config)
        trained = fit(base, rows, Asked(config, planned, make_mechanisms(planned)), checkpoints=None, progress=None)
        assert trainable_parameters(trained.model) == {}
        found.append(trained.model.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
