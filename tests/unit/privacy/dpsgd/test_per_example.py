"""The per-example engine against a loop over single examples with plain autograd."""

import copy

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from random_models import random_model
from torch import nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from understudy.errors import InputError
from understudy.models import lora
from understudy.privacy.dpsgd import factors
from understudy.privacy.dpsgd.chunks import ROWS_IN_FLOATS
from understudy.privacy.dpsgd.factors import Factors, _frobenius, inner_product, rounding_of_sums
from understudy.privacy.dpsgd.layers import rules_of
from understudy.privacy.dpsgd.per_example import _Uses, clipped_gradient_sum
from understudy.privacy.dpsgd.stacks import Stacks, sum_at, weighted_sums
from understudy.privacy.dpsgd.token_losses import HeadFactors
from understudy.privacy.dpsgd.trial import told_of_model
from understudy.privacy.grid import ALLOWANCE

VOCABULARY, PAD = 23, 1


def gpt2(*, tied=True):
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=32, pad_token_id=PAD,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=tied,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return seeded(GPT2LMHeadModel, config)


def llama(*, tied=True):
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=PAD, tie_word_embeddings=tied, attention_bias=True,
    )  # fmt: skip
    return seeded(LlamaForCausalLM, config)


def seeded(kind, config, *, seed=0):
    with torch.random.fork_rng(devices=[]):
        # transformers draws start values from the global generator; a test must not depend on those before it.
        torch.manual_seed(seed)
        model = kind(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            # Wide enough that examples differ, norms spread and no bias or scale sits at its trivial start.
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def adapted(model, *, seed=1):
    generator = torch.Generator().manual_seed(seed)
    result = lora.attach(model, rank=3, alpha=6, generator=generator)
    with torch.no_grad():
        for parameter in lora.trainable_parameters(result).values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return result


def opt(**more):
    sizes = {"vocabulary": VOCABULARY, "width": 16, "word_embed_proj_dim": 16, "positions": 32}
    return seeded(lambda _: random_model("opt", **sizes, **more), None)


MODELS = {
    "gpt2": gpt2,
    "gpt2-untied": lambda: gpt2(tied=False),
    "gpt2-lora": lambda: adapted(gpt2()),
    "llama": llama,
    "llama-untied": lambda: llama(tied=False),
    "llama-lora": lambda: adapted(llama()),
    "opt-lora": lambda: adapted(opt()),
    "opt-lora-norm-after": lambda: adapted(opt(do_layer_norm_before=False)),
}


def make_batch(size=5, length=9, *, seed=2, content=4):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, length + 1, (size,), generator=generator)
    lengths[0] = length
    mask = (torch.arange(length)[None] < lengths[:, None]).long()
    # few distinct tokens, so that one token occurs several times in an example
    ids = torch.randint(2, 2 + content, (size, length), generator=generator) * mask + PAD * (1 - mask)
    return {"input_ids": ids, "attention_mask": mask}


def positions(ids):
    return torch.arange(ids.shape[1])[None].repeat(ids.shape[0], 1)


def lm_loss(model, batch):
    ids, mask = batch["input_ids"], batch["attention_mask"]
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions(ids), use_cache=False).logits[:, :-1]
    losses = functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return (losses * mask[:, 1:]).sum(1) / mask[:, 1:].sum(1)


def two_pass_loss(model, batch):
    """The mean of the losses of a text and of its reverse, in one forward pass of 2 * batch rows."""
    both = {
        "input_ids": torch.cat([batch["input_ids"], batch["input_ids"].flip(1)]),
        "attention_mask": torch.cat([batch["attention_mask"], batch["attention_mask"].flip(1)]),
    }
    return lm_loss(model, both).view(2, -1).mean(0)


def loop_over_examples(model, parameters, loss_fn, batch, *, l2_clip_norm, valid):
    """The definition: one example at a time, plain autograd, no code shared with the engine."""
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    norms = []
    for index in range(len(valid)):
        one = {key: value[index : index + 1] for key, value in batch.items()}
        loss = loss_fn(model, one)[0]
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters.values(), found, strict=True)]
        norm = torch.cat([g.double().flatten() for g in gradients]).norm()
        norms.append(norm.item())
        if valid[index]:
            factor = min(1.0, l2_clip_norm / norm.item())
            for name, gradient in zip(total, gradients, strict=True):
                total[name] += gradient.double() * factor
    return total, norms


def assert_close(found, expected, tolerance=5e-5):
    assert found.keys() == expected.keys()
    scale = torch.cat([t.flatten() for t in expected.values()]).norm()
    for name, value in expected.items():
        assert found[name].shape == value.shape
        difference = (found[name].double() - value).norm()
        # a tensor much smaller than the rest is judged against its own size, down to float32 rounding of all
        assert difference <= max(tolerance * value.norm(), torch.finfo(torch.float32).eps * scale), (
            name,
            float(difference / value.norm()),
        )


