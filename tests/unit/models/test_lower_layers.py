"""The upper layers read a token again on another cache, and the lower ones give what they gave."""

import math

import pytest
import torch
from random_models import model_that_reads_images
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from understudy.models.lower_layers import layers_below, recorded, replayed

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "head_dim": 8,
}
# Layers that answer with a tensor or a tuple, are told their place, or attend in turns within a window.
FAMILIES = {
    "llama": {},
    "gemma3_text": {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "qwen3": {},
    "smollm3": {"no_rope_layers": [1, 0, 1, 0]},
    "gpt2": {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64},
    "gpt_neo": {"num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]], "window_size": 4},
    "gpt_neox": {},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
    "bloom": {"n_layer": 4, "n_head": 4},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "phi": {},
}


def a_model(family):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {**SIZES, "pad_token_id": 0, **FAMILIES[family]}
        if family == "falcon":  # derives it
            del sizes["head_dim"]
        config = AutoConfig.for_model(family, **sizes)
        return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


def holding(layers):
    cache = DynamicCache()
    for number, (keys, values) in enumerate(layers):
        cache.update(keys, values, number)
    return cache


def read(model, layers):
    """Last state of a token behind six others with these keys and values."""
    ids, mask, position = torch.tensor([[7], [9]]), torch.ones(2, 7, dtype=torch.long), torch.full((2, 1), 6)
    where = {} if model.config.model_type == "bloom" else {"position_ids": position}  # no positions in ALiBi
    outputs = model.base_model(input_ids=ids, attention_mask=mask, past_key_values=holding(layers), **where)
    return outputs.last_hidden_state


@pytest.mark.parametrize("share", [0.25, 0.5, 0.6, 1.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_upper_layers_alone_read_what_the_whole_model_reads(family, share):
    model = a_model(family)
    ids = torch.arange(2, 14).view(2, 6)
    past = [(layer.keys, layer.values) for layer in model.base_model(ids, use_cache=True).past_key_values.layers]
    below = layers_below(model.base_model, share=share, layers=4)
    assert below == 4 - math.ceil(4 * share)
    with recorded(model.base_model, below) as lower:
        plain = read(model, past)
    shifted = past[:below] + [(keys + 0.3, values - 0.2) for keys, values in past[below:]]
    whole = read(model, shifted)
    with replayed(lower):
        again = read(model, shifted)
    assert torch.equal(again, whole)
    assert not torch.allclose(again, plain, atol=1e-3)
    assert torch.equal(read(model, past), plain)


def test_replayed_layers_compute_nothing_and_get_their_forward_back():
    model = a_model("llama")
    layers, calls = list(model.base_model.layers), []
    own = layers[0].forward
    layers[0].forward = lambda *args, **options: (calls.append(0), own(*args, **options))[1]
    mine = layers[0].forward
    past = [(torch.zeros(2, 2, 6, 8), torch.zeros(2, 2, 6, 8))] * 4
    with recorded(model.base_model, 2) as lower:
        read(model, past)
    assert calls == [0]
    with replayed(lower):
        read(model, past)
        with pytest.raises(ValueError, match="wrong"), replayed(lower):
            raise ValueError("wrong")
        read(model, past)
    assert calls == [0]
    assert layers[0].forward is mine
    assert "forward" not in vars(layers[1])
    assert not layers[1]._forward_hooks


def test_a_model_whose_layers_are_not_found_has_none_below():
    stack = nn.ModuleList([nn.Linear(2, 2)] * 3)
    assert layers_below(nn.Sequential(nn.Linear(2, 2)), share=0.5, layers=4) == 0
    assert layers_below(nn.Sequential(stack), share=0.5, layers=4) == 0
    assert layers_below(nn.Sequential(stack), share=0.5, layers=3) == 1


def test_a_model_that_reads_images_too_has_its_text_layers_found():
    """As many layers read images, and come first among its modules."""
    model = model_that_reads_images().requires_grad_(False)
    past = [(torch.zeros(2, 2, 6, 8), torch.zeros(2, 2, 6, 8))] * 4
    below = layers_below(model.base_model, share=0.5, layers=4)
    assert below == 2
    with recorded(model.base_model, below) as lower:
        plain = read(model, past)
    assert lower.given is not None
    other = [(keys + 0.3, values - 0.2) for keys, values in past[:below]] + past[below:]
    with replayed(lower):
        assert torch.equal(read(model, other), plain), "the lower layers give what they gave"
