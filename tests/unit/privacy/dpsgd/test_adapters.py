"""Adapters while per-example gradients are taken: the same function as peft's, and each kind that is not plain left."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from tests.unit.privacy.dpsgd.test_per_example import (
    adapted,
    assert_close,
    gpt2,
    llama,
    lm_loss,
    loop_over_examples,
    make_batch,
    parameters_of,
    positions,
)
from understudy.models import lora
from understudy.privacy.dpsgd import stacks
from understudy.privacy.dpsgd.adapters import adapter_of
from understudy.privacy.dpsgd.per_example import clipped_gradient_sum
from understudy.privacy.dpsgd.tapping import tapped_layers, taps

# peft asks transformers for a property under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

EVERYONE = torch.ones(5, dtype=torch.bool)


def linear_layers(model):
    return [module for name, module in model.named_modules() if hasattr(module, "lora_A")]


def adapters_of(model):
    trained = {id(parameter) for parameter in parameters_of(model).values()}
    return [adapter_of(layer, trained) for layer in linear_layers(model)]


def through(model, batch, *, tapped):
    """Hidden states with and without the taps' own forward passes."""
    seen = []
    ids = batch["input_ids"]
    if not tapped:
        return lm_loss(model, batch), seen
    with taps(tapped_layers(model, parameters_of(model)), lambda layer, *_: seen.append(layer.name), print):
        losses = model(input_ids=ids, position_ids=positions(ids), use_cache=False).logits
        losses.sum().backward()
        return lm_loss(model, batch), seen


@pytest.mark.parametrize("build", [gpt2, llama])
def test_the_layer_gives_what_peft_gives_and_each_matrix_is_seen_once(build):
    model, batch = adapted(build()), make_batch()
    found, seen = through(model, batch, tapped=True)
    expected, _ = through(model, batch, tapped=False)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and ".lora_" in name]
    assert sorted(seen) == sorted(layers)
    assert len(layers) == 2 * len(linear_layers(model))
    assert all("forward" not in vars(module) for module in model.modules())


def test_without_a_gradient_the_layer_is_peft_s_own_to_the_bit():
    model, batch = adapted(llama()), make_batch()
    with torch.no_grad():
        expected = lm_loss(model, batch)
        with taps(tapped_layers(model, parameters_of(model)), print, print):
            assert torch.equal(lm_loss(model, batch), expected)


def test_inputs_are_kept_once_and_as_narrow_as_the_base_has_them():
    """In peft's own pass each layer that reads an input keeps a float32 copy of it."""
    base = llama().bfloat16()
    model = lora.attach(base, rank=3, alpha=6, generator=torch.Generator().manual_seed(0))
    attention, ids = model.base_model.model.model.layers[0].self_attn, make_batch()["input_ids"]
    kept = []

    def keep(tensor):
        kept.append((tensor.dtype, tensor.data_ptr(), tuple(tensor.shape)))
        return tensor

    hidden = torch.randn(5, ids.shape[1], 16, dtype=torch.bfloat16, requires_grad=True)
    with (
        taps(tapped_layers(model, parameters_of(model)), print, print),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
            assert layer(hidden).dtype == torch.bfloat16
    inputs = [(dtype, place) for dtype, place, shape in kept if shape == tuple(hidden.shape)]
    assert inputs == [(torch.bfloat16, hidden.data_ptr())] * 3
    assert {dtype for dtype, _, shape in kept if shape[-1] == 3} == {torch.float32}, (
        "what lies between the two matrices"
    )


def other_kinds():
    """Layers of peft whose adapter is not `s B A x` of two trained matrices."""

    def attached(model, **changed):
        torch.manual_seed(0)
        config = {"r": 3, "lora_alpha": 6, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} | changed
        return get_peft_model(model, LoraConfig(**config)).eval()

    def half_frozen():
        model = adapted(llama())
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(".lora_B." in name)
        return model

    def two_at_once():
        model = attached(llama())
        model.add_adapter("other", LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
        model.base_model.set_adapter(["default", "other"])
        return model

    def with_a_forward_of_its_own():
        model = adapted(llama())
        for layer in linear_layers(model):
            plain = layer.forward
            layer.forward = lambda inputs, plain=plain: plain(inputs) * 1.0
        return model

    return {
        "bias": lambda: attached(gpt2(), lora_bias=True, fan_in_fan_out=True),
        "dropout": lambda: attached(llama(), lora_dropout=0.5),
        "half frozen": half_frozen,
        "two at once": two_at_once,
        "a forward of its own": with_a_forward_of_its_own,
    }


@pytest.mark.parametrize("kind", other_kinds())
def test_another_kind_of_adapter_is_left_to_peft_and_its_sums_are_right(kind):
    model, batch = other_kinds()[kind](), make_batch()
    assert linear_layers(model)
    assert not any(adapters_of(model))
    parameters = parameters_of(model)
    with torch.no_grad():
        for number, parameter in enumerate(parameters.values()):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) * 0.1)
    expected, norms = loop_over_examples(model, parameters, lm_loss, batch, l2_clip_norm=0.3, valid=EVERYONE)
    assert max(norms) > 0.3
    assert_close(clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=0.3, valid=EVERYONE), expected)


