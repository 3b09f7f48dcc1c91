"""Losses through the head in chunks, and their per-example gradients, against plain logits in double precision."""

import copy
import dataclasses
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from understudy.models import lora
from understudy.privacy.dpsgd import token_losses as module
from understudy.privacy.dpsgd.per_example import clipped_gradient_sum
from understudy.privacy.dpsgd.token_losses import TERMS_AT_ONCE, HeadFactors, products_of, token_losses

VOCABULARY, WIDTH, LENGTH, ROWS = 37, 12, 9, 5


@pytest.fixture(params=["one token at a time", "some", "all at once"])
def chunks(request, monkeypatch):
    monkeypatch.setattr(
        module, "LOGITS_AT_ONCE", {"o": 1, "s": 4 * LENGTH * VOCABULARY // 2, "a": 1 << 22}[request.param[0]]
    )


def model_of(kind, *, tied):
    common = {"vocab_size": VOCABULARY, "tie_word_embeddings": tied, "pad_token_id": None}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "gpt2":
            small = GPT2Config(n_embd=WIDTH, n_layer=1, n_head=2, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0,
                               attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, **common)  # fmt: skip
            model = GPT2LMHeadModel(small)
        else:
            small = LlamaConfig(hidden_size=WIDTH, intermediate_size=20, num_hidden_layers=1, num_attention_heads=2,
                                num_key_value_heads=1, **common)  # fmt: skip
            model = LlamaForCausalLM(small)
        if kind == "llama-bias":
            model.lm_head.bias = nn.Parameter(torch.randn(VOCABULARY))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.2)
        if kind == "llama-lora":
            model = lora.attach(model, rank=2, alpha=4, generator=torch.Generator().manual_seed(1))
            for parameter in lora.trainable_parameters(model).values():
                nn.init.normal_(parameter, std=0.2)
    return model.double().eval()


def rows(seed=2):
    generator = torch.Generator().manual_seed(seed)
    # few distinct tokens, so that inputs and targets of one row often meet in the tied matrix
    ids = torch.randint(0, 6, (ROWS, LENGTH), generator=generator)
    ids[:, -1] = torch.randint(0, VOCABULARY, (ROWS,), generator=generator)
    return {"input_ids": ids, "weights": torch.rand(ROWS, LENGTH - 1, generator=generator, dtype=torch.float64)}


