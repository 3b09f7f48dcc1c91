"""Methods that another package installs: found by their entry points, run, charged, stated, reported, replayed."""

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from installed_methods import INSTALLED


def test_help_names_the_installed_methods(installed):
    paths = os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "understudy.flows.cli", "run", "--help"]
    said = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    assert "bag-of-words" in said.stdout.replace("\n", "")
    assert "voted-texts" in said.stdout.replace("\n", "")


RUNS = {
    "bag-of-words": ("--data", "sample:reviews", "--source", "bags", "--budget", "8,1e-3", "--samples", 30),
    "voted-texts": ("--data", "sample:clients", "--source", "votes", "--budget", "8,1e-2", "--samples", 5),
}


@pytest.mark.parametrize("method", RUNS)
def test_an_installed_method_is_run_charged_stated_reported_and_traced(
    method, on_path, prefect_server, in_home, call, tmp_path, fixed_root_key
):
    from understudy.privacy.ledger.ledger import Ledger

    out = tmp_path / "out"
    words = ("run", method, *RUNS[method], "--epsilon", 3, "--out", out)
    with in_home(tmp_path / "home"):
        code, said = call(*words, "--dry-run", "--json")
        assert code == 0, said
        code, said = call(*words)
        assert code == 0, said
        (charge,) = Ledger.open().charges()
        assert charge.status == "released"
        code, said = call("lineage", out, "--json")
        assert code == 0, said
        assert charge.id in said
        for place in ("export", "export/synthetic.parquet"):
            assert call("lineage", out / place, "--json") == (0, said), "the exported file says what it is"
        _is_found_in_mlflow(method, charge, out)
        code, said = call("report", out)
        assert code == 0, said
        code, said = call("generate", "--from", out, "--samples", 3)
        assert code == 2
        assert method in said
        # Finished work is answered; the same work for another folder is all cache hits under the same charge.
        assert call(*words)[0] == 0
        assert call(*words[:-1], tmp_path / "again")[0] == 0
        assert [one.id for one in Ledger.open().charges()] == [charge.id]
    statement = json.loads((out / "export/statement.json").read_text())
    assert (statement["method"], statement["epsilon"]) == (method, 3.0)
    assert statement["mechanisms"][0]["noise_multiplier"] > 0
    table = pq.read_table(out / "export/synthetic.parquet")
    assert 0 < table.num_rows <= RUNS[method][-1]
    assert pq.read_table(tmp_path / "again/export/synthetic.parquet").equals(table)
    page = (out / "internal/report.html").read_text()
    assert ("Token counts" in page) == (method == "bag-of-words")


def test_a_statement_says_that_rows_are_held_out_only_where_they_are(on_path, prefect_server, in_home, call, tmp_path):
    """With --test every row is trained on: that one in ten is not would promise more than holds."""
    words = ("run", "bag-of-words", *RUNS["bag-of-words"], "--epsilon", 3)
    rules = {}
    with in_home(tmp_path / "home"):
        for name, measured in {"split": (), "apart": ("--test", "sample:reviews-test")}.items():
            code, said = call(*words, *measured, "--out", tmp_path / name)
            assert code == 0, said
            statement = json.loads((tmp_path / name / "export/statement.json").read_text())
            rules[name] = statement["declared_public"]["held-out rule"]
            assert f"note: {rules[name]}" in said
    assert rules["split"].startswith("one row of every ten is held out")
    assert rules["apart"].startswith("no row is held out")


@pytest.mark.slow
def test_a_run_without_noise_says_nothing_of_how_many_rows_it_made(on_path, prefect_server, in_home, call, tmp_path):
    """Nothing is told of a private output; `rows none` read as if it had none."""
    words = ("run", "bag-of-words", *RUNS["bag-of-words"], "--epsilon", "inf", "--out", tmp_path / "out")
    with in_home(tmp_path / "home"):
        code, said = call(*words)
        assert code == 0, said
        assert "report" in said
        assert [line for line in said.splitlines() if line.split()[:1] == ["rows"]] == []
        code, said = call(*words, "--json")
        assert code == 0, said
        assert json.loads(said[said.index("{") :])["rows"] is None


def test_the_code_of_an_installed_method_is_followed_and_no_other_methods(on_path):
    from bag_of_words.flow import count_tokens

    from understudy.tasks.engine.code_digest import reached_code

    reached = reached_code(count_tokens.fn).modules
    assert "bag_of_words.method" in reached
    assert not any(name.startswith("understudy.methods.") and name != "understudy.methods.method" for name in reached)
    assert "understudy.methods.registry" not in reached


def test_an_entry_point_that_names_no_method_is_refused_by_name(on_path, monkeypatch):
    from understudy.errors import UnderstudyError
    from understudy.methods import registry

    (on_path / "understudy_examples-1.0.dist-info/entry_points.txt").write_text(
        INSTALLED + "odd = bag_of_words.method:COUNTS\nconditional-generation = bag_of_words.method:METHOD\n"
    )
    try:
        registry._places.cache_clear()
        with pytest.raises(UnderstudyError, match=r"bag_of_words.method:COUNTS.*'odd'"):
            registry.get("odd")
        assert registry.get("conditional-generation").flow.startswith("understudy.flows"), "not taken over"
    finally:
        (on_path / "understudy_examples-1.0.dist-info/entry_points.txt").write_text(INSTALLED)


def _is_found_in_mlflow(method, charge, out):
    """The run of the flow, by what it made: with its epsilon, its source and its charge."""
    from understudy.runs.folders import artifact_in
    from understudy.tasks.engine import tracking_log

    log = tracking_log.open_log("client")
    made = artifact_in(out)
    (run,) = log.search({"understudy.synthetic": made})
    assert run.info.run_name == f"{method} {charge.source} {run.data.tags['understudy.run_key'][:7]}"
    assert run.data.metrics == {"epsilon": charge.epsilon, "delta": charge.delta}
    promised = {name: run.data.tags.get(f"understudy.{name}") for name in ("unit", "relation", "accountant")}
    assert promised == {"unit": charge.unit, "relation": charge.relation, "accountant": "PLD"}, "what epsilon bounds"
    assert run.data.tags["understudy.charge"] == charge.id
    assert run.data.tags["understudy.sources"] == json.dumps([f"source:{charge.source}@{charge.id}"])
    assert run.data.tags["understudy.out"] == str(out)