def test_an_adapter_that_is_switched_off_or_merged_is_none():
    model = adapted(llama())
    assert all(adapters_of(model))
    with model.disable_adapter():
        assert not any(adapters_of(model))
    model.merge_adapter()
    assert not any(adapters_of(model))
    model.unmerge_adapter()
    assert all(adapters_of(model))


def test_weight_decomposed_adapters_are_refused_as_before():
    model = get_peft_model(llama(), LoraConfig(r=3, use_dora=True, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert not any(adapters_of(model))
    with pytest.raises(Exception, match="cannot give per-example gradients"):
        tapped_layers(model, parameters_of(model))


@pytest.mark.parametrize("poison", [float("inf"), float("nan")])
@pytest.mark.parametrize("numbers", [1, 200, 1 << 20])
def test_stacks_of_any_height_give_the_same_sums(numbers, poison, monkeypatch):
    monkeypatch.setattr(stacks, "_NUMBERS", numbers)
    model, batch = adapted(llama()), {**make_batch(), "scale": torch.ones(5)}
    batch["scale"][1] = poison
    parameters = parameters_of(model)
    found = clipped_gradient_sum(
        model, parameters, lambda m, b: lm_loss(m, b) * b["scale"], batch, l2_clip_norm=0.3, valid=EVERYONE
    )
    expected, _ = loop_over_examples(model, parameters, lm_loss, batch, l2_clip_norm=0.3, valid=torch.arange(5) != 1)
    assert_close(found, expected)


def test_recomputed_layers_give_the_same_sums():
    model, batch = adapted(llama()), make_batch()
    parameters = parameters_of(model)
    plain = clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=0.5, valid=EVERYONE)
    model.base_model.model.activation_checkpointing_enable({"use_reentrant": False})
    model.train()
    again = clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=0.5, valid=EVERYONE)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_layers_that_share_their_matrices_share_one_norm():
    model, batch = adapted(llama()), make_batch()
    one, other = (model.base_model.model.model.layers[number].self_attn.q_proj for number in (0, 1))
    other.lora_A, other.lora_B = one.lora_A, one.lora_B
    parameters = parameters_of(model)
    expected, norms = loop_over_examples(model, parameters, lm_loss, batch, l2_clip_norm=0.3, valid=EVERYONE)
    assert max(norms) > 0.3
    assert_close(clipped_gradient_sum(model, parameters, lm_loss, batch, l2_clip_norm=0.3, valid=EVERYONE), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_layer_gives_may_be_added_to_in_place(dtype):
    """As Falcon's attention and its feed-forward are."""
    base = llama().to(dtype)
    model = lora.attach(base, rank=3, alpha=6, generator=torch.Generator().manual_seed(0))
    layer = model.base_model.model.model.layers[0].self_attn.o_proj
    inputs = torch.randn(5, 9, 16, dtype=dtype, requires_grad=True)
    with taps(tapped_layers(model, parameters_of(model)), lambda *_: None, print):
        given = layer(inputs)
        given += 1.0
        given.sum().backward()
    plain = torch.nn.functional.linear(inputs.detach(), layer.base_layer.weight, layer.base_layer.bias)
    assert torch.allclose(given, plain + 1.0, atol=1e-5), "the second matrix begins with zeros"
    assert inputs.grad.any()
