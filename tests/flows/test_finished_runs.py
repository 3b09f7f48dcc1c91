"""A repeated command on finished work: answered from its folder, without a model; what is missing is put back."""

import json

import pytest
from tests_support import SMALL

from understudy.privacy.ledger.ledger import Ledger


@pytest.fixture
def no_model(monkeypatch):
    """From now on nothing may load a model, whoever asks."""
    from transformers import AutoModelForCausalLM

    def refused(*_, **__):
        raise AssertionError("a model was loaded")

    return lambda: monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refused)


def test_finished_work_is_answered_and_repaired_without_a_model(
    prefect_server, call, in_home, data, random_model_folder, no_model, tmp_path
):
    out = tmp_path / "out"
    words = ["run", "conditional-generation", "--data", data, "--source", "ward", "--epsilon", 3, "--budget", "8,0.01"]
    words += ["--label-names", "bad=bad,good=good", "--model", random_model_folder, "--samples", 12, "--out", out]
    words += [word for setting in SMALL for word in ("--set", setting)]
    with in_home(tmp_path / "home"):
        code, said = call(*words)
        assert code == 0, said
        charges = Ledger.open().charges()
        files = {path: path.read_bytes() for path in sorted((out / "export").rglob("*")) if path.is_file()}
        no_model()

        code, said = call(*words)
        assert (code, "finished before" in said) == (0, True), said
        assert {path: path.read_bytes() for path in files} == files

        # A file that is gone: the flow runs, every result is in the cache.
        (out / "export/synthetic.parquet").unlink()
        code, said = call(*words)
        assert (code, "finished before" in said) == (0, False), said
        statement = out / "export/statement.json"
        same = {path: content for path, content in files.items() if path.stem != "statement"}
        assert {path: path.read_bytes() for path in same} == same
        assert json.loads(statement.read_text())["ledger_entries"] == json.loads(files[statement])["ledger_entries"]

        # Another request is not answered from this folder, though it is the same charge.
        code, said = call(*[*words[:-2], "--set", "generate.redraws=2"], "--json")
        assert "finished before" not in said
        assert Ledger.open().charges() == charges