def parameters_of(model):
    return lora.trainable_parameters(model)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_equals_a_loop_over_examples(name, passes):
    model, batch = MODELS[name](), make_batch()
    loss_fn = lm_loss if passes == 1 else two_pass_loss
    valid = torch.tensor([True, True, False, True, True])
    parameters = parameters_of(model)
    _, norms = loop_over_examples(model, parameters, loss_fn, batch, l2_clip_norm=1.0, valid=valid)
    # some examples are clipped, some are not
    clip = sorted(norms)[2]
    expected, _ = loop_over_examples(model, parameters, loss_fn, batch, l2_clip_norm=clip, valid=valid)
    found = clipped_gradient_sum(model, parameters, loss_fn, batch, l2_clip_norm=clip, valid=valid, passes=passes)
    assert_close(found, expected)
    assert all(value.abs().sum() > 0 for value in found.values()), "the signal reaches every trainable tensor"


@pytest.mark.parametrize("length", [2, 30])
@pytest.mark.parametrize("name", ["gpt2", "llama", "llama-lora"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_forms_of_the_norm(name, length, dtype):
    """Short texts keep factors, long ones materialise; both equal the loop, in single and in double precision."""
    model, batch = MODELS[name]().to(dtype), make_batch(3, max(length, 3))
    valid = torch.ones(3, dtype=torch.bool)
    parameters = parameters_of(model)
    expected, _ = loop_over_examples(model, parameters, lm_loss, batch, l2_clip_norm=0.5, valid=valid)
    found = clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=0.5, valid=valid)
    assert_close(found, expected)


@pytest.mark.parametrize("name", MODELS)
def test_each_contribution_is_clipped_exactly(name):
    """Alone in its batch, an example contributes its own gradient's direction, of norm C: never more, hardly less."""
    model, batch, clip = MODELS[name](), make_batch(), 0.01
    parameters = parameters_of(model)
    for index in range(5):
        valid = torch.arange(5) == index
        found = clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=clip, valid=valid)
        flat = torch.cat([value.double().flatten() for value in found.values()])
        assert clip * (1 - 5e-5) < flat.norm() < clip * (1 + 2.0**-23)
        expected, _ = loop_over_examples(model, parameters, lm_loss, batch, l2_clip_norm=clip, valid=valid)
        true = torch.cat([value.flatten() for value in expected.values()])
        assert (flat / flat.norm() - true / true.norm()).norm() < 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_null_rows_contribute_exactly_zero_whatever_they_hold(name):
    model, batch = MODELS[name](), make_batch()
    valid = torch.tensor([True, False, True, False, True])
    other = {key: value.clone() for key, value in batch.items()}
    other["input_ids"][1] = 22
    other["attention_mask"][1] = 1
    other["attention_mask"][3] = 0  # its loss is 0 / 0
    parameters = parameters_of(model)
    options = {"l2_clip_norm": 0.3, "valid": valid}
    first = clipped_gradient_sum(model, parameters, lm_loss, batch, **options)
    second = clipped_gradient_sum(model, parameters, lm_loss, other, **options)
    assert all(torch.equal(first[key], second[key]) for key in first)
    none = clipped_gradient_sum(
        model, parameters, lm_loss, other, l2_clip_norm=0.3, valid=torch.zeros(5, dtype=torch.bool)
    )
    assert all(value.numpy().tobytes() == bytes(value.numel() * 4) for value in none.values())


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("name", ["gpt2", "llama-lora"])
def test_an_example_without_finite_gradient_contributes_zero(name, poison):
    model, batch = MODELS[name](), {**make_batch(), "scale": torch.ones(5)}
    batch["scale"][1] = poison

    def loss(model, batch):
        return lm_loss(model, batch) * batch["scale"] ** 2

    parameters = parameters_of(model)
    everyone = torch.ones(5, dtype=torch.bool)
    found = clipped_gradient_sum(model, parameters, loss, batch, l2_clip_norm=0.3, valid=everyone)
    expected, _ = loop_over_examples(model, parameters, lm_loss, batch, l2_clip_norm=0.3, valid=torch.arange(5) != 1)
    assert_close(found, expected)


@pytest.mark.parametrize("numbers", [1, 48, 240])
@pytest.mark.parametrize("name", ["gpt2", "gpt2-untied", "llama"])
def test_a_matrix_in_several_blocks_gets_the_same_sum(name, numbers, monkeypatch):
    """Of every kind of use, with fewer rows in the last block, and with an example that is not finite."""
    monkeypatch.setattr(factors, "_NUMBERS_AT_ONCE", numbers)
    model, batch = MODELS[name](), {**make_batch(length=4), "scale": torch.ones(5)}
    batch["scale"][1] = torch.inf
    parameters, everyone = parameters_of(model), torch.ones(5, dtype=torch.bool)

    def loss(model, batch):
        return lm_loss(model, batch) * batch["scale"]

    found = clipped_gradient_sum(model, parameters, loss, batch, l2_clip_norm=0.3, valid=everyone)
    expected, _ = loop_over_examples(model, parameters, lm_loss, batch, l2_clip_norm=0.3, valid=torch.arange(5) != 1)
    assert_close(found, expected)


