"""The method from rows to synthetic table, every variant on a tiny random model."""

import pytest
import torch
from transformers import FalconConfig, FalconForCausalLM, GPT2Config, GPT2LMHeadModel

from understudy.data.private_rows import PrivateRows
from understudy.errors import InputError
from understudy.methods.conditional_generation import fitting
from understudy.methods.conditional_generation.class_sizes import count_labels, public_sizes, released_sizes
from understudy.methods.conditional_generation.encode import encode
from understudy.methods.conditional_generation.fitting import check_model
from understudy.methods.conditional_generation.generate import synthesize
from understudy.methods.conditional_generation.queries import Asked, queries_of, schedule_of
from understudy.methods.conditional_generation.train import fit
from understudy.models.checkpoints import export_model

CASES = {
    "alternating": ("llama", {"update": "alternating"}),
    "joint": ("gpt2", {"update": "joint"}),
    "naive": ("gpt2", {"variant": "naive"}),
    "naive_filter": ("llama", {"variant": "naive_filter", "filter": {"threshold": 0.2}}),
    "naive_pplm": ("gpt2", {"variant": "naive_pplm", "generate": {"steering": {"steer": "hidden"}}}),
    "untrained": ("llama", {"variant": "untrained"}),
    "as_in_data": ("llama", {"class_sizes": "as_in_data", "filter": {"enabled": True, "threshold": 0.2}}),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("calibrations")


@pytest.fixture
def synthetic(make_base, make_config, make_rows, make_mechanisms, label_names, cache):
    def synthetic(name: str):
        base_kind, changes = CASES[name]
        config, base = make_config(**changes, train={"epochs": 0.5}), make_base(base_kind)
        texts, labels = make_rows()
        planned = schedule_of(queries_of(config, n=len(texts), epsilon=8.0, delta=1e-3, cache=cache))
        rows = encode(PrivateRows(texts, labels, label_names), tokenizer=base.tokenizer, config=config)
        mechanisms = make_mechanisms(planned)
        sizes = public_sizes(config, label_names)
        if sizes is None:
            counts = mechanisms.histogram(
                count_labels(rows.label, rows.valid, 3), sigma=planned.histogram_sigma, purpose="class-sizes"
            )
            sizes = released_sizes(counts.tolist(), label_names, samples=config.samples)
        trained = fit(base, rows, Asked(config, planned, mechanisms), checkpoints=None, progress=None)
        return sizes, synthesize(trained, sizes, config=config)

    return synthetic


@pytest.mark.parametrize("name", CASES)
def test_every_variant_gives_the_same_table_twice(synthetic, label_names, name):
    sizes, synthesis = synthetic(name)
    table = synthesis.table
    assert sum(sizes.values()) == 9
    for label, label_name in enumerate(label_names):
        count = table["label"].to_pylist().count(label)
        assert count + synthesis.shortfall.get(label_name, 0) == sizes[label_name]
    assert table.num_rows > 0
    assert all(table["text"].to_pylist())
    _, again = synthetic(name)
    assert again.table.equals(table)
    assert again.report() == synthesis.report()


def test_gradients_are_tried_once_for_the_same_files_and_settings(
    make_config, tokenizer, label_names, tmp_path, monkeypatch
):
    """What is chosen between the two looks, clip norm and learning rate, decides nothing about them."""
    tried, plain = [], fitting.check_gradients
    monkeypatch.setattr(fitting, "check_gradients", lambda *given, **named: tried.append(1) or plain(*given, **named))
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}

    def look(seed, **train):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            export_model(GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes)), tokenizer, tmp_path / "own")
        before = len(tried)
        check_model(make_config(model=str(tmp_path / "own"), train=train), label_names)
        return len(tried) > before

    chosen = {"l2_clip_norm": 0.05, "learning_rate": 4e-3}
    assert look(0, l2_clip_norm="auto", learning_rate="auto")
    assert not look(0, **chosen)
    assert look(1, **chosen), "other files"
    assert look(1, **chosen, max_length=9), "other settings"


def test_a_model_whose_weights_give_no_row_a_gradient_is_refused_before_the_charge(
    make_config, tokenizer, label_names, tmp_path
):
    """Falcon's linear layers compute by themselves, and what they gave is changed in place; adapters are plain."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = FalconForCausalLM(FalconConfig(vocab_size=len(tokenizer), **sizes, bos_token_id=0, eos_token_id=0))
    export_model(model, tokenizer, tmp_path / "falcon")
    own = {"model": str(tmp_path / "falcon"), "update": "alternating"}
    assert check_model(make_config(**own), label_names).name == "falcon"
    with pytest.raises(InputError, match=r"layer .*query_key_value.* \(FalconLinear\) .*train with LoRA"):
        check_model(make_config(**own, lora={"rank": 0}), label_names)
