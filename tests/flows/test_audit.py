"""Audits of whole runs, by installed methods that are quick: what is charged, attacked, told and removed."""

import dataclasses
import json
import math
import os
import shutil
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings
from prefect_servers import flow_run_names

# The outcome of an audit hangs on its coins.
pytestmark = pytest.mark.usefixtures("fixed_root_key")

ROWS = 320
# Bags of words give away which words occurred: with this many synthetic words, an attacker of the table sees them.
ASKED = ("--epsilon", 4, "--samples", 60, "--set", "length=300", "--canaries", 100, "--delta", "1e-4")


@pytest.fixture
def table(tmp_path):
    rows = {
        "text": [f"the film number {i} was {'good' if i % 2 else 'bad'}" for i in range(ROWS)],
        "label": [("bad", "good")[i % 2] for i in range(ROWS)],
    }
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


@pytest.fixture
def words(table, tmp_path):
    names = ("--label-names", "bad,good", "--budget", "8,1e-3")
    return ("audit", "bag-of-words", "--data", table, "--source", "films", *names, *ASKED, "--out", tmp_path / "audit")


def charged():
    from understudy.privacy.ledger.ledger import Ledger

    return [(charge.epsilon, charge.status) for charge in Ledger.open().charges() if charge.kind == "counted"]


def statement_in(folder):
    return json.loads((folder / "internal/report.json").read_text())["statement"]


def run_of(table, out):
    """The run of an audit that Prefect starts."""
    from understudy.runs.request import RunRequest

    return RunRequest(
        data=str(table),
        source="films",
        out=str(out),
        epsilon=4,
        delta=1e-4,
        label_names={"bad": "bad", "good": "good"},
        samples=60,
        overrides=("length=300",),
    )


def figures_in(folder):
    return json.loads((folder / "report.json").read_text())["metrics"]


def tells_no_canary(said, out, home):
    """No canary and no coin in what programs read, on the page, or in MLflow's database."""
    from understudy.artifacts.access import private_store, read_table

    (ref,) = [ref for ref in private_store().refs() if ref.kind == "canaries"]
    texts = [text.split() for text in read_table(ref)["text"].to_pylist()]
    # The words at the end, too: the last of them is the secret.
    hidden = [" ".join(some) for text in texts for some in (text[:3], text[-3:])]
    pages = [path.read_text() for path in out.glob("report.*")]
    databases = [path.read_bytes().decode(errors="replace") for path in home.rglob("mlflow.db")]
    assert len(pages) == 2
    assert len(databases) == 1
    for text in (said, *pages, *databases):
        assert not any(canary in text for canary in hidden)
        assert '"included"' not in text
        assert '"candidates"' not in text