@pytest.mark.parametrize("height", [2, 3, 7])
@pytest.mark.parametrize("examples", [1, 4, 40])
def test_high_gradients_that_are_there_are_added_like_others(height, examples):
    """They lie on their side in memory; an example that is not finite is left out of their sum."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(examples + 1, 9, size, generator=generator) for size in (height, 2))
    exact = torch.bmm(left.double().transpose(1, 2), right.double())[:-1]
    left[-1, 0, 0] = torch.inf
    stacks = Stacks([2 * height])
    place = stacks.put(Factors(left, right))
    norms = stacks.squared_norms().sqrt()[:-1]
    assert torch.allclose(norms, exact.flatten(1).norm(dim=1), rtol=1e-5)
    weights, poisoned = torch.rand(examples + 1, generator=generator).double(), torch.arange(examples + 1) == examples
    weights[-1] = 0.0
    found = sum_at(place, stacks.weighted_sums(weights, poisoned))
    assert torch.allclose(found.double(), torch.einsum("b,bij->ij", weights[:-1], exact), atol=1e-4)


def test_poison_inside_the_activations_stays_in_its_row():
    """An infinite input of a layer, not only an infinite loss: zero weight times infinity must not leak."""
    model, valid = nn.Linear(3, 2), torch.ones(3, dtype=torch.bool)
    x = torch.tensor([[1.0, 2.0, 3.0], [float("inf"), 0.0, 1.0], [0.5, 0.0, -1.0]])

    def loss(model, batch):
        return model(batch["x"]).square().sum(1)

    parameters = dict(model.named_parameters())
    found = clipped_gradient_sum(model, parameters, loss, {"x": x}, l2_clip_norm=1.0, valid=valid)
    expected, _ = loop_over_examples(
        model, parameters, loss, {"x": x}, l2_clip_norm=1.0, valid=torch.tensor([True, False, True])
    )
    assert_close(found, expected)


@pytest.mark.parametrize("name", MODELS)
def test_micro_batches_change_only_the_rounding(name):
    model, batch = MODELS[name](), make_batch(8)
    valid = torch.ones(8, dtype=torch.bool)
    parameters = parameters_of(model)
    whole = clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=0.5, valid=valid)
    for size in (1, 3):
        parts = {key: torch.zeros_like(value) for key, value in whole.items()}
        for start in range(0, 8, size):
            part = {key: value[start : start + size] for key, value in batch.items()}
            for key, value in clipped_gradient_sum(
                model, parameters, lm_loss, part, l2_clip_norm=0.5, valid=valid[start : start + size]
            ).items():
                parts[key] += value
        assert_close(parts, {key: value.double() for key, value in whole.items()})


def test_same_inputs_give_the_same_bytes():
    model, batch, valid = gpt2(), make_batch(), torch.ones(5, dtype=torch.bool)
    parameters = parameters_of(model)
    one = clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=0.5, valid=valid)
    two = clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=0.5, valid=valid)
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("chosen", ["ln_f", "h.1.", "wte", "wpe", "h.0.attn.c_attn.bias"])
def test_partly_frozen_models(chosen):
    model, batch, valid = gpt2(), make_batch(), torch.ones(5, dtype=torch.bool)
    parameters = {name: p for name, p in model.named_parameters() if chosen in name}
    assert parameters
    expected, _ = loop_over_examples(model, parameters, lm_loss, batch, l2_clip_norm=0.5, valid=valid)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in parameters)
    found = clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=0.5, valid=valid)
    assert_close(found, expected)


def test_padding_row_of_a_tied_embedding_gets_the_gradient_of_the_head_only():
    model, batch, valid = llama(), make_batch(), torch.ones(5, dtype=torch.bool)
    assert model.model.embed_tokens.padding_idx == PAD
    parameters = {"w": model.model.embed_tokens.weight}
    expected, _ = loop_over_examples(model, parameters, lm_loss, batch, l2_clip_norm=9.0, valid=valid)
    found = clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=9.0, valid=valid)
    assert_close(found, expected)


@pytest.mark.parametrize("name", ["llama", "llama-lora"])
def test_two_calls_of_the_model_in_one_loss(name):
    """Each call sees the plain batch; both uses of every parameter enter one norm."""
    model, batch, valid = MODELS[name](), make_batch(), torch.ones(5, dtype=torch.bool)

    def loss(model, batch):
        reverse = {key: value.flip(1) for key, value in batch.items()}
        return (lm_loss(model, batch) + lm_loss(model, reverse)) / 2

    parameters = parameters_of(model)
    twice = clipped_gradient_sum(model, parameters, loss, batch, l2_clip_norm=0.2, valid=valid)
    stacked = clipped_gradient_sum(model, parameters, two_pass_loss, batch, l2_clip_norm=0.2, valid=valid, passes=2)
    assert_close(twice, {key: value.double() for key, value in stacked.items()})


class Classifier(nn.Module):
    """A head over pooled and per-position features, with every small layer there is."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6)
        self.norms = nn.ModuleList([nn.LayerNorm(6), MistralRMSNorm(6), Qwen2RMSNorm(6), nn.LayerNorm(6, bias=False)])
        self.wide = nn.Linear(6, 40, bias=False)
        self.out = nn.Linear(40, 3)

    def forward(self, ids):
        hidden = self.embedding(ids)
        for norm in self.norms:
            hidden = norm(hidden)
        return self.out(torch.tanh(self.wide(hidden)).mean(1))


