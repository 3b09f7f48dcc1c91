"""Causal language models of four families with random weights, small enough for a test."""

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)

_MODELS: dict[str, tuple[type[PretrainedConfig], type[PreTrainedModel]]] = {
    "gpt2": (GPT2Config, GPT2LMHeadModel),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "opt": (OPTConfig, OPTForCausalLM),
    "phi": (PhiConfig, PhiForCausalLM),
}
FAMILIES = tuple(_MODELS)
# What GPT-2 calls the sizes that the other families name alike.
_NAMES_IN_GPT2 = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
_NO_DROPOUT = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": {},
    "opt": {"dropout": 0.0, "attention_dropout": 0.0},
    "phi": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0},
}


def random_model(
    family: str,
    *,
    vocabulary: int,
    width: int,
    positions: int,
    layers: int = 2,
    heads: int = 2,
    seed: int = 0,
    **more: Any,
) -> PreTrainedModel:
    """A model in evaluation mode, without dropout; the global generator is left as it was.

    `more` are further settings of the family's config. Of the width between the two linear maps of a block, GPT-2
    has its own default, the others take 3/2 of the width of the model where `more` does not say otherwise.
    """
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": positions,
    }
    if family == "gpt2":
        sizes = {_NAMES_IN_GPT2[name]: size for name, size in sizes.items()}
    else:
        sizes["ffn_dim" if family == "opt" else "intermediate_size"] = 3 * width // 2
    config_type, model_type = _MODELS[family]
    config = config_type(vocab_size=vocabulary, **(sizes | _NO_DROPOUT[family] | more))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model_type(config).eval()


def model_that_reads_images() -> PreTrainedModel:
    """A Gemma3 of four text layers, and as many that read images, which come first among its modules."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
    attention = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4}
    turns = {"layer_types": ["sliding_attention", "full_attention"] * 2}
    text = {"vocab_size": 50, "pad_token_id": 0, "max_position_embeddings": 64, "model_type": "gemma3_text"}
    config = AutoConfig.for_model(
        "gemma3",
        text_config={**sizes, **attention, **turns, **text},
        vision_config={**sizes, "image_size": 28, "patch_size": 14, "model_type": "siglip_vision_model"},
        mm_tokens_per_image=4,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()
