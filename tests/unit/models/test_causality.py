"""Causality: encoders are told from decoders by what later tokens do, however small the weights are."""

from pathlib import Path

import pytest
import torch
from random_models import FAMILIES, random_model
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BartConfig,
    BartForCausalLM,
    BartForConditionalGeneration,
)

from understudy.errors import InputError
from understudy.models.causality import later_over_earlier, reads_ahead
from understudy.models.loading import load_model
from understudy.shipped import MODELS

_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
_ENCODERS = {
    "bert": _SIZES,
    "electra": {**_SIZES, "embedding_size": 32},
    "roberta": _SIZES,
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48},
}
_DECODERS = {
    "bert": {**_SIZES, "is_decoder": True},
    "ctrl": {"n_embd": 32, "n_layer": 2, "n_head": 2, "dff": 48},
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    "gemma2": {**_SIZES, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 4},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "mistral": {**_SIZES, "num_key_value_heads": 1, "sliding_window": 2},
    "mixtral": {**_SIZES, "num_key_value_heads": 1, "num_local_experts": 4},
}


def a_model(family: str, sizes: dict[str, object], *, dtype: torch.dtype = torch.float32, times: float = 1.0):
    """With random weights, all of them multiplied by `times`."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(family, **{"vocab_size": 97, **sizes}), dtype=dtype
        )
        for parameter in model.parameters():
            parameter *= times
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", sorted(_DECODERS))
def test_decoders_depend_on_no_later_token(family, dtype):
    assert later_over_earlier(a_model(family, _DECODERS[family], dtype=dtype)) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_the_other_tests_are_causal(family):
    assert later_over_earlier(random_model(family, vocabulary=97, width=16, positions=32)) == 0


@pytest.mark.parametrize("times", [1.0, 0.01])
@pytest.mark.parametrize("family", sorted(_ENCODERS))
def test_encoders_read_later_tokens_as_earlier_ones(family, times):
    assert later_over_earlier(a_model(family, _ENCODERS[family], times=times)) > 0.3


def test_a_model_that_raises_is_told_by_others():
    model = random_model("gpt2", vocabulary=97, width=16, positions=4)
    assert not reads_ahead(model)


def saved(model, folder: Path) -> Path:
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MODELS / "tiny-gpt2").save_pretrained(folder)
    return folder


def test_an_encoder_is_refused_on_loading_and_its_decoder_for_its_head_alone(tmp_path):
    encoder = saved(a_model("bert", {**_SIZES, "vocab_size": 4096}), tmp_path / "bert")
    for _ in range(2):
        with pytest.raises(InputError, match=r"model='bert': expected a causal .* found BertLMHeadModel .* choose"):
            load_model(encoder)
    decoder = saved(a_model("bert", {**_SIZES, "vocab_size": 4096, "is_decoder": True}), tmp_path / "decoder")
    with pytest.raises(InputError, match=r"model='decoder': expected logits that are the output head's"):
        load_model(decoder)


def test_an_encoder_decoder_is_refused_on_loading_and_its_decoder_alone_is_not(tmp_path):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    sizes |= {"vocab_size": 4096, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    with torch.random.fork_rng(devices=[]):  # each with a configuration of its own, for the second one edits it
        both, alone = BartForConditionalGeneration(BartConfig(**sizes)), BartForCausalLM(BartConfig(**sizes))
    with pytest.raises(InputError, match=r"model='bart': expected a causal .* found an encoder-decoder \(bart\)"):
        load_model(saved(both, tmp_path / "bart"))
    assert load_model(saved(alone, tmp_path / "alone")).name == "alone"