def classifier_loss(model, batch):
    return functional.cross_entropy(model(batch["input_ids"]), batch["input_ids"][:, 0] % 3, reduction="none")


def test_two_dimensional_inputs_and_small_layers():
    torch.manual_seed(3)
    model, batch, valid = Classifier(), make_batch(), torch.ones(5, dtype=torch.bool)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    parameters = parameters_of(model)
    expected, _ = loop_over_examples(model, parameters, classifier_loss, batch, l2_clip_norm=0.5, valid=valid)
    found = clipped_gradient_sum(model, parameters, classifier_loss, batch, l2_clip_norm=0.5, valid=valid)
    assert_close(found, expected)


# Opacus hooks the embedding, whose input can have no gradient.
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_agrees_with_opacus():
    torch.manual_seed(4)
    model, batch = Classifier(), make_batch()
    model.norms = nn.ModuleList([nn.LayerNorm(6)])
    parameters = parameters_of(model)
    found = clipped_gradient_sum(
        model, parameters, classifier_loss, batch, l2_clip_norm=0.1, valid=torch.ones(5, dtype=torch.bool)
    )
    wrapped = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    classifier_loss(wrapped, batch).sum().backward()
    samples = {name: p.grad_sample for name, p in wrapped._module.named_parameters()}
    norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples.values()]).norm(dim=0)
    factors = (0.1 / norms).clamp(max=1.0)
    expected = {name: torch.einsum("b,b...->...", factors, samples[name]).double() for name in parameters}
    assert_close(found, expected)


def test_norms_err_to_the_larger_side_under_cancellation():
    """Positions whose gradients nearly cancel: float32 inner products alone could underestimate the norm."""
    torch.manual_seed(5)
    model = nn.Linear(64, 64, bias=False)
    x = torch.randn(200, 1, 64).repeat(1, 2, 1) * 100 + torch.randn(200, 2, 64) * 1e-4
    sign = torch.tensor([1.0, -1.0])[None, :, None]

    def loss(model, batch):
        return (model(batch["x"]) * sign * batch["direction"]).sum((1, 2))

    batch = {"x": x, "direction": torch.randn(200, 1, 64)}
    parameters = dict(model.named_parameters())
    for index in range(20):
        one = {key: value[index : index + 1] for key, value in batch.items()}
        found = clipped_gradient_sum(
            model, parameters, loss, one, l2_clip_norm=1e-3, valid=torch.ones(1, dtype=torch.bool)
        )
        assert found["weight"].norm() <= 1e-3 * (1 + 1e-5)


@pytest.mark.parametrize("first", [1, 8, 16, 32])
def test_dust_in_a_large_gradient_counts_in_its_norm(first):
    """Squares too small for the last bit of a float32 sum that begins large: together they are more than is allowed."""
    width, clip = 1 << 21, 0.25
    layer = nn.Linear(width, 2, bias=False)
    row = torch.full((width,), 0.99 * 2.0**-12.5)
    row[:first] = 1.0
    # Two positions, so that the gradient, which is the row, is smaller than its factors and made itself.
    batch = {"x": torch.stack([row, torch.zeros(width)])[None]}
    parameters = dict(layer.named_parameters())
    found = clipped_gradient_sum(
        layer, parameters, lambda model, b: model(b["x"])[:, 0, 0], batch, l2_clip_norm=clip, valid=torch.tensor([True])
    )
    norm = float(torch.linalg.vector_norm(found["weight"], dtype=torch.float64))
    assert norm > clip * (1 - 2.0**-13), "clipping is active, and takes no more than it must"
    assert norm < clip * (1 + ALLOWANCE / 16)


def squares(gradients):
    stacks = Stacks([gradients.shape[1]])
    stacks.put(gradients)
    return stacks.squared_norms()


@pytest.mark.parametrize("numbers", [4095, 4096, 4097, 3 * 4096 + 1])
def test_the_norm_of_a_gradient_counts_what_fills_no_whole_block(numbers):
    gradients = torch.zeros(2, numbers)
    gradients[:, -1], gradients[1, 0] = 3.0, 4.0
    assert squares(gradients).tolist() == pytest.approx([9.0, 25.0], rel=1e-12)


