"""Models whose logits are not their head's are refused: of them another distribution than their own would be read."""

import pytest
import torch
from random_models import FAMILIES, random_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from understudy.errors import InputError
from understudy.generation.step import last_states, next_logits
from understudy.models.loading import load_model
from understudy.models.output_head import alters_logits, logits_are_the_heads
from understudy.shipped import MODELS

_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
_ALTERING = {
    "bert": {**_SIZES, "is_decoder": True},
    "cohere": {**_SIZES, "num_key_value_heads": 1, "logit_scale": 0.0625},
    "gemma2": {**_SIZES, "num_key_value_heads": 1, "head_dim": 16, "final_logit_softcapping": 30.0},
    "granite": {**_SIZES, "num_key_value_heads": 1, "logits_scaling": 8.0},
}
_PLAIN = {
    "gemma3_text": {**_SIZES, "num_key_value_heads": 1, "head_dim": 16},
    "granite": {**_SIZES, "num_key_value_heads": 1},
    "mistral": {**_SIZES, "num_key_value_heads": 1},
}


def a_model(family, sizes, *, dtype=torch.float32):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **{"vocab_size": 4096, "pad_token_id": 0, **sizes})
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", sorted(_ALTERING))
def test_logits_that_are_scaled_capped_or_transformed_are_seen(family, dtype):
    assert not logits_are_the_heads(a_model(family, _ALTERING[family], dtype=dtype))


@pytest.mark.parametrize("family", sorted(_PLAIN))
def test_models_without_such_a_step_are_taken_and_read_as_they_are(family):
    model, ids = a_model(family, _PLAIN[family]), torch.arange(1, 9)[None]
    assert logits_are_the_heads(model)
    with torch.no_grad():
        found = next_logits(model, last_states(model, ids, torch.ones_like(ids)))
        torch.testing.assert_close(found, model(input_ids=ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_the_other_tests_are_taken(family):
    assert logits_are_the_heads(random_model(family, vocabulary=97, width=16, positions=32))


def test_a_model_that_raises_is_told_by_others():
    assert not alters_logits(random_model("gpt2", vocabulary=97, width=16, positions=2))


@pytest.mark.parametrize(
    "family", ["bert", "cohere", "granite"]
)  # Gemma 2 has no attention of the kind that is asked for
def test_such_a_model_is_refused_on_loading(family, tmp_path):
    a_model(family, _ALTERING[family]).save_pretrained(tmp_path / family)
    AutoTokenizer.from_pretrained(MODELS / "tiny-gpt2").save_pretrained(tmp_path / family)
    for _ in range(2):
        with pytest.raises(InputError, match=f"model='{family}': expected logits that are the output head's .* choose"):
            load_model(tmp_path / family)
