"""Loading: shipped names, folders, refusals, tokenizers that lack tokens, nothing random."""

import json
import os
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, RobertaConfig, RobertaForCausalLM

from understudy.errors import InputError
from understudy.generation.prompts import encode_text
from understudy.models import loading
from understudy.models.folders import ADAPTER, folder_digest, model_folder, parameter_count
from understudy.models.loading import load_model
from understudy.models.stored import WANTED, WANTED_BESIDE, WANTED_TOKENIZER
from understudy.shipped import MODELS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODELS / "tiny-gpt2", tmp_path / "own-model"))


def edit(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2"])
def test_shipped_model_predicts_and_is_float32(name):
    loaded = load_model(name)
    ids = torch.tensor([loaded.tokenizer.encode("<|endoftext|>This film is the best of the")])
    with torch.no_grad():
        loss = loaded.model(input_ids=ids, labels=ids).loss
    assert loss < 7, "a trained model is better than the uniform guess of ln 4096 = 8.3"
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert loaded.tokenizer.pad_token_id == 1
    assert loaded.tokenizer.eos_token_id == 0
    assert loaded.notes == ()
    assert not loaded.model.training


def test_default_is_the_shipped_llama():
    assert load_model().model.config.model_type == "llama"


def test_attention_is_selectable():
    assert load_model("tiny-gpt2", attention="eager").model.config._attn_implementation == "eager"
    assert load_model("tiny-gpt2").model.config._attn_implementation == "sdpa"


def test_digest_follows_content_not_place(folder):
    digest = load_model(folder).digest
    assert digest == folder_digest(MODELS / "tiny-gpt2")
    edit(folder / "config.json", layer_norm_epsilon=1e-6)
    assert folder_digest(folder) != digest
    (folder / "README.md").write_text("not part of the model")
    edit(folder / "config.json", layer_norm_epsilon=1e-05)


def test_every_file_that_transformers_looks_for_is_hashed(folder, monkeypatch):
    """An adapter or a table of further tokens made another model of a folder whose digest stayed the same."""
    looked_for: set[str] = set()
    for name in ("isfile", "isdir", "exists"):
        monkeypatch.setattr(os.path, name, noting(getattr(os.path, name), folder, looked_for))
    load_model(folder)
    assert {"config.json", "adapter_config.json", "added_tokens.json"} <= looked_for
    patterns = (*WANTED, *WANTED_TOKENIZER, *(pattern.split("/")[0] for pattern in WANTED_BESIDE), ADAPTER)
    assert not [name for name in looked_for if not any(fnmatch(name, pattern) for pattern in patterns)]


def noting(exact, folder: Path, found: set[str]):
    """The function, which also notes the files of a folder that it is asked about."""

    def look(path):
        place = Path(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else Path()
        if place.is_relative_to(folder) and place != folder:
            found.add(place.relative_to(folder).as_posix())
        return exact(path)

    return look


@pytest.mark.parametrize(
    ("name", "content"),
    [("added_tokens.json", '{"<visit>": 8192}'), ("additional_chat_templates/tool_use.jinja", "{{ messages }}")],
)
def test_files_that_change_what_a_tokenizer_does_change_the_digest(folder, name, content):
    before = load_model(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content)
    assert load_model(folder).digest != before.digest


def test_a_folder_with_an_adapter_is_no_whole_model(folder):
    """transformers puts the adapter on, which belongs to weights that may lie elsewhere."""
    (folder / ADAPTER).write_text("{}")
    with pytest.raises(InputError, match=r"model='.*own-model': .*adapter_config\.json.*merge_and_unload"):
        load_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match="merge_and_unload"):
        folder_digest(model_folder(folder))


@pytest.mark.parametrize("way", ["index", "config"])
def test_weights_in_a_folder_below_are_refused(folder, way):
    """No digest would cover them."""
    (folder / "part").mkdir()
    (folder / "model.safetensors").rename(folder / "part/model.safetensors")
    if way == "config":
        edit(folder / "config.json", transformers_weights="part/model.safetensors")
    else:
        shards = dict.fromkeys(load_file(folder / "part/model.safetensors"), "part/model.safetensors")
        index = {"metadata": {}, "weight_map": shards}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"beside config\.json, found 'part/model\.safetensors'"):
        load_model(folder)