def test_squares_of_blocks_are_added_up_in_float64():
    gradient = torch.zeros(1, 300 << 12)
    gradient[0, :: 1 << 12] = 2.0**-12
    gradient[0, 0] = 1.0
    assert float(squares(gradient)) == pytest.approx(1 + 299 * 2.0**-24, rel=1e-12)


@pytest.mark.parametrize("width", [8, 512])
def test_sums_of_16_bit_gradients_are_made_in_float32(width):
    """Of a small matrix, whose gradients are made, and of a large one, whose factors stay: both by definition."""
    made, clip = torch.Generator().manual_seed(0), 0.3
    layer = nn.Linear(width, 64, bias=False, dtype=torch.bfloat16)
    x, slope = (torch.randn(20, 12, size, generator=made).bfloat16() for size in (width, 64))
    found = clipped_gradient_sum(
        layer, dict(layer.named_parameters()), lambda m, b: (m(b["x"]) * b["slope"]).sum((1, 2)),
        {"x": x, "slope": slope}, l2_clip_norm=clip, valid=torch.arange(20) != 3,
    )["weight"]  # fmt: skip
    gradients = torch.bmm(slope.double().transpose(1, 2), x.double())
    shares = clip / gradients.flatten(1).norm(dim=1)
    assert bool((shares < 1).all())
    shares[3] = 0.0
    exact = (gradients * shares[:, None, None]).sum(0)
    assert found.dtype == torch.float32
    assert float((found.double() - exact).norm()) < 1e-4 * float(exact.norm())


def moved_by_one(layer, loss, batch, *, clip, rows):
    """How far a sum moves when one row becomes null, as a share of the clip norm: of some rows, the largest."""
    parameters, size = dict(layer.named_parameters()), len(next(iter(batch.values())))

    def summed(valid):
        found = clipped_gradient_sum(layer, parameters, loss, batch, l2_clip_norm=clip, valid=valid)
        return torch.cat([value.double().flatten() for value in found.values()])

    whole = summed(torch.ones(size, dtype=torch.bool))
    return max(float((whole - summed(torch.arange(size) != row)).norm()) / clip for row in rows)


def test_one_row_of_a_large_micro_batch_moves_the_sum_by_no_more_than_its_norm():
    """All rows alike: a float32 sum of so many is as coarse as a hundredth of a row."""
    layer, rows = nn.Linear(6, 1, bias=False), 1 << 16
    batch = {"x": torch.tensor([1.0, 0.3, 0.7, 0.9, 0.11, 0.77]).expand(rows, 2, 6) * 10}
    moved = moved_by_one(layer, lambda m, b: m(b["x"]).sum((1, 2)), batch, clip=0.1, rows=[0, 12345, rows - 1])
    assert 0.999 < moved < 1 + ALLOWANCE / 4


def test_one_row_of_many_whose_gradients_stay_factored_moves_the_sum_by_no_more_than_its_norm():
    """Each run of rows is added up in floats, and the runs in float64: an embedding's gradients are never made."""
    layer, rows, scale = nn.Embedding(2, 3), 1 << 14, torch.tensor([0.3, 0.7, 0.11])
    batch = {"ids": torch.zeros(rows, 2, dtype=torch.long)}
    moved = moved_by_one(
        layer, lambda m, b: (m(b["ids"]) * scale).sum((1, 2)), batch, clip=0.1, rows=[0, 5432, rows - 1]
    )
    assert 0.999 < moved < 1 + ALLOWANCE / 4


def test_gradients_whose_squares_are_no_floats_count():
    layer, clip = nn.Linear(64, 2, bias=False), 1e-23
    batch = {"x": torch.full((1, 2, 64), 1e-23)}
    found = clipped_gradient_sum(
        layer, dict(layer.named_parameters()), lambda m, b: m(b["x"])[:, 0, 0], batch, l2_clip_norm=clip,
        valid=torch.tensor([True]),
    )  # fmt: skip
    assert 0 < found["weight"].double().norm() <= clip


def test_a_norm_covers_how_far_the_gradient_that_is_added_may_be_off():
    """Many positions in a small matrix: a float sum over them may be off by more than the norm's own products are."""
    positions, unit = 512, torch.finfo(torch.float32).eps / 2
    left, right = torch.rand(2, 3, positions, 4, generator=torch.Generator().manual_seed(0)).unbind()
    found = _Uses(Stacks([]), embedded=True, factors=[Factors(left, right)]).squared_norms().sqrt()
    exact = torch.bmm(left.double().transpose(1, 2), right.double()).flatten(1).norm(dim=1)
    sizes = (left.double().norm(dim=2) * right.double().norm(dim=2)).sum(1)
    assert bool((found >= exact + positions * unit * sizes).all())
    assert bool((found <= exact * (1 + 2.0**-12)).all())