def test_an_audit_charges_one_run_and_reports_it_beside_its_controls(
    words, on_path, prefect_server, in_home, call, tmp_path
):
    from understudy.privacy.ledger.ledger import Ledger
    from understudy.tasks.engine import tracking_log

    out = tmp_path / "audit"
    with in_home(tmp_path / "home") as home:
        code, said = call(*words, "--dry-run", "--json")
        assert code == 0, said
        assert json.loads(said)["canaries"] == 100
        seen = ["the synthetic table alone", "the released sums and every other row"]
        assert json.loads(said)["attackers_see"] == seen, "this method releases no model"
        assert not out.exists()
        assert charged() == []
        code, said = call(*words, "--json")
        assert code == 0, said
        told, found = json.loads(said[said.index("{") :]), figures_in(out)
        assert charged() == [(4.0, "released")]
        assert {
            f"bag-of-words-{condition}" for condition in ("claim", "positive-control", "null-control")
        } <= flow_run_names()
        assert told["caught"] == ["data", "sums"]
        assert told["charged"]
        assert not told["refuted"]
        assert told["lower_bounds"]["data"]["claim"] <= 4
        name = "audit.one_run.data."
        assert found[f"{name}positive_control.epsilon_lower_bound"] > 0.5
        assert found[f"{name}positive_control.auc"] > 0.75
        # With other coins it is above 0 in one audit of twenty, and above this in one of 40,000.
        assert found[f"{name}null_control.epsilon_lower_bound"] < 0.6
        assert found[f"{name}epsilon_lower_bound"] <= 4
        assert found[f"{name}auc"] < found[f"{name}positive_control.auc"]
        assert "audit.one_run.model.auc" not in found
        # Whoever knows all other rows has every coin of a sum without noise, and some of them of one with.
        name = "audit.one_run.sums."
        assert found[f"{name}positive_control.auc"] == 1
        assert found[f"{name}positive_control.epsilon_lower_bound"] > 1.5
        assert found[f"{name}null_control.epsilon_lower_bound"] < 0.6
        assert 0.5 < found[f"{name}auc"] < 1
        assert found[f"{name}epsilon_lower_bound"] <= 4
        page = (out / "report.html").read_text()
        assert "does not prove privacy" in page
        assert "releases no language model" in page
        assert page.count("it is the attacker against whom the promise is made") == 1
        assert not (out / "positive-control/export").exists()
        assert not (out / "claim/export").exists(), "made with canaries among the rows"
        assert [path.stat().st_mode & 0o077 for path in (out, out / "report.json")] == [0, 0]
        tells_no_canary(said, out, home)
        (run,) = tracking_log.open_log("client").search({"understudy.out": str(out)})
        assert run.data.tags["mlflow.note.content"].endswith(f"internal: {out / 'report.html'}")
        (charge,) = [charge for charge in Ledger.open().charges() if charge.kind == "counted"]
        assert json.loads(run.data.tags["understudy.sources"]) == [f"source:films@{charge.id}"]
        # Again: the same canaries, coins and charge.
        code, said = call(*words, "--json")
        assert code == 0, said
        assert charged() == [(4.0, "released")]
        assert figures_in(out) == found
        # Nobody said that these rows are public.
        assert statement_in(out / "claim")["audits"] == []
        assert not (home / "audits").exists() or not list((home / "audits").iterdir())
        page = (out / "report.html").read_text()
        (out / "report.html").unlink()
        assert call("report", out)[0] == 0
        assert (out / "report.html").read_text() == page
        code, said = call("purge", "--source", "films")
        assert code == 0, said
        assert list(out.rglob("*.json")) == []
        kept = [path.read_text() for path in (home / "private/results").iterdir() if path.is_file()]
        assert not any(figure in text for text in kept for figure in ("bound", "auc"))


def test_secrets_are_guessed_where_a_run_releases_a_model(
    words, on_path, prefect_server, in_home, call, tmp_path, monkeypatch
):
    """A model that knows the counts tells without noise which words stood once."""
    from bag_of_words import method

    model = dataclasses.replace(method.METHOD, row_losses="bag_of_words.counted_model:row_losses")
    monkeypatch.setattr(method, "METHOD", model)
    out, runs = tmp_path / "audit", ("positive_control.", "null_control.", "left_out.", "")
    with in_home(tmp_path / "home") as home:
        code, said = call(*words, "--public-rows", "--dry-run", "--json")
        assert code == 0, said
        assert json.loads(said)["secrets"].startswith("64 canaries are read with 64 candidates each")
        code, said = call(*words, "--public-rows", "--json")
        assert code == 0, said
        told, found = json.loads(said[said.index("{") :]), figures_in(out)
        rate = {run: found[f"audit.secrets.{run}rate"] for run in runs}
        guessed = {run: found[f"audit.secrets.{run}guessed"] for run in runs}
        assert guessed["null_control."] == 64
        assert guessed["positive_control."] == guessed[""]
        assert guessed[""] + guessed["left_out."] == 64
        # More than half are expected. By chance six of thirty are right in one audit of 100,000.
        assert rate["positive_control."] > 0.3
        for run in ("null_control.", "left_out.", ""):
            assert rate[run] < 0.2
        assert told["secrets_guessed"]["positive_control"] == rate["positive_control."]
        page = (out / "report.html").read_text()
        assert "the attacker with the model guessed" in page
        tells_no_canary(said, out, home)
        (kept,) = (home / "audits").iterdir()
        assert json.loads(kept.read_text())["secrets"]["claim"]["rate"] == rate[""]
        from understudy.artifacts.access import private_store

        read = [ref.kind for ref in private_store().refs() if ref.kind in ("guesses", "losses-of-secrets")]
        assert sorted(read) == ["guesses"] * 3 + ["losses-of-secrets"], "the public model reads once for all three runs"


