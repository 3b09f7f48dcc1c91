"""LoRA adapters: start from the passed generator only, function unchanged at first, exact merge."""

import copy

import pytest
import torch

from understudy.errors import InputError
from understudy.models import lora
from understudy.models.loading import load_model

IDS = torch.arange(24).reshape(2, 12)


@pytest.fixture(params=["tiny-llama", "tiny-gpt2"])
def model(request):
    return load_model(request.param).model


def attached(model, *, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return lora.attach(model, **{"rank": 4, "alpha": 8, "generator": generator, **options})


def test_start_is_the_base_model_and_only_adapters_train(model):
    before = model(input_ids=IDS).logits
    adapted = attached(model)
    assert torch.equal(adapted(input_ids=IDS).logits, before)
    names = lora.trainable_parameters(adapted)
    assert names
    assert all(".lora_" in name for name in names)
    assert all(p.abs().sum() > 0 for name, p in names.items() if "lora_A" in name)


def test_all_linear_layers_but_the_head_are_adapted(model):
    names = lora.trainable_parameters(attached(model))
    layers = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in names}
    llama = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert layers == (llama if model.config.model_type == "llama" else {"c_attn", "c_proj", "c_fc"})


def test_start_depends_on_the_generator_and_not_on_global_state(model):
    other = copy.deepcopy(model)
    third = copy.deepcopy(model)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = lora.trainable_parameters(attached(model))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    second = lora.trainable_parameters(attached(other))
    assert all(torch.equal(first[name], second[name]) for name in first)
    seeded = lora.trainable_parameters(attached(third, seed=1))
    assert any(not torch.equal(first[name], seeded[name]) for name in first)


def test_merge_gives_a_plain_model_of_the_same_function(model):
    kind = type(model)
    adapted = attached(model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in lora.trainable_parameters(adapted).values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    expected = adapted(input_ids=IDS).logits
    merged = lora.merge(adapted)
    assert type(merged) is kind
    assert not any("lora" in name for name, _ in merged.named_parameters())
    torch.testing.assert_close(merged(input_ids=IDS).logits, expected, rtol=1e-4, atol=1e-3)


def test_chosen_targets():
    names = lora.trainable_parameters(attached(load_model("tiny-llama").model, targets=("q_proj",)))
    assert len(names) == 10
    assert all(".q_proj." in name for name in names)


def test_wrong_values_are_refused():
    model = load_model("tiny-gpt2").model
    with pytest.raises(InputError, match="rank=0"):
        attached(model, rank=0)
    with pytest.raises(InputError, match="q_proj"):
        attached(model, targets=("q_proj",))