def test_a_norm_covers_the_roundings_of_squares_and_of_their_sum():
    """Beside those of the kernels' own products: of one-hot rows the one kernel is exact, the other has few terms."""
    tokens, right = torch.zeros(1, 6, dtype=torch.long), torch.ones(1, 6, 2)
    value, off = inner_product(Factors(tokens, right), Factors(tokens, right))
    unit, size = torch.finfo(torch.float32).eps / 2, 6 * 12.0  # norms of both kernels
    assert float(value) == 72
    assert float(off) >= (2 + 8 + 8) * unit * size


def test_the_terms_of_an_inner_product_are_added_up_in_float64():
    right = torch.full((1, 301, 1), 2.0**-8)
    right[0, 0] = 4096.0
    use = Factors(torch.zeros(1, 301, dtype=torch.long), right)
    assert float(inner_product(use, use)[0]) == (4096 + 300 / 256) ** 2


def test_gradients_of_one_row_too_many_for_a_sum_in_floats_are_added_up_in_float64():
    gradients = torch.ones(ROWS_IN_FLOATS + 1, 2)
    gradients[-1] = 2.0**30
    found = weighted_sums(gradients[None], torch.ones(len(gradients)), None)
    assert found.dtype == torch.float64
    assert found.tolist() == [[2.0**30 + ROWS_IN_FLOATS] * 2]


def test_a_bound_on_rounding_counts_the_positions_of_all_uses():
    left, right = torch.rand(2, 2, 3, 40, 4, generator=torch.Generator().manual_seed(0)).unbind()
    uses, unit = [Factors(*pair) for pair in zip(left, right, strict=True)], torch.finfo(torch.float32).eps / 2
    sizes = sum(use.left.double().flatten(1).norm(dim=1) * use.right.double().flatten(1).norm(dim=1) for use in uses)
    assert bool((rounding_of_sums(uses) >= 80 * unit * sizes).all())
    # One-hot rows have the norm of their number's root.
    table = Factors(torch.zeros(3, 40, dtype=torch.long), right[0])
    assert bool((rounding_of_sums([table]) >= 40 * unit * 40**0.5 * right[0].flatten(1).norm(dim=1)).all())


def test_a_bound_on_rounding_counts_products_that_are_no_floats():
    """Some processors add them up as zeros."""
    use = Factors(torch.full((1, 3, 2), 1e-19), torch.full((1, 3, 2), 1e-19))
    exact = torch.bmm(use.left.double().transpose(1, 2), use.right.double()).norm()
    assert float(rounding_of_sums([use])) >= float(exact) > 0


@pytest.mark.parametrize("size", [1.0, 1e-25])
def test_the_norm_that_a_bound_is_made_of_is_never_below_the_true_one(size):
    """However float32 rounds the squares and adds them up, and where it has no floats for them."""
    values = size * torch.rand(200, 3, 1000, generator=torch.Generator().manual_seed(0))
    exact = values.double().flatten(1).norm(dim=1)
    assert bool((_frobenius(values) >= exact).all())


def test_a_bound_on_a_product_counts_what_cancels_in_either_kernel():
    made, unit = torch.Generator().manual_seed(0), torch.finfo(torch.float32).eps / 2
    left, further, right, other = torch.randn(4, 2, 5, 64, generator=made).unbind()
    left[:, :, 32:] = further[:, :, :32] = 0.0
    sizes = left.double().flatten(1).norm(dim=1) * further.double().flatten(1).norm(dim=1)
    whole = (right.double() @ other.double().transpose(1, 2)).flatten(1).norm(dim=1)
    for one, two in ((Factors(left, right), Factors(further, other)), (Factors(right, left), Factors(other, further))):
        value, off = inner_product(one, two)
        assert not value.any()
        assert bool((off >= 64 * unit * sizes * whole).all())


def test_what_two_kernels_are_off_counts_together(monkeypatch):
    """Where nothing is left of either but what it may be off."""
    made = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(2, 5, 8, generator=made), torch.randn(30, 8, generator=made)
    others = torch.randn(2, 5, 8, generator=made)
    hidden[:, :, 4:] = others[:, :, :4] = 0.0
    targets, tokens = torch.randint(0, 30, (2, 2, 5), generator=made)
    head = HeadFactors(
        hidden, targets, torch.rand(2, 5, generator=made), (hidden @ weight.T).logsumexp(2), None, weight, None
    )
    embedded, nothing = Factors(tokens, others), torch.zeros(2, 5, 5)
    monkeypatch.setattr(HeadFactors, "errors_at", lambda *_: (nothing, torch.full_like(nothing, 0.2)))
    value, off = inner_product(head, embedded)
    sizes = hidden.double().flatten(1).norm(dim=1) * others.double().flatten(1).norm(dim=1)
    assert not value.any()
    # The norm of five rows of five times 0.2 is 1; the columns are sums of eight products.
    assert bool((off >= 8 * torch.finfo(torch.float32).eps / 2 * sizes).all())


