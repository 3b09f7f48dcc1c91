"""Tiny models for the tests of generation."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from understudy.models.loading import LoadedModel, load_model


def random_llama(seed: int = 0, vocabulary: int = 50) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def random_gpt2(seed: int = 0, vocabulary: int = 50) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=vocabulary,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config).eval()


@pytest.fixture(params=["llama", "gpt2"])
def random_model(request):
    return {"llama": random_llama, "gpt2": random_gpt2}[request.param]()


@pytest.fixture(scope="session")
def tiny_llama() -> LoadedModel:
    return load_model("tiny-llama")


@pytest.fixture(autouse=True)
def small_tensors(one_thread):
    """A second thread would only wait."""