@pytest.mark.slow
def test_an_audit_that_dies_beside_the_export_of_its_claim_leaves_none_when_it_goes_on_or_is_purged(
    words, on_path, prefect_server, in_home, call, tmp_path, monkeypatch
):
    from understudy.flows import audit
    from understudy.runs.audits import withheld

    out, attack, attacked = tmp_path / "audit", audit.attack, []

    def cut_off(*_):
        raise OSError(5, "cut off")

    def attack_on_controls(*given):
        attacked.append(1)
        return cut_off() if len(attacked) == 3 else attack(*given)

    def call_cut_off(module, name, function):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, function)
            assert call(*words)[0] != 0

    with in_home(tmp_path / "home"):
        call_cut_off(withheld, "locked_folder", cut_off)
        assert (out / "claim/export/statement.json").exists()
        # The attack comes later: should it fail, nothing is left to hand over.
        call_cut_off(audit, "attack", attack_on_controls)
        assert len(attacked) == 3
        assert not (out / "claim/export").exists()
        code, said = call(*words)
        assert code == 0, said
        assert not (out / "claim/export").exists()
        assert charged() == [(4.0, "released")]
        call_cut_off(withheld, "locked_folder", cut_off)
        assert (out / "claim/export/statement.json").exists()
        code, said = call("purge", "--source", "films")
        assert code == 0, said
        assert [path for path in out.rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_what_a_run_releases_where_an_audit_was_killed_outlives_a_purge(
    words, table, on_path, prefect_server, in_home, call, tmp_path, monkeypatch
):
    from understudy.runs.audits import withheld

    def cut_off(*_):
        raise OSError(5, "cut off")

    claim = tmp_path / "audit/claim"
    with in_home(tmp_path / "home"):
        with monkeypatch.context() as patch:
            patch.setattr(withheld, "locked_folder", cut_off)
            assert call(*words)[0] != 0
        of_claim = (claim / "export/synthetic.parquet").read_bytes()
        named = ("--source", "films", "--label-names", "bad,good", "--delta", "1e-4", "--set", "length=300")
        code, said = call(
            "run", "bag-of-words", "--data", table, *named, "--epsilon", 3, "--samples", 20, "--out", claim
        )
        assert code == 0, said
        assert (claim / "export/synthetic.parquet").read_bytes() != of_claim
        code, said = call(*words)
        assert (code, "expected no export/ in claim/" in said) == (2, True), said
        code, said = call("purge", "--source", "films")
        assert code == 0, said
        assert (claim / "export/statement.json").exists()


def test_a_run_that_adds_no_noise_is_refuted(words, on_path, prefect_server, in_home, call, tmp_path, monkeypatch):
    """The claim says epsilon 0.05, and the mechanism, broken, draws no noise."""
    from understudy.privacy import mechanisms

    plain = mechanisms.Mechanisms.gaussian_sum

    def silent(self, query, **asked):
        plain(self, query, **asked)
        return {name: values.to(torch.float64) for name, values in query.items()}

    monkeypatch.setattr(mechanisms.Mechanisms, "gaussian_sum", silent)
    with in_home(tmp_path / "home"):
        code, said = call(*(0.05 if word == 4 else word for word in words))
        assert code == 1
        assert "leaks more than it promises" in said
        page = (tmp_path / "audit/report.html").read_text()
        assert "leaks more than it promises" in page
        assert not (tmp_path / "audit/claim/export").exists()


def test_an_audit_whose_attack_is_too_weak_charges_nothing(
    words, on_path, prefect_server, in_home, call, tmp_path, monkeypatch
):
    # An attacker who knows the other rows would need no text; neither has this method one.
    from bag_of_words import method

    from understudy.tasks.engine import tracking_log

    monkeypatch.setattr(method, "METHOD", dataclasses.replace(method.METHOD, left_over=""))
    # Two texts, and coins that fall in turn, so that the outcome hangs on no chance.
    monkeypatch.setattr("understudy.auditing.canaries.toss", lambda names, coin: np.arange(len(names)) % 2 == 0)
    weak = [{60: 2, 100: 20, "length=300": "length=9"}.get(word, word) for word in words]
    with in_home(tmp_path / "home"):
        code, said = call(*weak)
        assert code == 1
        assert "can say nothing" in said
        assert charged() == []
        page = (tmp_path / "audit/report.html").read_text()
        assert "not charged and not run" in page
        assert "was not run: nothing was charged or released" in page
        assert "changes the probability of anything that was released" not in page, "nothing was"
        code, said = call(*weak, "--insist", "--json")
        assert code == 0
        assert json.loads(said[said.index("{") :])["caught"] == []
        assert charged() == [(4.0, "released")]
        runs = tracking_log.open_log("client").search({"understudy.out": str(tmp_path / "audit")})
        told = {run.data.params["request.insist"]: "understudy.sources" in run.data.tags for run in runs}
        assert told == {"False": False, "True": True}, "the record of the charge says that it was insisted on"
        assert "audit.one_run.data.auc" in figures_in(tmp_path / "audit")


def test_no_other_audit_works_in_the_folder_while_a_run_is_made_and_attacked(
    words, on_path, prefect_server, in_home, call, tmp_path, monkeypatch
):
    """Another one would put its own run there, and the attack would read that."""
    from understudy.flows import audit
    from understudy.locks import locked_one

    seen = []

    def entered_by_another(made):
        def call_it(*given, **named):
            try:
                with locked_one(locks, waiting=lambda _: 1 / 0):
                    seen.append(True)
            except ZeroDivisionError:
                seen.append(False)
            return made(*given, **named)

        return call_it

    with in_home(tmp_path / "home") as home:
        out = str(tmp_path / "audit")
        with audit.alone_in(out):
            locks = list((home / "locks/folders").iterdir())
        for name in ("inner_run", "attack"):
            monkeypatch.setattr(audit, name, entered_by_another(getattr(audit, name)))
        code, said = call(*words)
        assert code == 0, said
        assert seen == [False] * 6
        with locked_one(locks, waiting=lambda _: 1 / 0):
            pass


@pytest.mark.slow
def test_the_python_api_and_a_flow_that_prefect_starts_and_retries_find_the_same(
    table, on_path, prefect_server, in_home, tmp_path, monkeypatch
):
    """The one plans its audit before the flow, the other in it; the coins, and so the figures, are the same.

    Prefect retries the other at its end. Nothing is computed again then, on another machine neither, where what Prefect
    kept of its runs is not.
    """
    import understudy
    from understudy.errors import UnderstudyError
    from understudy.flows import audit as module
    from understudy.runs.audits.request import audit_of
    from understudy.runs.request import Budget, RunRequest

    asked = {"label_names": {"bad": "bad", "good": "good"}, "samples": 60, "overrides": ("length=300",), "delta": 1e-4}
    with in_home(tmp_path / "home"):
        found = understudy.audit(
            pq.read_table(table),
            source="films",
            out=tmp_path / "first",
            epsilon=4,
            budget=(8, 1e-3),
            method="bag-of-words",
            canaries=100,
            public_rows=True,
            **asked,
        )
        assert found.bounds["data"]["positive_control"] > 0.5
        assert found.bounds["data"]["null_control"] < 0.6
        assert found.secrets == {}, "this method releases no model"
        assert found.metrics.values["audit.one_run.canaries"] == 100
        run = RunRequest(
            data=str(table),
            source="films",
            out=str(tmp_path / "second"),
            epsilon=4,
            budget=Budget(epsilon=8, delta=1e-3),
            **asked,
        )
        ends, plain = [], module.conclusive

        def once(result):
            ends.append(result)
            if len(ends) == 1:
                shutil.rmtree(tmp_path / "kept-by-prefect", ignore_errors=True)
                raise UnderstudyError("the first time")
            return plain(result)

        monkeypatch.setattr(module, "conclusive", once)
        with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: tmp_path / "kept-by-prefect"}):
            asked_again = audit_of("bag-of-words", run, canaries=100, seed=0, insist=False)
            ended = module.audit.with_options(retries=1)(asked_again)
        assert ends == [ended, ended]
        assert ended.model_dump().keys() == {"report", "charged", "refuted"}, "Prefect is told no figure"
        assert figures_in(tmp_path / "second") == found.metrics.values
        assert charged() == [(4.0, "released")]
        # What was found on public rows stands in the next statement of this method and model.
        assert not (tmp_path / "second/claim/export").exists()
        (said,) = statement_in(tmp_path / "second/claim")["audits"]
        assert "bag-of-words" in said
        told = math.floor(found.bounds["data"]["claim"] * 100) / 100
        assert f"with this noise {told:.2f}" in said
        assert "compared with this run, the same settings and the same code and versions." in said


