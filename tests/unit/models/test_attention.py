"""Attention of a model in bfloat16: in float32 where that is faster, as the formula says; no file names it."""

import json
import math

import pytest
import torch
from tests_support import write_random_model
from torch import nn

from understudy.compute import Compute
from understudy.models import attention, loading

BATCH, HEADS, KEY_HEADS, POSITIONS, WIDTH = 2, 4, 2, 5, 8
pytestmark = pytest.mark.usefixtures("one_thread")


class Layer(nn.Module):
    num_key_value_groups = HEADS // KEY_HEADS
    is_causal = True


def drawn(*shape, seed):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.to(torch.bfloat16).requires_grad_()


def inputs():
    query = drawn(BATCH, HEADS, POSITIONS, WIDTH, seed=0)
    return query, *(drawn(BATCH, KEY_HEADS, POSITIONS, WIDTH, seed=seed) for seed in (1, 2))


def by_the_formula(query, key, value, hidden):
    """softmax(q k / sqrt(d)) v in double precision; `hidden` places are not seen."""
    q = query.detach().double().requires_grad_()
    k, v = (one.detach().double().requires_grad_() for one in (key, value))
    products = q @ k.repeat_interleave(HEADS // KEY_HEADS, 1).transpose(2, 3) / math.sqrt(WIDTH)
    weights = products.masked_fill(hidden, -math.inf).softmax(-1)
    return (weights @ v.repeat_interleave(HEADS // KEY_HEADS, 1)).transpose(1, 2), (q, k, v)


@pytest.mark.parametrize("mask", ["none", "bool", "added"])
def test_output_and_gradients_are_those_of_the_formula_rounded_once(mask):
    query, key, value = inputs()
    hidden = torch.ones(POSITIONS, POSITIONS).triu(1).bool().expand(BATCH, 1, -1, -1).clone()
    if mask != "none":
        hidden[1, :, 1:, 0] = True  # padding on the left of the second row
    given = {
        "none": None,
        "bool": ~hidden,
        "added": torch.zeros(hidden.shape).masked_fill(hidden, -math.inf).bfloat16(),
    }
    found, weights = attention.sdpa_of_bfloat16(Layer(), query, key, value, given[mask])  # gradients are wanted
    expected, exact = by_the_formula(query, key, value, hidden)
    assert weights is None
    assert (found.dtype, found.shape) == (torch.bfloat16, (BATCH, POSITIONS, HEADS, WIDTH))
    # One rounding to eight bits: half of 2^-7.
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=1e-6)
    slope = drawn(*found.shape, seed=3).detach()
    found.backward(slope)
    expected.backward(slope.double())
    for one, other in zip((query, key, value), exact, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize(
    ("precision", "wanted", "expected"),
    [
        ("bfloat16", "sdpa", attention.SDPA_OF_BFLOAT16),
        ("bfloat16", "eager", "eager"),
        ("float32", "sdpa", "sdpa"),
    ],
)
def test_which_attention_a_model_has(precision, wanted, expected, tmp_path):
    folder = write_random_model(tmp_path / "random")
    model = loading.load_model(folder, attention=wanted, compute=Compute("cpu", precision)).model
    assert model.config._attn_implementation == expected
    model.save_pretrained(tmp_path / "saved")
    assert "sdpa" not in (tmp_path / "saved/config.json").read_text()
    assert json.loads((tmp_path / "saved/config.json").read_text())["dtype"] == precision


@pytest.mark.parametrize(
    ("amx", "differentiated", "positions", "expected"),
    [
        (False, False, 5, torch.float32),
        (False, True, 300, torch.float32),
        (True, True, 5, torch.float32),
        (True, True, 300, torch.bfloat16),
        (True, True, 1, torch.bfloat16),
        (True, False, 5, torch.bfloat16),
    ],
)
def test_where_it_is_computed_in_float32(amx, differentiated, positions, expected, monkeypatch):
    monkeypatch.setattr(attention, "has_amx", lambda: amx)
    seen = []

    def watched(module, query, key, value, mask, **options):
        seen.append({one.dtype for one in (query, key, value)})
        return query.transpose(1, 2), None

    monkeypatch.setattr(attention, "sdpa_attention_forward", watched)
    query, key, value = (torch.zeros(1, 4, positions, 8, dtype=torch.bfloat16) for _ in range(3))
    value.requires_grad_(differentiated)  # as of an adapter of values alone
    found, _ = attention.sdpa_of_bfloat16(Layer(), query, key, value, None)
    assert seen == [{expected}]
    assert found.dtype == torch.bfloat16
