"""Packed weights: the same bytes as without them, for any number of rows, and gone afterwards."""

import pytest
import random_models
import torch
from torch import nn

from understudy.compute import Compute
from understudy.generation import sampling
from understudy.generation.config import SamplingConfig
from understudy.generation.sampling import sample
from understudy.hardware import has_amx
from understudy.models import lora, packed

pytestmark = pytest.mark.usefixtures("one_thread")
in_bfloat16 = pytest.mark.skipif(
    not packed.can_pack(), reason="the processor has no products in bfloat16, or may not use them"
)


def assert_the_same(found, expected):
    """To the bit; with tiles, which may add up in another order, to bfloat16's eight bits."""
    tolerance = 2**-7 if has_amx() else 0
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def narrow_model(kind="llama", **shape):
    return random_models.random_model(
        kind, vocabulary=50, width=32, positions=64, heads=4, initializer_range=0.2, **shape
    ).to(torch.bfloat16)


def layers_in_use(model):
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


@in_bfloat16
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 50), (1536, 576), (7, 3)])
def test_products_are_the_same_to_the_bit_for_any_number_of_rows(inputs, outputs, bias):
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(inputs, outputs, bias=bias).to(torch.bfloat16)
    rows = torch.randn(65, inputs, generator=generator).to(torch.bfloat16)
    some = [rows[:1], rows[:2], rows[:31], rows, rows[:64].view(8, 8, inputs), rows[::2]]
    with torch.no_grad():
        plain = [layer(one) for one in some]
        with packed.packed(layer):
            assert layers_in_use(layer) == [""]
            for one, expected in zip(some, plain, strict=True):
                assert_the_same(layer(one), expected)


@in_bfloat16
def test_a_differentiated_product_is_that_of_the_weights():
    layer = nn.Linear(32, 50).to(torch.bfloat16).requires_grad_(False)
    rows = torch.randn(4, 32).to(torch.bfloat16)
    slopes = []
    for _ in range(2):
        leaf = rows.clone().requires_grad_()
        layer(leaf).float().square().sum().backward()
        slopes.append(leaf.grad)
        if len(slopes) == 1:
            context = packed.packed(layer)
            context.__enter__()
    context.__exit__(None, None, None)
    assert slopes[0].any()
    torch.testing.assert_close(slopes[1], slopes[0], rtol=0, atol=0)


@in_bfloat16
def test_layers_are_as_before_afterwards_also_after_an_error():
    model = narrow_model()

    def fail_in_the_middle():
        with packed.packed(model):
            assert layers_in_use(model)
            with packed.packed(model):
                pass
            assert layers_in_use(model)  # who packs what is packed leaves it so
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail_in_the_middle()
    assert layers_in_use(model) == []


@in_bfloat16
def test_only_linear_layers_in_bfloat16_on_the_cpu_are_packed():
    adapted = lora.attach(
        narrow_model().requires_grad_(False), rank=2, alpha=4, generator=torch.Generator().manual_seed(0)
    )
    with packed.packed(adapted):
        found = layers_in_use(adapted)
    assert found
    assert not [name for name in found if "lora_" in name]
    for other in (narrow_model().float(), narrow_model().to("meta")):
        with packed.packed(other):
            assert layers_in_use(other) == []


@in_bfloat16
@pytest.mark.parametrize(("tokens", "packs"), [(8, False), (24, True)])
def test_sampling_packs_where_it_pays_and_draws_the_same_texts(tokens, packs, monkeypatch):
    model = narrow_model(num_key_value_heads=2, tie_word_embeddings=False)
    ids = torch.tensor([[3, 4, 5], [6, 7, 8], [9, 10, 11]])
    settings = {"config": SamplingConfig(max_new_tokens=tokens), "seeds": [1, 2, 3], "eos": 0, "batch_size": 2}
    copies = []
    product = packed._product
    monkeypatch.setattr(packed, "_product", lambda *args: copies.append(1) or product(*args))
    drawn = sample(model, (ids, torch.ones_like(ids)), **settings)
    assert bool(copies) is packs
    monkeypatch.setattr(sampling, "_WORTH_PACKING", 1000)
    copies.clear()
    plain = sample(model, (ids, torch.ones_like(ids)), **settings)
    assert not copies
    # With tiles a last bit may lead to another token, and from there on to another text.
    assert has_amx() or plain == drawn


@in_bfloat16
def test_copies_take_two_bytes_a_number_where_there_are_any():
    assert packed.packed_bytes(Compute("cpu", "bfloat16"), 1000) == 2000
    assert packed.packed_bytes(Compute("cpu", "bfloat16", from_parameters=5000), 1000) == 0
    assert packed.packed_bytes(Compute("cpu"), 1000) == 0
    assert packed.packed_bytes(Compute("cuda", "bfloat16"), 1000) == 0


@pytest.mark.parametrize("bias", [False, True])
def test_for_good_a_model_in_float32_is_packed(bias):
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(96, 384, bias=bias).requires_grad_(False)
    rows = torch.randn(65, 96, generator=generator)
    exact = (rows.double() @ layer.weight.double().T + (layer.bias.double() if bias else 0)).float()
    packed.pack_for_good(layer)
    assert layers_in_use(layer) == [""]
    for some in (slice(1), slice(31), slice(65)):
        torch.testing.assert_close(layer(rows[some]), exact[some], rtol=1e-5, atol=1e-5)
    leaf = rows.clone().requires_grad_()
    layer(leaf).sum().backward()
    torch.testing.assert_close(leaf.grad, layer.weight.sum(0).expand(65, -1), rtol=1e-5, atol=1e-5)


def test_for_good_no_other_layer_is_packed():
    for other in (narrow_model(), narrow_model().float().to("meta")):
        packed.pack_for_good(other)
        assert layers_in_use(other) == []
