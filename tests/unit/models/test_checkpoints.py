"""Weights on disk: whole or absent, same bytes for same weights, nothing but the allow-list leaves."""

import signal

import forked
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from understudy.errors import ArtifactDamaged
from understudy.models.checkpoints import (
    EXPORTED_FILES,
    TrainingCheckpoint,
    export_model,
    load_tensors,
    save_tensors,
)
from understudy.models.loading import load_model

IDS = torch.arange(24).reshape(2, 12)


def test_tensors_come_back_exactly(tmp_path):
    base = torch.randn(6, 4)
    tensors = {"a": base, "transposed": base.t(), "view": base[2:], "count": torch.tensor(3)}
    save_tensors(tmp_path / "deep" / "t.safetensors", tensors)
    found = load_tensors(tmp_path / "deep" / "t.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_bytes_do_not_depend_on_order_or_storage(tmp_path):
    a, b = torch.randn(3, 2), torch.randn(2)
    save_tensors(tmp_path / "one", {"a": a, "b": b})
    save_tensors(tmp_path / "two", {"b": b.clone(), "a": a.t().contiguous().t()})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_private_modes_and_no_leftovers(tmp_path):
    path = tmp_path / "folder" / "t.safetensors"
    save_tensors(path, {"a": torch.zeros(1)})
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["t.safetensors"]


def test_damage_is_said(tmp_path):
    path = tmp_path / "t.safetensors"
    save_tensors(path, {"a": torch.zeros(100)})
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ArtifactDamaged, match=r"t\.safetensors"):
        load_tensors(path)


def test_checkpoint_keeps_only_the_newest_step(tmp_path):
    sink = TrainingCheckpoint(tmp_path / "run")
    assert sink.load() is None
    (tmp_path / "run" / ".writing-dead").write_bytes(b"half a file of a killed process")
    for step in (5, 10, 100):
        sink.save(step, {"w": torch.full((2,), float(step))})
    step, tensors = TrainingCheckpoint(tmp_path / "run").load()
    assert step == 100
    assert tensors["w"].tolist() == [100.0, 100.0]
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["step-000000100.safetensors"]


@pytest.mark.parametrize(
    ("every", "took", "kept"),
    [
        (4, [1.0] * 9, [4, 8]),
        (None, [1.0] * 60, [25, 50]),
        (100, [10.0] * 6, [2, 4, 6]),  # a third would have ended after 30 seconds
        (None, [40.0] * 3, [1, 2, 3]),
        (None, [1.0, 1.0, 14.0, 14.0, 14.0], [3, 4, 5]),
    ],
)
def test_slow_steps_are_kept_sooner(tmp_path, every, took, kept):
    now, found = 0.0, []
    sink = TrainingCheckpoint(tmp_path, every=every, clock=lambda: now)
    for step, seconds in enumerate(took, start=1):
        now += seconds
        if sink.due(step):
            sink.save(step, {"w": torch.zeros(1)})
            found.append(step)
    assert found == kept


def test_a_killed_writer_leaves_a_whole_checkpoint(tmp_path):
    code = (
        "import torch\n"
        "from understudy.models.checkpoints import TrainingCheckpoint\n"
        "sink = TrainingCheckpoint(folder)\n"
        "for step in range(1, 10**6):\n"
        "    sink.save(step, {'w': torch.full((300_000,), float(step))})\n"
        "    pipe.send(step)\n"
    )
    process, pipe = forked.start(code, folder=tmp_path / "run")
    seen = 0
    while seen < 20:
        assert pipe.poll(60)
        seen = pipe.recv()
    process.kill()
    assert process.returncode == -signal.SIGKILL
    step, tensors = TrainingCheckpoint(tmp_path / "run").load()
    assert step >= 20
    assert bool((tensors["w"] == step).all())


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2"])
def test_exported_model_works_alone_and_is_deterministic(tmp_path, name):
    loaded = load_model(name)
    loaded.tokenizer(["one", "two words here"], padding=True, truncation=True, max_length=7)
    export_model(loaded.model, loaded.tokenizer, tmp_path / "one")
    export_model(load_model(name).model, loaded.tokenizer, tmp_path / "two")
    files = sorted(p.name for p in (tmp_path / "one").iterdir())
    assert files == sorted(EXPORTED_FILES)
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    assert torch.equal(model(input_ids=IDS).logits, loaded.model(input_ids=IDS).logits)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    text = "This film, it says, is 10 times better.\n\nÜber!"
    assert tokenizer.encode(text) == loaded.tokenizer.encode(text)
    assert len(tokenizer.encode(text)) > 7
    assert tokenizer.decode(tokenizer.encode(text)) == text
    for token in ("bos_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(tokenizer, token) == getattr(loaded.tokenizer, token)
    assert load_model(tmp_path / "one").notes == ()


def test_export_names_no_local_path(tmp_path):
    loaded = load_model("tiny-gpt2")
    loaded.model.config._name_or_path = "/somewhere/private"
    export_model(loaded.model, loaded.tokenizer, tmp_path)
    for path in tmp_path.glob("*.json"):
        assert b"private" not in path.read_bytes() or path.name == "tokenizer.json"
        assert b"/somewhere" not in path.read_bytes()


def test_untied_head_is_exported(tmp_path):
    loaded = load_model("tiny-gpt2")
    loaded.model.config.tie_word_embeddings = False
    loaded.model.lm_head.weight = torch.nn.Parameter(loaded.model.lm_head.weight.detach() * 2)
    export_model(loaded.model, loaded.tokenizer, tmp_path)
    again = load_model(tmp_path).model
    assert torch.equal(again.lm_head.weight, loaded.model.lm_head.weight)
    assert not torch.equal(again.lm_head.weight, again.transformer.wte.weight)
