import copy
from dataclasses import replace

import pytest
import torch

from understudy.errors import ArtifactDamaged, InputError
from understudy.models.adapters import (
    adapter_rank,
    load_adapter,
    merge_adapter,
    put_adapter,
    same_weights,
    save_adapter,
    take_adapter,
    with_adapter,
    wrap,
)
from understudy.models.loading import load_model


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-gpt2"])
def base(request):
    return load_model(request.param)


def random_adapter(base, rank=3):
    fresh = take_adapter(wrap(same_weights(base.model), rank=rank, alpha=6, seed=0))
    generator = torch.Generator().manual_seed(1)
    return {name: 0.1 * torch.randn(tensor.shape, generator=generator) for name, tensor in fresh.items()}


def logits(model, seed=0):
    ids = torch.randint(2, 4000, (2, 9), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return model(input_ids=ids).logits


def test_the_policy_is_the_base_plus_the_scaled_products(base):
    before = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    adapter = random_adapter(base)
    policy = with_adapter(base, adapter, alpha=6)
    after, changed = policy.model.state_dict(), 0
    for name, tensor in before.items():
        key = f"base_model.model.{name.removesuffix('.weight')}"
        expected = tensor
        if f"{key}.lora_A.weight" in adapter:
            product = 6 / 3 * adapter[f"{key}.lora_B.weight"] @ adapter[f"{key}.lora_A.weight"]
            expected, changed = (
                tensor + (product.T if product.shape != tensor.shape or "h." in name else product),
                changed + 1,
            )
        assert torch.allclose(after[name], expected, atol=1e-6), name
    assert changed == len(adapter) // 2 > 10
    assert all(torch.equal(before[name], tensor) for name, tensor in base.model.state_dict().items())
    assert not policy.model.training
    assert (policy.digest, policy.name, policy.tokenizer) == (base.digest, base.name, base.tokenizer)


def test_merged_and_wrapped_policies_compute_the_same(base):
    adapter = random_adapter(base)
    wrapped = wrap(same_weights(base.model), rank=3, alpha=6, seed=9)
    assert torch.equal(logits(wrapped), logits(base.model))  # a fresh adapter changes nothing
    put_adapter(wrapped, adapter)
    assert torch.allclose(logits(wrapped), logits(with_adapter(base, adapter, alpha=6).model), atol=1e-3)
    assert not torch.allclose(logits(wrapped), logits(base.model), atol=0.1)
    assert all(torch.equal(take_adapter(wrapped)[name], tensor) for name, tensor in adapter.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_base_of_ones_own_is_merged_into_without_a_copy(base, dtype):
    adapter = random_adapter(base)
    own = replace(base, model=copy.deepcopy(base.model).to(dtype))
    weights = {tensor.data_ptr() for tensor in own.model.parameters()}
    expected = with_adapter(own, adapter, alpha=6).model.state_dict()
    merged = merge_adapter(own, adapter, alpha=6).model
    assert {tensor.dtype for tensor in merged.parameters()} == {dtype}
    assert all(torch.equal(expected[name], tensor) for name, tensor in merged.state_dict().items())
    if dtype == torch.float32:
        assert {tensor.data_ptr() for tensor in merged.parameters()} == weights


def test_no_adapter_is_the_base_itself(base):
    assert with_adapter(base, None, alpha=6) is base
    assert merge_adapter(base, None, alpha=6) is base


def test_every_projection_has_an_adapter_and_the_head_has_none(base):
    names = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in random_adapter(base)}
    llama = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert names in (llama, {"c_attn", "c_proj", "c_fc"})


def test_the_same_weights_in_other_modules(base):
    shell = same_weights(base.model)
    assert {p.data_ptr() for p in shell.parameters()} == {p.data_ptr() for p in base.model.parameters()}
    modules = [type(module) for module in base.model.modules()]
    wrap(shell, rank=2, alpha=2, seed=0)
    assert [type(module) for module in base.model.modules()] == modules
    assert shell.config is not base.model.config


def test_an_adapter_survives_the_disk_with_the_same_bytes(base, tmp_path):
    adapter = random_adapter(base)
    save_adapter(tmp_path / "a.safetensors", adapter)
    save_adapter(tmp_path / "b.safetensors", dict(reversed(adapter.items())))
    loaded = load_adapter(tmp_path / "a.safetensors")
    assert loaded.keys() == adapter.keys()
    assert all(torch.equal(loaded[name], adapter[name]) for name in adapter)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:-5])
    with pytest.raises(ArtifactDamaged):
        load_adapter(tmp_path / "a.safetensors")


def test_an_adapter_of_another_model_is_refused(base):
    adapter = random_adapter(base)
    first, *others = adapter
    wrapped = wrap(same_weights(base.model), rank=2, alpha=6, seed=0)
    with pytest.raises(InputError, match=rf"{len(adapter)} tensors .*\(2, .*\(3, "):
        put_adapter(wrapped, adapter)
    with pytest.raises(InputError, match=r"1 tensors .*found None"):
        with_adapter(base, {name: adapter[name] for name in others}, alpha=6)
    with pytest.raises(InputError, match=r"1 tensors .*expected shape None"):
        with_adapter(base, {**adapter, "more": adapter[first]}, alpha=6)
    with pytest.raises(InputError, match=r"found ranks \[\]"):
        adapter_rank({"x": adapter[first]})