def test_a_row_whose_factor_is_no_normal_float_counts_as_nothing():
    """It would be rounded by more than its last bit, maybe upwards."""
    model, batch = nn.Linear(1, 1, bias=False), {"x": torch.tensor([[1e10], [1.0]])}
    found = clipped_gradient_sum(
        model,
        dict(model.named_parameters()),
        lambda model, batch: model(batch["x"])[:, 0],
        batch,
        l2_clip_norm=1e-30,
        valid=torch.tensor([True, False]),
    )
    assert float(found["weight"]) == 0.0


def test_a_norm_covers_entries_of_error_rows_that_are_made_once_more(monkeypatch):
    """Of a tied head: however far `errors_at` says that its entries may be off."""
    made = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(2, 5, 8, generator=made), torch.randn(30, 8, generator=made)
    targets, tokens = torch.randint(0, 30, (2, 2, 5), generator=made)
    mass = (hidden @ weight.T).logsumexp(2)
    head = HeadFactors(hidden, targets, torch.rand(2, 5, generator=made), mass, None, weight, None)
    embedded = Factors(tokens, torch.randn(2, 5, 8, generator=made))
    value, before = inner_product(head, embedded)
    further, plain = torch.rand(2, 5, 5, generator=made), HeadFactors.errors_at
    monkeypatch.setattr(HeadFactors, "errors_at", lambda self, at: (plain(self, at)[0], plain(self, at)[1] + further))
    same, off = inner_product(head, embedded)
    columns = (head.right.double() @ embedded.right.double().transpose(1, 2)).flatten(1).norm(dim=1)
    assert torch.equal(same, value)
    assert bool((off >= before + 0.999 * further.flatten(1).norm(dim=1) * columns).all())


def test_weights_get_no_ordinary_gradient_and_requires_grad_comes_back():
    model, batch, valid = llama(), make_batch(), torch.ones(5, dtype=torch.bool)
    model.model.norm.weight.requires_grad_(False)
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    parameters = parameters_of(model)
    clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=0.5, valid=valid)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    assert all(p.grad is None for p in model.parameters())
    assert all("forward" not in vars(module) for module in model.modules())

    def broken(model, batch):
        lm_loss(model, batch)
        raise KeyError("inside the loss")

    with pytest.raises(KeyError):
        clipped_gradient_sum(model, parameters, broken, batch, l2_clip_norm=0.5, valid=valid)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    assert all("forward" not in vars(module) for module in model.modules())


def test_activation_checkpointing_gives_the_same_sum():
    model, batch, valid = llama(), make_batch(), torch.ones(5, dtype=torch.bool)
    parameters = parameters_of(model)
    plain = clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=0.5, valid=valid)
    model.activation_checkpointing_enable({"use_reentrant": False})
    assert model.is_activation_checkpointing
    model.train()
    again = clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=0.5, valid=valid)
    assert_close(again, {key: value.double() for key, value in plain.items()})


@pytest.mark.parametrize(
    "layer",
    [
        nn.Embedding(5, 4, max_norm=1.0),
        nn.Embedding(5, 4, scale_grad_by_freq=True),
        nn.Embedding(5, 4, sparse=True),
        nn.LayerNorm((3, 4)),
    ],
    ids=["max_norm", "scale_grad_by_freq", "sparse", "two dimensions"],
)
def test_a_layer_whose_gradients_follow_another_rule_is_refused(layer):
    """Two of them mix examples: one divides by how often the batch holds a token, one changes the weights it reads."""
    with pytest.raises(InputError, match=f"layer 'it' .{type(layer).__name__}.* cannot give per-example gradients"):
        rules_of("it", layer)


def test_unsupported_layer_is_named():
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(14, 1))
    batch, valid = {"x": torch.randn(2, 1, 9)}, torch.ones(2, dtype=torch.bool)

    def loss(model, batch):
        return model(batch["x"])[:, 0]

    with pytest.raises(InputError, match=r"layer '0' \(Conv1d\)"):
        clipped_gradient_sum(model, dict(model.named_parameters()), loss, batch, l2_clip_norm=1.0, valid=valid)
    head = {name: p for name, p in model.named_parameters() if name.startswith("2.")}
    expected, _ = loop_over_examples(model, head, loss, batch, l2_clip_norm=1.0, valid=valid)
    assert_close(clipped_gradient_sum(model, head, loss, batch, l2_clip_norm=1.0, valid=valid), expected)