def test_another_content_than_the_one_meant_is_refused(folder):
    digest = load_model(folder).digest
    assert load_model(folder, digest=digest).digest == digest
    edit(folder / "config.json", layer_norm_epsilon=1e-6)
    with pytest.raises(InputError, match=digest[:12]):
        load_model(folder, digest=digest)


def test_global_random_state_is_untouched():
    before = torch.random.get_rng_state()
    load_model("tiny-gpt2")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_dropout_is_zero_even_in_training_mode(folder):
    edit(folder / "config.json", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    model = load_model(folder).model.train()
    ids = torch.arange(10)[None]
    assert torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)


def test_tokenizer_without_pad_is_mended_and_said(folder):
    edit(folder / "tokenizer_config.json", pad_token=None)
    loaded = load_model(folder)
    assert loaded.tokenizer.pad_token_id == 0
    assert len(loaded.notes) == 1
    assert "padding" in loaded.notes[0]


def test_tokenizer_without_any_special_token_gets_one(tmp_path):
    source = MODELS / "tiny-gpt2"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, tmp_path / name)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = []
    tokenizer["model"]["vocab"] = {
        ("<|renamed|>" if token == "<|endoftext|>" else token): index
        for token, index in tokenizer["model"]["vocab"].items()
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    edit(tmp_path / "tokenizer_config.json", pad_token=None, eos_token=None, bos_token=None)
    GPT2LMHeadModel(GPT2Config(vocab_size=4096, n_embd=8, n_layer=1, n_head=1)).save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.tokenizer.eos_token_id == 4096
    assert loaded.tokenizer.bos_token_id == loaded.tokenizer.pad_token_id == 4096
    weight = loaded.model.get_input_embeddings().weight
    assert torch.allclose(weight[4096], weight[:4096].mean(0))
    assert loaded.model.get_output_embeddings().weight is weight
    assert len(loaded.notes) == 3


def test_every_token_that_a_text_may_hold_has_an_embedding(tmp_path):
    """A private row that holds the one without would end a training after the charge, and say so by that."""
    folder = tmp_path / "added"
    shutil.copytree(MODELS / "tiny-gpt2", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["[ABSENT]"])
    tokenizer.save_pretrained(folder)
    for _ in range(2):
        loaded = load_model(folder)
        ids = encode_text(loaded.tokenizer, "a note with [ABSENT] in it")
        assert max(ids) == 4096
        assert torch.isfinite(loaded.model(input_ids=torch.tensor([ids])).logits).all()
        weight = loaded.model.get_input_embeddings().weight
        assert torch.allclose(weight[4096], weight[:4096].mean(0))
        assert [note for note in loaded.notes if "no embeddings for 1 of" in note]
    assert load_model("tiny-gpt2").model.get_input_embeddings().weight.shape[0] == 4096


def test_a_context_shorter_than_config_json_says_is_refused(tmp_path):
    """Texts of up to 64 tokens would be read, and one of 63 would end a run that is paid for."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = RobertaForCausalLM(RobertaConfig(vocab_size=4096, max_position_embeddings=64, is_decoder=True, **sizes))
    with pytest.raises(RuntimeError, match="out of bounds"):
        model(input_ids=torch.full((1, 63), 7))
    model.save_pretrained(tmp_path / "roberta")
    AutoTokenizer.from_pretrained(MODELS / "tiny-gpt2").save_pretrained(tmp_path / "roberta")
    with pytest.raises(InputError, match=r"model='roberta': expected a context of the 64 tokens .* found 62"):
        load_model(tmp_path / "roberta")


def test_unknown_name_is_named_with_the_choices(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match=r"unknown model='tiny-lama'.*tiny-gpt2, tiny-llama"):
        load_model("tiny-lama")


def test_unknown_path_is_not_looked_up_on_the_hub(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        load_model(tmp_path / "nowhere")


def test_folder_without_config_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no config\.json"):
        load_model(tmp_path)


def test_weights_larger_than_the_memory_are_refused_before_they_are_read(folder, monkeypatch):
    weights = 4 * parameter_count(folder)
    monkeypatch.setattr(loading, "memory_limit", lambda: weights)
    assert load_model(folder)
    monkeypatch.setattr(loading, "memory_limit", lambda: weights - 1)
    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", pytest.fail)
    with pytest.raises(InputError, match=r"weights of 0\.0 GiB, this machine allows 0\.0: expected a model that fits"):
        load_model(folder)


def test_pickled_weights_are_refused(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="safetensors"):
        load_model(folder)


def test_code_of_a_repository_is_never_run(folder):
    edit(folder / "config.json", model_type="mine", auto_map={"AutoConfig": "own.Config"})
    (folder / "own.py").write_text("raise SystemExit('this code ran')")
    with pytest.raises(InputError, match="own-model"):
        load_model(folder)


def reweigh(folder: Path, change) -> None:
    weights = {name: values.clone() for name, values in load_file(folder / "model.safetensors").items()}
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def cut(folder: Path, *, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])


UNSOUND = {
    "truncated": (lambda f: cut(f, keep=-1000), "incomplete metadata"),
    "header alone": (lambda f: cut(f, keep=100), "header"),
    "empty file": (lambda f: cut(f, keep=0), "header too small"),
    "no tensors": (lambda f: reweigh(f, dict.clear), "the weights lack"),
    "a tensor is missing": (lambda f: reweigh(f, lambda w: w.pop("transformer.wpe.weight")), "wpe.weight"),
    "more layers than stored": (lambda f: edit(f / "config.json", n_layer=9), "the weights lack transformer.h.4"),
    "fewer layers than stored": (lambda f: edit(f / "config.json", n_layer=1), "no place for transformer.h.1"),
    "layers below zero": (lambda f: edit(f / "config.json", n_layer=-1), "no place for transformer.h.0"),
    "another width": (lambda f: edit(f / "config.json", n_embd=64), "another shape"),
    "another vocabulary": (lambda f: edit(f / "config.json", vocab_size=100), "wte.weight has another shape"),
    "a word for a number": (lambda f: edit(f / "config.json", n_embd="big"), "n_embd"),
    "nan": (lambda f: reweigh(f, lambda w: w["transformer.ln_f.bias"].fill_(torch.nan)), "ln_f.bias holds values"),
    "infinite": (lambda f: reweigh(f, lambda w: w["transformer.wpe.weight"][3].fill_(torch.inf)), "wpe.weight holds"),
    "a folder of that name": (
        lambda f: ((f / "model.safetensors").unlink(), (f / "model.safetensors").mkdir()),
        "model.safetensors",
    ),
    "no tokenizer": (lambda f: [path.unlink() for path in f.glob("tokenizer*")], "no tokenizer files"),
    "an empty tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), "cannot be loaded"),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_unsound_files_are_refused_in_one_line_that_names_the_model(name, folder, capfd):
    """transformers loads most of these, with random numbers in place of what is missing."""
    damage, expected = UNSOUND[name]
    damage(folder)
    with pytest.raises(InputError, match=r"model='own-model'") as refused:
        load_model(folder)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().err == "", "nothing else is said"


def test_a_second_head_beside_the_weights_does_no_harm(folder):
    reweigh(folder, lambda weights: weights.update({"score.weight": torch.zeros(2, 8)}))
    assert load_model(folder).model.config.n_layer == 4