def test_a_flow_that_prefect_starts_tells_nothing_of_a_wrong_row(
    table, on_path, prefect_server, in_home, tmp_path, caplog
):
    from understudy.errors import TaskFailed
    from understudy.flows.audit import audit
    from understudy.runs.audits.request import audit_of
    from understudy.runs.request import RunRequest

    rows = pq.read_table(table).to_pylist()
    rows[11]["label"] = "dreadful"
    pq.write_table(pa.Table.from_pylist(rows), table)
    names = {"bad": "bad", "good": "good"}
    run = RunRequest(data=str(table), source="films", out=str(tmp_path / "out"), epsilon=4, label_names=names)
    with in_home(tmp_path / "home"), pytest.raises(TaskFailed) as failed:
        audit(audit_of("bag-of-words", run, canaries=None, seed=0, insist=False))
    for said in (str(failed.value), caplog.text):
        assert "row 11" not in said
        assert "dreadful" not in said


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--epsilon", "inf"), "--epsilon: expected the finite epsilon whose promise is audited, found inf"),
        (("--canaries", 200), "--canaries 200: expected at most half as many as there are rows to train on"),
        (("--canaries", 3), "--canaries 3: Input should be greater than or equal to 20"),
        (("--seed", -1), "--seed -1: Input should be greater than or equal to 0"),
        (("--budget", "1,1e-3"), "budget"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_charged(
    given, told, words, on_path, prefect_server, in_home, call, tmp_path
):
    with in_home(tmp_path / "home"):
        code, said = call(*words, *given)
        assert code in (2, 3), said
        assert told in said
        assert charged() == []
        assert not (tmp_path / "audit").exists()


def test_what_is_refused_of_a_control_registers_nothing(words, on_path, prefect_server, in_home, call, tmp_path):
    """Else a first use without the budget that was meant would fix another one for ever."""
    from understudy.privacy.ledger.ledger import Ledger

    foreign = tmp_path / "audit/positive-control/notes.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    with in_home(tmp_path / "home"):
        code, said = call(*words)
        assert code == 2
        assert "notes.txt" in said
        assert Ledger.open().sources() == ()


def test_another_report_is_not_overwritten(words, on_path, prefect_server, in_home, call, tmp_path):
    report = tmp_path / "audit/report.json"
    report.parent.mkdir()
    report.write_text('{"format": "understudy.comparison/1"}')
    with in_home(tmp_path / "home"):
        code, said = call(*words)
        assert code == 2
        assert "report.json" in said
    assert "comparison" in report.read_text()


@pytest.mark.slow
def test_what_an_attack_found_outlasts_a_gc_hours_later(table, on_path, prefect_server, in_home, tmp_path, monkeypatch):
    """With a large model hours lie between the attack on a control and the report."""
    from understudy.flows import audit as module
    from understudy.runs.audits.request import audit_of
    from understudy.tasks.housekeeping import collect_garbage

    plain, gone = module.caught, []

    def hours_later(found):
        long_ago = time.time() - 7200
        for path in (tmp_path / "home/private/artifacts").glob("*/manifest.json"):
            os.utime(path, (long_ago, long_ago))
        gone.append(collect_garbage())
        return plain(found)

    monkeypatch.setattr(module, "caught", hours_later)
    with in_home(tmp_path / "home"):
        ended = module.audit(audit_of("bag-of-words", run_of(table, tmp_path / "audit"), canaries=100))
    assert len(gone) == 1
    assert ended.charged
    assert "audit.one_run.data.positive_control.auc" in figures_in(tmp_path / "audit")