def parts(model, ids):
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    positions = torch.arange(ids.shape[1])[None].repeat(ids.shape[0], 1)
    hidden = inner.base_model(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
    return inner.get_output_embeddings(), hidden


def chunked(model, batch):
    head, hidden = parts(model, batch["input_ids"])
    losses = token_losses(head, hidden[:, :-1], batch["input_ids"][:, 1:])
    return (losses * batch["weights"]).sum(1)


def plain(model, batch):
    """The same by definition."""
    head, hidden = parts(model, batch["input_ids"])
    likely = head(hidden[:, :-1]).log_softmax(-1).gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
    return -(likely * batch["weights"]).sum(1)


def chunked_twice(model, batch):
    """Two texts per example: the head's uses have cross terms with each other and with the embedding's."""
    other = {**batch, "input_ids": batch["input_ids"].flip(1)}
    return chunked(model, batch) + 0.5 * chunked(model, other)


def plain_twice(model, batch):
    other = {**batch, "input_ids": batch["input_ids"].flip(1)}
    return plain(model, batch) + 0.5 * plain(model, other)


def chunked_and_plain(model, batch):
    return chunked(model, batch) + plain(model, {**batch, "input_ids": batch["input_ids"].flip(1)})


def plain_and_plain(model, batch):
    return plain(model, batch) + plain(model, {**batch, "input_ids": batch["input_ids"].flip(1)})


def plain_and_chunked(model, batch):
    return plain(model, {**batch, "input_ids": batch["input_ids"].flip(1)}) + chunked(model, batch)


MODELS = {
    "gpt2-tied": ("gpt2", True),
    "gpt2-untied": ("gpt2", False),
    "llama-tied": ("llama", True),
    "llama-untied": ("llama", False),
    "llama-bias": ("llama-bias", False),
    "llama-tied-bias": ("llama-bias", True),
    "llama-lora": ("llama-lora", True),
}


@cache
def clipped_by_definition(name, loss):
    """One example at a time, plain autograd, the same for all sizes of chunks: the sum, and the norm it clips to."""
    kind, tied = MODELS[name]
    model, batch = model_of(kind, tied=tied), rows()
    parameters = lora.trainable_parameters(model)
    found = []
    for row in range(ROWS):
        one = {key: value[row : row + 1] for key, value in batch.items()}
        found.append(torch.autograd.grad(loss(model, one)[0], list(parameters.values())))
    norms = [torch.cat([g.flatten() for g in gradients]).norm().item() for gradients in found]
    clip = sorted(norms)[2]  # some are clipped, some are not
    shares = [min(1.0, clip / norm) for norm in norms]
    summed = [sum(share * g for share, g in zip(shares, each, strict=True)) for each in zip(*found, strict=True)]
    return dict(zip(parameters, summed, strict=True)), clip


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize(
    ("loss", "definition"),
    [
        (chunked, plain),
        (chunked_twice, plain_twice),
        (chunked_and_plain, plain_and_plain),
        (plain_and_chunked, plain_and_plain),
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_clipped_sums_equal_a_loop_over_examples(name, loss, definition):
    kind, tied = MODELS[name]
    model, batch = model_of(kind, tied=tied), rows()
    parameters = lora.trainable_parameters(model)
    expected, clip = clipped_by_definition(name, definition)
    assert expected.keys() == parameters.keys()
    everyone = torch.ones(ROWS, dtype=torch.bool)
    found = clipped_gradient_sum(model, parameters, loss, batch, l2_clip_norm=clip, valid=everyone)
    whole = torch.cat([value.flatten() for value in expected.values()]).norm()
    for key, value in expected.items():
        # norms are rounded up by 2^-21 of their scale, which is all that double precision leaves
        assert (found[key] - value).norm() <= 2e-6 * max(value.norm(), 1e-2 * whole), key


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied", "llama-tied-bias"])
def test_each_contribution_is_clipped_to_the_norm(name, dtype):
    kind, tied = MODELS[name]
    model, batch, clip = model_of(kind, tied=tied).to(dtype), rows(), 0.01
    batch["weights"] = batch["weights"].to(dtype)
    parameters = lora.trainable_parameters(model)
    for row in range(ROWS):
        found = clipped_gradient_sum(
            model, parameters, chunked, batch, l2_clip_norm=clip, valid=torch.arange(ROWS) == row
        )
        norm = torch.cat([value.double().flatten() for value in found.values()]).norm()
        assert clip * (1 - 5e-5) < norm < clip * (1 + 2.0**-23)


def in_two_passes(loss):
    """A text and its reverse, half as heavy, in one call of the model of 2 * batch rows."""

    def both(model, batch):
        ids, weights = batch["input_ids"], batch["weights"]
        rows = {"input_ids": torch.cat([ids, ids.flip(1)]), "weights": torch.cat([weights, 0.5 * weights])}
        return loss(model, rows).view(2, -1).sum(0)

    return both


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied", "llama-tied-bias"])
def test_all_passes_of_an_example_reach_the_gradient_of_the_head(name):
    kind, tied = MODELS[name]
    model, batch = model_of(kind, tied=tied), rows()
    parameters = lora.trainable_parameters(model)
    expected, clip = clipped_by_definition(name, plain_twice)
    everyone = torch.ones(ROWS, dtype=torch.bool)
    found = clipped_gradient_sum(
        model, parameters, in_two_passes(chunked), batch, l2_clip_norm=clip, valid=everyone, passes=2
    )
    whole = torch.cat([value.flatten() for value in expected.values()]).norm()
    for key, value in expected.items():
        assert (found[key] - value).norm() <= 2e-6 * max(value.norm(), 1e-2 * whole), key


def longest_contribution(model, loss, batch, *, clip: float) -> float:
    """The largest norm that the head's clipped sum has of one example alone."""
    rows = torch.arange(len(batch["ids"]))
    parameters = dict(model.named_parameters())
    alone = [clipped_gradient_sum(model, parameters, loss, batch, l2_clip_norm=clip, valid=rows == row) for row in rows]
    return max(float(found["head.weight"].double().norm()) for found in alone)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("tied", [False, True])
def test_errors_of_large_logits_are_those_whose_norm_was_taken(tied):
    """At logits of 1e4 a last bit is a thousandth, and decides a probability: made twice, errors would differ."""
    words, width, length, examples, clip = 503, 48, 33, 7, 0.01
    table = nn.Embedding(words, width) if tied else None
    head = nn.Linear(width, words, bias=False)
    nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        head.weight[1] = head.weight[0] * (1 + 1e-7)
    if tied:
        table.weight = head.weight
    model = nn.ModuleDict({"head": head, **({"table": table} if tied else {})})
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        hidden = torch.randn(examples, length, width, generator=generator) * 300
        likeliest = (hidden @ head.weight.T).argmax(-1)
        batch = {
            "hidden": hidden,
            "ids": likeliest,
            "read": torch.randint(0, words, (examples, 5), generator=generator),
        }

        def loss(model, batch):
            shift = model["table"](batch["read"]).mean((1, 2))[:, None, None] * 1e-3 if tied else 0.0
            return token_losses(model["head"], batch["hidden"] + shift, batch["ids"]).sum(1)

        assert longest_contribution(model, loss, batch, clip=clip) <= clip * (1 + 2.0**-23)


@pytest.mark.parametrize(("width", "size"), [(48, 1e6), (768, 1e5), (768, 1e6)])
def test_a_probability_that_is_read_again_is_at_most_one(width, size):
    """Text of one token, tied matrices: at logits of 1e7 the probability of the token that was read came out as 1e6.

    Its share of the norm is negative here, so that nearly nothing was left of the norm, and nothing was clipped.
    """
    words, examples, clip = 1001, 8, 0.01
    generator = torch.Generator().manual_seed(0)
    head, table = nn.Linear(width, words, bias=False), nn.Embedding(words, width)
    nn.init.normal_(head.weight, generator=generator)
    table.weight = head.weight
    model = nn.ModuleDict({"head": head, "table": table})
    for _ in range(4):
        hidden = torch.randn(examples, 1, width, generator=generator) * size
        likeliest = (hidden @ head.weight.T).argmax(-1)
        batch = {
            "hidden": hidden,
            "ids": torch.randint(0, words, (examples, 1), generator=generator),
            "read": likeliest,
            "as_read": head.weight.detach()[likeliest],
        }

        def loss(model, batch):
            shift = size * (model["table"](batch["read"]) - batch["as_read"])
            return token_losses(model["head"], batch["hidden"] - shift, batch["ids"]).sum(1)

        assert longest_contribution(model, loss, batch, clip=clip) <= clip * (1 + 2.0**-23)


@pytest.mark.parametrize("place", [0, TERMS_AT_ONCE - 1])
def test_long_products_count_every_term_and_are_added_up_in_float64(place):
    """A clip norm is held against such sums: at 2^24 a float32 sum no longer feels a 1."""
    row = torch.zeros(1, 1, 41 * TERMS_AT_ONCE + 3)
    row[0, 0, 0] = 4096.0
    row[0, 0, torch.arange(1, 41) * TERMS_AT_ONCE + place] = 1.0
    assert float(products_of(row, row)) == 2.0**24 + 40


@pytest.mark.parametrize("size", [0.25, 3.0])
def test_the_norm_of_error_rows_is_that_of_the_rows_themselves(size):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(3, 5, 8, generator=generator), torch.randn(30, 8, generator=generator)
    targets = torch.randint(0, 30, (3, 5), generator=generator)
    _, mass, _, products = module._read(hidden, targets, weight, None, slopes=False, products=True)
    head = HeadFactors(hidden, targets, torch.full((3, 5), size), mass, products, weight, None)
    probabilities = (hidden.double() @ weight.double().T).softmax(-1)
    exact = size * (probabilities - functional.one_hot(targets, 30)).flatten(1).norm(dim=1)
    torch.testing.assert_close(head.error_norm(), exact, rtol=1e-5, atol=0.0)


def head_of_cancelling_products(dtype, *, exponent: float) -> tuple[HeadFactors, torch.Tensor]:
    """All logits are 0, and their rounding errors may be as large as the exponent: sums of d products are 2 d u off."""
    words, width, unit = 40, 512, torch.finfo(dtype).eps / 2
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(1, 3, width, generator=generator), torch.randn(words, width, generator=generator)
    hidden[:, :, width // 2 :] = weight[:, : width // 2] = 0.0
    sides = hidden.norm(dim=2, keepdim=True), weight.norm(dim=1, keepdim=True)
    hidden *= exponent / (2 * width * unit) / sides[0]
    targets, mass = torch.full((1, 3), words - 1), torch.full((1, 3), words).log()
    factors = hidden.to(dtype), targets, torch.full((1, 3), 3.0), mass, None, (weight / sides[1]).to(dtype), None
    return HeadFactors(*factors), torch.arange(words - 1)[None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bound_on_entries_that_are_made_once_more_is_that_of_their_exponents(dtype):
    """By Higham's bound on the two products, and by what the exponential makes of it."""
    head, tokens = head_of_cancelling_products(dtype, exponent=1.5)
    entries, off = head.errors_at(tokens)
    torch.testing.assert_close(entries, torch.full_like(entries, 3.0 / 40))
    assert bool((off >= 3.0 / 40 * torch.tensor(1.48).expm1()).all())
    assert bool((off <= 3.0).all()), "a probability is at most 1 off"


def test_an_entry_that_is_no_float_may_be_a_whole_probability_where_logits_are_that_large():
    head, tokens = head_of_cancelling_products(torch.float32, exponent=300.0)
    below = dataclasses.replace(head, log_mass=torch.full((1, 3), 200.0))
    entries, off = below.errors_at(tokens)
    assert not entries.any()
    assert bool((off == 3.0).all())


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_rows_that_do_not_count_leave_no_trace(poison):
    """A null row and one without finite gradient: the sum's bytes are those of other contents in their place."""
    model, batch = model_of("llama", tied=True), rows()
    other = {name: value.clone() for name, value in batch.items()}
    other["input_ids"][1] = 36
    other["weights"][1] = poison
    parameters, counted = lora.trainable_parameters(model), torch.arange(ROWS) != 1
    one, two = (
        clipped_gradient_sum(model, parameters, chunked, b, l2_clip_norm=0.3, valid=counted) for b in (batch, other)
    )
    assert all(torch.equal(one[key], two[key]) for key in one)
    everyone = torch.ones(ROWS, dtype=torch.bool)
    poisoned = clipped_gradient_sum(model, parameters, chunked, other, l2_clip_norm=0.3, valid=everyone)
    assert all(torch.allclose(poisoned[key], one[key], atol=1e-12) for key in one)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("name", ["gpt2-tied", "llama-bias"])
def test_ordinary_training_gets_the_ordinary_gradients(name):
    kind, tied = MODELS[name]
    model, batch = model_of(kind, tied=tied), rows()
    twin = copy.deepcopy(model)
    chunked(model, batch).sum().backward()
    plain(twin, batch).sum().backward()
    for (key, one), two in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one.grad, two.grad, atol=1e-10), key


@pytest.mark.usefixtures("chunks")
def test_without_gradients_only_losses_are_computed():
    model, batch = model_of("llama", tied=True), rows()
    with torch.no_grad():
        found = chunked(model, batch)
    assert not found.requires_grad
    assert torch.allclose(found, plain(model, batch), atol=1e-10)


def test_losses_of_16_bit_logits_are_computed_in_float32():
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(8, 300, bias=False, dtype=torch.bfloat16)
    hidden = torch.randn(2, 5, 8, generator=generator).bfloat16()
    targets = torch.randint(0, 300, (2, 5), generator=generator)
    found = token_losses(head, hidden, targets)
    logits = head(hidden).double()
    exact = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(2, 5)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0.0)


def test_a_head_of_another_kind_is_read_in_one_piece():
    head = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
    hidden, targets = torch.randn(2, 3, 4), torch.tensor([[0, 1, 2], [3, 4, 5]])
    expected = functional.cross_entropy(head(hidden).transpose(1, 2), targets, reduction="none")
    assert torch.allclose(token_losses(head, hidden, targets), expected)


def test_logits_are_never_held_for_the_whole_batch(monkeypatch):
    """The largest tensor of a pass has at most as many numbers as are allowed at once, or one row's."""
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", 2 * LENGTH * VOCABULARY)
    model, batch = model_of("llama", tied=True), rows()
    parameters, largest = lora.trainable_parameters(model), 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.shape[-1:] == (VOCABULARY,):
                largest = max(largest, result.numel())
            return result

    with Watch():
        clipped_gradient_sum(
            model, parameters, chunked, batch, l2_clip_norm=0.3, valid=torch.ones(ROWS, dtype=torch.bool)
        )
    assert 0 < largest <= 2 * LENGTH * VOCABULARY
