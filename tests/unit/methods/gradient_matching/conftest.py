"""Small random models of four families, with and without a bias of the head, tied and untied."""

import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from understudy.models.loading import LoadedModel, load_model
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Gateway

LABEL_NAMES = ("negative", "positive", "undecided")
WIDTH = 16


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors: a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _configured(family: str, vocabulary: int, tied: bool):
    common = {"vocab_size": vocabulary, "tie_word_embeddings": tied, "bos_token_id": 0, "eos_token_id": 0}
    blocks = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": WIDTH, "max_position_embeddings": 96}
    off = {"resid_pdrop": 0.0, "attention_dropout": 0.0, "embd_pdrop": 0.0}
    if family == "gpt2":
        small = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 96}
        return GPT2LMHeadModel(GPT2Config(**small, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common))
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**blocks, intermediate_size=24, **common))
    if family == "phi":
        return PhiForCausalLM(PhiConfig(**blocks, intermediate_size=24, **off, **common))
    # Embeddings narrower than the hidden states, which OPT projects back before the head.
    opt = {"ffn_dim": 24, "dropout": 0.0, "attention_dropout": 0.0, "word_embed_proj_dim": 12, "pad_token_id": 1}
    return OPTForCausalLM(OPTConfig(**blocks, **opt, **common))


def build(family: str, *, bias: bool = False, tied: bool = True, vocabulary: int = 61):
    """A model whose weights are large enough for predictions far from uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _configured(family, vocabulary, tied)
        old = model.lm_head
        head = nn.Linear(old.in_features, old.out_features, bias=bias)
        head.weight = model.get_input_embeddings().weight if tied else nn.Parameter(torch.randn_like(old.weight))
        model.lm_head = head
        for parameter in {id(p): p for p in model.parameters()}.values():
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


@pytest.fixture
def random_model():
    return build


@pytest.fixture(scope="session")
def tokenizer():
    return load_model("tiny-llama").tokenizer


@pytest.fixture
def make_base(tokenizer):
    """A random model with the shipped tokenizer."""

    def make(family: str = "llama", **changes) -> LoadedModel:
        model = build(family, vocabulary=len(tokenizer), **changes)
        return LoadedModel(model, tokenizer, digest="0" * 64, name=f"random-{family}", notes=())

    return make


@pytest.fixture
def make_gateway():
    """Opened with the list of queries of the plan that is run, as a charge of it would."""

    def make(plan, recorder=None, charge: str = "charge") -> Gateway:
        return Gateway(KeyMaterial(b"s" * 32, charge, b"t" * 32, plan.queries), recorder=recorder)

    return make


@pytest.fixture
def label_names() -> tuple[str, ...]:
    return LABEL_NAMES