@pytest.mark.parametrize(
    ("kind", "sizes", "forward"),
    [
        (nn.Embedding, (7, 3), lambda layer, ids: 2 * nn.Embedding.forward(layer, ids)),
        (nn.Embedding, (7, 3), lambda layer, ids: nn.Embedding.forward(layer, ids + 1)),
        (nn.Linear, (7, 3), lambda layer, inputs: 2 * nn.Linear.forward(layer, inputs)),
        (nn.LayerNorm, (7,), lambda layer, inputs: 2 * nn.LayerNorm.forward(layer, inputs)),
    ],
)
def test_a_layer_that_computes_something_else_than_its_kind_is_refused(kind, sizes, forward):
    """As XGLM scales what its embedding gives: the gradient taken was that of another layer."""
    own = type("Own", (kind,), {"forward": forward})
    assert rules_of("plain", kind(*sizes))
    with pytest.raises(InputError, match=r"layer 'own' \(Own\) cannot give per-example gradients"):
        rules_of("own", own(*sizes))


def test_whatever_a_model_raises_on_made_up_rows_is_told_as_one_that_does_not_fit():
    told = r"model=odd: .* RuntimeError on two made-up ones: in place; take another"
    with pytest.raises(InputError, match=told), told_of_model("odd", "take another"):
        raise RuntimeError("in\nplace")


def test_a_flattened_batch_is_refused():
    """Rows that are positions would be taken for passes: one example's contribution would not be bounded."""
    model, batch, valid = nn.Linear(3, 2), {"x": torch.randn(4, 5, 3)}, torch.ones(4, dtype=torch.bool)

    def loss(model, batch):
        return model(batch["x"].flatten(0, 1)).view(4, 5, 2).sum((1, 2))

    with pytest.raises(InputError, match="20 for 4 examples"):
        clipped_gradient_sum(model, dict(model.named_parameters()), loss, batch, l2_clip_norm=1.0, valid=valid)


@pytest.mark.parametrize("before", [True, False])
def test_what_a_block_is_known_to_flatten_is_taken_apart(before):
    """OPT's feed-forward part reads all tokens of a batch as one text; its norm stands within it or behind it."""
    model, batch, valid = opt(do_layer_norm_before=before), make_batch(), torch.ones(5, dtype=torch.bool)
    names = ("fc1.weight", "fc2.bias", "final_layer_norm.weight", "final_layer_norm.bias")
    parameters = {name: p for name, p in model.named_parameters() if name.endswith(names)}
    expected, _ = loop_over_examples(model, parameters, lm_loss, batch, l2_clip_norm=0.3, valid=valid)
    found = clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=0.3, valid=valid)
    assert_close(found, expected)


def test_what_a_flattening_block_mixes_is_refused():
    """A number of tokens that no number of rows divides says that some were left out, as those that are padding."""
    model, valid = opt(), torch.ones(5, dtype=torch.bool)
    block = model.model.decoder.layers[0]
    parameters = {name: p for name, p in block.named_parameters() if name == "fc1.weight"}

    def loss(block, batch):
        return block.fc1(batch["x"].flatten(0, 1)[:-1]).sum() + torch.zeros(5)

    with pytest.raises(InputError, match="44 for 5 examples"):
        clipped_gradient_sum(block, parameters, loss, {"x": torch.randn(5, 9, 16)}, l2_clip_norm=1.0, valid=valid)


def test_position_embedding_shared_over_the_batch_is_refused():
    model, batch, valid = gpt2(), make_batch(), torch.ones(5, dtype=torch.bool)

    def loss(model, batch):
        return model(input_ids=batch["input_ids"]).logits.mean((1, 2))

    with pytest.raises(InputError, match=r"transformer\.wpe.*position_ids"):
        clipped_gradient_sum(model, parameters_of(model), loss, batch, l2_clip_norm=1.0, valid=valid)


def test_a_loss_that_trains_nothing_is_refused():
    model, batch, valid = Classifier(), make_batch(), torch.ones(5, dtype=torch.bool)
    with pytest.raises(InputError, match="reaches none"):
        clipped_gradient_sum(
            model, parameters_of(model), lambda m, b: torch.zeros(5), batch, l2_clip_norm=1.0, valid=valid
        )
    with pytest.raises(ValueError, match=r"shape \(5,\)"):
        clipped_gradient_sum(
            model,
            parameters_of(model),
            lambda m, b: classifier_loss(m, b).mean(),
            batch,
            l2_clip_norm=1.0,
            valid=valid,
        )


def test_parameters_must_be_held_once():
    model, batch, valid = nn.Linear(3, 2), {"x": torch.randn(4, 3)}, torch.ones(4, dtype=torch.bool)
    with pytest.raises(ValueError, match="two names"):
        clipped_gradient_sum(
            model, {"a": model.weight, "b": model.weight}, lambda m, b: m(b["x"])[:, 0], batch,
            l2_clip_norm=1.0, valid=valid,
        )  # fmt: skip
    with pytest.raises(ValueError, match="does not hold"):
        clipped_gradient_sum(
            model, {"a": nn.Parameter(torch.zeros(1))}, lambda m, b: m(b["x"])[:, 0], batch,
            l2_clip_norm=1.0, valid=valid,
        )  # fmt: skip
