"""A repeated command on finished work: answered from its folder, without a model; what is missing is put back."""

import fcntl
import functools
import json
import math
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests_support import SMALL

from understudy.artifacts.access import path_of, private_store, store_for
from understudy.errors import UnderstudyError
from understudy.privacy import labels
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.reporting.report import ReportFiles
from understudy.runs.registration import registered
from understudy.runs.run_plan import config_digest
from understudy.runs.validation import validate
from understudy.settings import settings
from understudy.tasks.charge_receipt import open_mechanisms, write_released
from understudy.tasks.charging import charge, finalize
from understudy.tasks.engine import leases


@pytest.fixture
def no_model(monkeypatch):
    """From now on nothing may load a model, whoever asks."""
    from transformers import AutoModelForCausalLM

    def refused(*_, **__):
        raise AssertionError("a model was loaded")

    return lambda: monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refused)


def test_finished_work_is_answered_and_repaired_without_a_model(
    prefect_server, call, in_home, data, random_model_folder, no_model, request_of, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    words = ["run", "conditional-generation", "--data", data, "--source", "ward", "--epsilon", 3, "--budget", "8,0.01"]
    words += ["--label-names", "bad=bad,good=good", "--model", random_model_folder, "--samples", 12, "--out", out]
    words += [word for setting in SMALL for word in ("--set", setting)]
    with in_home(tmp_path / "home"):
        code, said = call(*words)
        assert code == 0, said
        assert " for one example (replace_special, PLD), of a budget of 8, 0.01" in said, "as it is announced"
        assert "accountant PLD" in said, "as it is told at the end"
        charges = Ledger.open().charges()
        files = {path: path.read_bytes() for path in sorted((out / "export").rglob("*")) if path.is_file()}
        other = validate(request_of(out=str(out), epsilon=2.0), "conditional-generation")
        assert (other.is_charged, charges[0].id in other.replaces) == (False, True), "it would take their place"
        on_it = validate(request_of(model=str(out / "export/model"), epsilon=2.0), "conditional-generation").plan
        (release,) = on_it.inherited
        (guarantee,) = release.guarantees
        assert (release.setting, guarantee.charge_id, guarantee.epsilon) == ("model", charges[0].id, 3.0)
        assert any("is promised the sum of both" in note for note in on_it.notes)
        assert not other.plan.inherited, "the base model that ships is nobody's release"
        no_model()

        code, said = call(*words)
        assert (code, "finished before" in said) == (0, True), said
        assert {path: path.read_bytes() for path in files} == files

        # A file that is gone: the flow runs, every result is in the cache.
        (out / "export/synthetic.parquet").unlink()
        code, said = call(*words)
        assert (code, "finished before" in said) == (0, False), said
        assert "nothing more is charged" in said
        assert "replaces" not in said
        statement = out / "export/statement.json"
        same = {path: content for path, content in files.items() if path.stem != "statement"}
        assert {path: path.read_bytes() for path in same} == same
        assert json.loads(statement.read_text())["ledger_entries"] == json.loads(files[statement])["ledger_entries"]

        # What the run still needs around it is looked at, without the model; what is finished needs nothing.
        with monkeypatch.context() as patch:
            patch.setenv("UNDERSTUDY_MLFLOW_URI", "http://127.0.0.1:9")
            code, said = call(*words, "--out", tmp_path / "elsewhere")
            assert (code, "UNDERSTUDY_MLFLOW_URI=http://127.0.0.1:9: expected an MLf" in said) == (2, True), said
            assert not (tmp_path / "elsewhere").exists()
            code, said = call(*words)
            assert (code, "finished before" in said) == (0, True), said
        (tmp_path / "file").touch()
        code, said = call(*words, "--out", tmp_path / "file" / "out")
        assert (code, "expected a folder that can be made and written" in said) == (2, True), said
        code, said = call(*words, "--out", tmp_path / "elsewhere")
        assert (code, "finished before" in said) == (0, False), said

        # Another request is not answered from this folder, though it is the same charge.
        code, said = call(*[*words[:-2], "--set", "generate.redraws=2"], "--json")
        assert "finished before" not in said
        assert Ledger.open().charges() == charges


def test_a_promise_does_not_add_only_if_this_ledger_made_its_charge(
    request_of, private_rows, random_model_folder, tmp_path
):
    """Another ledger may have a source of the same name, whose rows nobody declared anything of."""
    paid = charge.fn(registered(request_of(), "conditional-generation"), environment={"code": "0"}, accept_new=False)
    (promised,) = paid.label.guarantees
    shutil.copytree(random_model_folder, tmp_path / "given" / "model")
    other = [f"letter {i} of the harbour office about berth {i * 3}" for i in range(60)]
    pq.write_table(private_rows.set_column(0, "text", pa.array(other)), tmp_path / "other.parquet")
    names = ("bad", "good")
    declared = {"unit": "example", "relation": "replace_special", "n": 60, "label_names": names}
    hall = SourceRecord(name="hall", epsilon=8.0, delta=0.01, disjoint_from=("ward",), **declared)
    Ledger.open().register(hall)
    asked = request_of(
        source="hall", data=str(tmp_path / "other.parquet"), model=str(tmp_path / "given" / "model"), budget=None
    )
    found = []
    for charge_id in (promised.charge_id, "of another ledger"):
        facts = promised.model_dump() | {"ledger_entries": [{"id": charge_id}], "verdict": "proven under assumptions"}
        (tmp_path / "given" / "statement.json").write_text(json.dumps(facts))
        (release,) = validate(asked, "conditional-generation").plan.inherited
        found.append((release.disjoint, release.adds))
    assert found == [(("ward",), False), ((), True)]


def test_a_run_that_is_resumed_has_the_plan_that_it_began_with(request_of):
    """MLflow would have two children for its charge: the key of a task is that of its arguments."""
    first = registered(request_of(), "conditional-generation")
    assert registered(request_of(), "conditional-generation") == first


def test_a_model_in_another_folder_is_the_same_model(request_of, random_model_folder, tmp_path, monkeypatch):
    """Another path was another request: the same run, by a path from another folder, asked for a second charge."""
    moved = shutil.copytree(random_model_folder, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    names = (str(random_model_folder), str(moved), "./moved")
    plans = [registered(request_of(model=name), "conditional-generation") for name in names]
    paid = [charge.fn(plan, environment={"code": "0" * 64}, accept_new=False) for plan in plans]
    assert (paid.count(paid[0]), Ledger.open().spent("ward")[0]) == (3, 3)
    assert len({(config_digest(plan), plan.given) for plan in plans}) == 1
    (moved / "generation_config.json").write_text("{}")
    other = registered(request_of(model=str(moved)), "conditional-generation")
    charge.fn(other, environment={"code": "0" * 64}, accept_new=False)
    assert Ledger.open().spent("ward")[0] == 6, "other files"


def test_an_unfinished_charge_is_bound_to_the_kind_of_processor_and_a_finished_one_is_not(request_of, monkeypatch):
    """Other last digits of a query get noise of their own: on another processor one charge would release twice."""
    plan = registered(request_of(), "conditional-generation")
    environment = {"code": "0" * 64, "threads": "2", "torch": "2.13.0"}
    ask = functools.partial(charge.fn, plan, environment=environment)
    first = ask(accept_new=False)
    assert ask(accept_new=False) == first
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("ATEN_CPU_CAPABILITY", "default")
        with pytest.raises(UnderstudyError, match="kind of processor"):
            ask(accept_new=False)
        second = ask(accept_new=True)
        assert ask(accept_new=False) == second
        with write_released(second, kind="model") as draft:
            (draft.path / "model.safetensors").write_bytes(b"released")
        finalize.fn(second, draft.ref)
    assert first.charge_id != second.charge_id
    with pytest.raises(UnderstudyError, match="this UNDERSTUDY_HOME has no stored result of it"):
        ask(accept_new=False)  # its task would run again, and there is no noise for it any more
    (settings().results_root / "trained").write_text(draft.ref.model_dump_json())
    assert ask(accept_new=False) == second
    assert Ledger.open().spent("ward")[0] == 6
    with pytest.raises(UnderstudyError, match=r"with torch 2\.13\.0, which is 2\.14\.0 now, so"):
        ask(environment={**environment, "torch": "2.14.0"}, accept_new=False)
    with pytest.raises(UnderstudyError, match=r"with other code .* and threads 2, which is 1 now"):
        ask(environment={**environment, "code": "1" * 64, "threads": "1"}, accept_new=False)
    with pytest.raises(UnderstudyError, match=r"with torch 2\.13\.0, which is unknown now, so"):
        ask(environment={"code": "0" * 64, "threads": "2"}, accept_new=False)
    shutil.rmtree(path_of(draft.ref))
    several = plan.model_copy(update={"releases": "trajectories"})
    with pytest.raises(UnderstudyError, match=r"what it released \(trajectories\) is no longer in"):
        charge.fn(several, environment=environment, accept_new=False)
    with pytest.raises(UnderstudyError, match=r"what it released \(model\) is no longer in .*exchange"):
        ask(accept_new=False)


def test_a_charge_is_closed_by_what_has_its_label_and_by_nothing_else(request_of):
    """The salt would be erased for something that the charge did not pay for, or that says less than it should."""
    receipt = charge.fn(
        registered(request_of(), "conditional-generation"), environment={"code": "0" * 64}, accept_new=False
    )
    (guarantee,) = receipt.label.guarantees
    cheaper = labels.released(guarantee.model_copy(update={"epsilon": guarantee.epsilon / 2}))
    for label in (labels.public(), cheaper, labels.private("ward")):
        with store_for(label).write(kind="model", label=label) as draft:
            (draft.path / "model.safetensors").write_bytes(b"another")
        with pytest.raises(UnderstudyError, match="expected an artifact labelled"):
            finalize.fn(receipt, draft.ref)
    assert Ledger.open().charge(receipt.charge_id).status == "reserved"


def test_a_private_release_is_known_by_what_it_was_made_of(request_of):
    """Only what noise was added to names the charge; a model that is merged later names the adapter it came from."""
    plan = registered(request_of(epsilon=math.inf), "conditional-generation")
    ask = functools.partial(charge.fn, plan, environment={"code": "0" * 64}, accept_new=False)
    receipt = ask()
    with write_released(receipt, kind="adapter") as draft:
        (draft.path / "adapter.safetensors").write_bytes(b"trained")
    adapter = draft.ref
    with private_store().write(kind="model", label=receipt.label, parents=[adapter]) as draft:
        (draft.path / "model.safetensors").write_bytes(b"merged")
    finalize.fn(receipt, draft.ref)
    (settings().results_root / "trained").write_text(adapter.model_dump_json() + receipt.charge_id)
    assert ask() == receipt
    shutil.rmtree(path_of(draft.ref))
    with pytest.raises(UnderstudyError, match=r"what it released \(model\) is no longer in .*private"):
        ask()


def test_the_noise_of_a_charge_is_erased_when_its_result_is_on_the_disk(request_of, monkeypatch):
    """A result that a loss of power took could not be computed again, and the run would have to be paid once more."""
    plan = registered(request_of(), "conditional-generation")
    receipt = charge.fn(plan, environment={"code": "0" * 64}, accept_new=False)
    with write_released(receipt, kind="model") as draft:
        (draft.path / "model.safetensors").write_bytes(b"released")
    kept, other = (settings().results_root / name for name in ("trained", "other"))
    kept.write_text(draft.ref.model_dump_json())
    other.write_text("{}")
    events: list[int | str] = []
    flush, release = os.fsync, Ledger.release

    def flushed(descriptor: int) -> None:
        events.append(os.fstat(descriptor).st_ino)
        flush(descriptor)

    def released(self, charge_id):
        events.append("release")
        return release(self, charge_id)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Ledger, "release", released)
    finalize.fn(receipt, draft.ref)
    before = events[: events.index("release")]
    assert kept.stat().st_ino in before
    assert settings().results_root.stat().st_ino in before[before.index(kept.stat().st_ino) :]
    assert Ledger.open().charge(receipt.charge_id).status == "released"


def test_a_charge_whose_noise_is_gone_can_be_paid_again(request_of):
    """A run that was interrupted, and whose source was purged then."""
    plan = registered(request_of(), "conditional-generation")
    ask = functools.partial(charge.fn, plan, environment={"code": "0" * 64})
    first = ask(accept_new=False)
    Ledger.open().purge("ward")
    plan = registered(request_of(), "conditional-generation")
    ask = functools.partial(charge.fn, plan, environment={"code": "0" * 64})
    with pytest.raises(UnderstudyError, match="erased when its source was purged, so"):
        ask(accept_new=False)
    second = ask(accept_new=True)
    assert second.charge_id != first.charge_id
    assert open_mechanisms(second) is not None
    assert Ledger.open().spent("ward")[0] == 6


def test_a_result_that_another_home_kept_can_be_paid_for_again_here(request_of):
    plan = registered(request_of(), "conditional-generation")
    ask = functools.partial(charge.fn, plan, environment={"code": "0" * 64})
    first = ask(accept_new=False)
    with write_released(first, kind="model") as draft:
        (draft.path / "model.safetensors").write_bytes(b"released")
    finalize.fn(first, draft.ref)
    assert ask(accept_new=True).charge_id != first.charge_id


def test_a_result_that_the_disk_refused_is_found_beside_the_checkpoints(request_of):
    """Of a run that had released, the next attempt was asked to pay once more."""
    plan = registered(request_of(), "conditional-generation")
    ask = functools.partial(charge.fn, plan, environment={"code": "0" * 64}, accept_new=False)
    receipt = ask()
    with write_released(receipt, kind="model") as draft:
        (draft.path / "model.safetensors").write_bytes(b"released")
    lease = leases.acquire(settings().checkpoints_root, "k" * 64)
    lease.save_result(draft.ref.model_dump_json().encode())
    lease.release()
    finalize.fn(receipt, draft.ref)
    assert Ledger.open().charge(receipt.charge_id).status == "released"
    assert ask() == receipt


def test_no_run_takes_a_folder_over_while_its_page_is_made_anew(call, tmp_path, monkeypatch):
    """The page of one run's figures came to lie in the folder of another's."""

    def rebuilt(directory: Path, _: object) -> ReportFiles:
        assert is_locked(directory.parent)
        return ReportFiles(html=directory / "report.html", json=directory / "report.json")

    (tmp_path / "internal").mkdir()
    monkeypatch.setattr("understudy.reporting.report.rebuild_report", rebuilt)
    assert call("report", tmp_path)[0] == 0
    assert not is_locked(tmp_path)


def is_locked(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
