import json
import os
import shutil
import signal
import sqlite3
import traceback

import fork_server
import forked
import pyarrow as pa
import pytest
from guarantees import GUARANTEE
from homes import bare_environment
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.runtime import flow_run
from prefect.settings import PREFECT_UI_URL, temporary_settings
from prefect.task_runners import ProcessPoolTaskRunner
from prefect_servers import held_port, wait_for
from pydantic import BaseModel
from sqlalchemy.exc import OperationalError

from understudy.artifacts.access import ArtifactRef, write_json, write_table
from understudy.errors import InputError, TrackingFailed
from understudy.privacy.labels import private, public, released
from understudy.tasks.engine import failures, tracking, tracking_attempts, tracking_experiment, tracking_log
from understudy.tasks.engine.lineage import LineageNode
from understudy.tasks.engine.prefect_links import link_from_prefect
from understudy.tasks.engine.run_record import TaskRecord, flatten, source_names
from understudy.tasks.engine.runtime import report_metrics, task

calls: list[str] = []


class Config(BaseModel, frozen=True):
    steps: int = 3
    rate: float = 0.5


@task(name="base")
def base(name: str) -> ArtifactRef:
    calls.append("base")
    report_metrics({"size": len(name)})
    return write_json({"name": name}, kind="model", label=public())


@task(name="load")
def load(text: str, count: int) -> list[ArtifactRef]:
    return [write_table(pa.table({"text": [text]}), kind="table", label=private("reviews")) for _ in range(count)]


@task(name="train", retries=0)
def train(rows: list[ArtifactRef], model: ArtifactRef, config: Config) -> ArtifactRef:
    calls.append("train")
    report_metrics({"steps": config.steps})
    parents = [model, "source:reviews@c1"]
    return write_json({"steps": config.steps}, kind="model", label=released(GUARANTEE), parents=parents)


@task(name="generate")
def generate(model: ArtifactRef) -> ArtifactRef:
    return write_json({"text": "synthetic"}, kind="synthetic", label=released(GUARANTEE), parents=[model])


@flow(name="method", persist_result=False)
def method(run_key: str, count: int = 1) -> ArtifactRef:
    with tracking.parent_run(run_key, "method", parameters={"config": Config(), "name": "x"}):
        calls.append(flow_run.id)
        return generate(train(load("private words", count), base("b"), Config()))


def runs() -> dict[str, list]:
    log = tracking_log.open_log("client")
    found: dict[str, list] = {}
    for run in log.client.search_runs([log.experiment]):
        key = run.data.tags.get("understudy.run_key", "")
        assert run.info.run_name.endswith(key[:7])
        found.setdefault(run.info.run_name.removesuffix(f" {key[:7]}"), []).append(run)
    return found


def _of_flow_run(flow_run_id: str) -> ArtifactFilter:
    # The server answers with 200 at most, and other tests' artifacts lie on it too.
    return ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]))


@pytest.fixture(autouse=True)
def forget_calls():
    calls.clear()


def test_one_parent_and_one_child_per_task_and_links_both_ways(tracked):
    method("key-1")
    found = runs()
    assert {name: len(same) for name, same in found.items()} == dict.fromkeys(found, 1)
    assert set(found) == {"method", "base", "load", "train", "generate"}
    parent, child = found["method"][0], found["train"][0]
    assert {run.info.status for same in found.values() for run in same} == {"FINISHED"}
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert parent.data.params == {"config.steps": "3", "config.rate": "0.5", "name": "x"}
    assert child.data.params == {"config.steps": "3", "config.rate": "0.5"}
    assert child.data.metrics == {"steps": 3.0}
    assert child.data.tags["understudy.labels"] == "released(reviews@c1)"
    assert json.loads(child.data.tags["understudy.sources"]) == ["source:reviews@c1"]
    assert parent.data.tags["prefect.flow_run_id"] == calls[0]
    with get_client(sync_client=True) as client:
        notes = client.read_artifacts(artifact_filter=_of_flow_run(calls[0]))
    assert [note.key for note in notes] == ["mlflow-run"]
    assert parent.info.run_id in notes[0].data


def test_the_same_run_again_adds_nothing_and_another_run_notes_its_hits(tracked):
    method("key-1")
    before = {run.info.run_id for same in runs().values() for run in same}
    method("key-1")
    assert {run.info.run_id for same in runs().values() for run in same} == before
    method("key-2")
    found = runs()
    assert {name: len(same) for name, same in found.items()} == dict.fromkeys(found, 2)
    second = next(run for run in found["method"] if run.data.tags["understudy.run_key"] == "key-2")
    hits = [run for run in found["train"] if run.data.tags["mlflow.parentRunId"] == second.info.run_id]
    assert [run.data.tags["understudy.cached"] for run in hits] == ["true"]


def test_runs_beyond_one_page_of_answers_are_found(tracked, monkeypatch):
    monkeypatch.setattr(tracking_log, "_PAGE", 2)
    method("key-1")
    assert len(tracking_log.open_log("client")._found("")) == 5


def test_neither_ids_nor_counts_of_private_artifacts_are_written(tracked):
    def database() -> bytes:
        return b"".join(path.read_bytes() for path in sorted(tracked.glob("mlflow.db*")))

    method("one", count=1)
    one = database()
    method("three", count=3)
    three = database()
    ids = [path.name for path in (tracked / "private" / "artifacts").iterdir() if path.is_dir()]
    assert len(ids) == 4
    for name in ids:
        assert name.encode() not in one + three
    assert b"private words" in three, "the argument of load is public by its author's word: the probe sees strings"
    trains = runs()["train"]
    assert len(trains) == 2
    keys = {"understudy.key", "prefect.task_run_id", "mlflow.parentRunId"}
    seen = [
        (
            {k: v for k, v in run.data.tags.items() if k not in keys},
            run.data.params,
            [(d.dataset.digest, d.tags[0].value) for d in run.inputs.dataset_inputs],
        )
        for run in trains
    ]
    assert seen[0] == seen[1]


def test_lineage_goes_back_to_the_charge(tracked):
    ref = method("key-1")
    node = tracking.lineage(ref.id)
    assert (node.id, node.kind, node.task) == (ref.id, "synthetic", "generate")
    model = next(parent for parent in node.parents if parent.kind == "model")
    assert model.task == "train"
    assert {(parent.kind, parent.task) for parent in model.parents} == {("model", "base"), ("source", None)}
    assert "source:reviews@c1" in {parent.id for parent in model.parents}
    assert LineageNode.model_validate_json(node.model_dump_json()) == node
    with pytest.raises(InputError, match=r"artifact 0{64}: .*id of a released artifact"):
        tracking.lineage("0" * 64)


def test_lineage_prefers_the_run_that_computed_to_a_hit(tracked):
    ref = method("key-1")
    computed = tracking.lineage(ref.id).run_id
    method("key-2")
    assert tracking.lineage(ref.id).run_id == computed


def test_lineage_goes_back_to_the_charge_when_the_runs_that_computed_were_deleted(tracked):
    ref = method("key-1")
    log = tracking_log.open_log("client")
    for run in (run for same in runs().values() for run in same):
        log.client.delete_run(run.info.run_id)
    method("key-1")
    assert {run.data.tags["understudy.cached"] for run in runs()["train"]} == {"true"}
    (model,) = tracking.lineage(ref.id).parents
    assert (model.kind, model.task) == ("model", "train")
    assert {(parent.kind, parent.task) for parent in model.parents} == {("model", "base"), ("source", None)}


def test_lineage_does_without_a_parent_that_was_deleted_for_good(tracked):
    ref = method("key-1")
    client, (parent,) = tracking_log.open_log("client").client, runs()["method"]
    client.delete_run(parent.info.run_id)
    client._tracking_client.store._hard_delete_run(parent.info.run_id)
    node = tracking.lineage(ref.id)
    assert (node.task, node.flow_run_url) == ("generate", None)


def test_a_failed_run_is_marked_and_then_mended(tracked):
    broken = [True]

    @task(name="breaks", retries=0)
    def breaks(x: int) -> int:
        if broken:
            raise InputError("wrong")
        return x

    @flow(name="breaks-flow")
    def breaks_flow() -> int:
        with tracking.parent_run("key", "breaks-flow", parameters={}):
            return breaks(1)

    with pytest.raises(InputError):
        breaks_flow()
    found = runs()
    assert [(run.info.status, run.data.tags["understudy.failure"]) for run in found["breaks"]] == [
        ("FAILED", "InputError")
    ]
    assert [run.info.status for run in found["breaks-flow"]] == ["FAILED"]
    broken.clear()
    breaks_flow()
    found = runs()
    assert [(run.info.status, run.data.tags["understudy.failure"]) for run in found["breaks"]] == [("FINISHED", "")]
    assert [run.info.status for run in found["breaks-flow"]] == ["FINISHED"]


def test_a_tracking_store_that_fails_fails_the_task_and_keeps_its_work(tracked, monkeypatch):
    monkeypatch.setattr(tracking_attempts, "_RETRY_AFTER_S", (0.0, 0.0))
    attempts = []
    write = tracking_log.Log.write_child

    def refuse(self, record):
        attempts.append(record.name)
        raise OSError("no space")

    @flow(name="tracked-flow")
    def tracked_flow() -> ArtifactRef:
        return base("kept")

    with monkeypatch.context() as patch:
        patch.setattr(tracking_log.Log, "write_child", refuse)
        with pytest.raises(TrackingFailed, match=r"'base'.*OSError.*UNDERSTUDY_MLFLOW_URI.*same command") as failed:
            tracked_flow()
    (kept,) = (tracked / "private" / "failures").iterdir()
    assert kept.name.startswith("tracking-")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "no space" in kept.read_text()
    assert str(kept) in str(failed.value), "the message says where its text is"
    said = "".join(traceback.format_exception(failed.value))
    assert "no space" not in said, "which Prefect does not get"
    assert attempts == ["base"] * 3
    assert calls == ["base"]
    assert write is tracking_log.Log.write_child
    ref = tracked_flow()
    assert calls == ["base"], "the result of the first attempt was kept"
    assert tracking.lineage(ref.id).task == "base"
    assert runs()["base"][0].data.metrics == {"size": 4.0}


def test_the_flows_own_error_is_not_hidden_by_a_tracking_store_that_fails(tracked, monkeypatch):
    monkeypatch.setattr(tracking_attempts, "_RETRY_AFTER_S", ())

    def failing():
        with tracking.parent_run("key", "script", parameters={}):
            monkeypatch.setattr(tracking_log.Log, "persist", tracking_fails)
            raise InputError("the cause")

    def tracking_fails(self, what, write, **_):
        raise TrackingFailed(f"tracking: {what}")

    with pytest.raises(InputError, match="the cause") as caught:
        failing()
    assert caught.value.__notes__ == ["tracking: the end of the flow run"]


def test_large_and_strangely_named_configs_are_recorded(tracked):
    sizes = {f"class {number} é/?'": number for number in range(230)}
    with tracking.parent_run("key", "script", parameters={"sizes": sizes}) as run_id:
        pass
    params = tracking_log.open_log("client").client.get_run(run_id).data.params
    assert len(params) == 230
    assert params["sizes.class 7 é___"] == "7"


def test_a_tracking_fault_that_passes_is_not_seen(tracked, monkeypatch):
    monkeypatch.setattr(tracking_attempts, "_RETRY_AFTER_S", (0.0,))
    attempts = []
    write = tracking_log.Log.write_child

    def locked_once(self, record):
        attempts.append(record.name)
        if len(attempts) == 1:
            raise OperationalError("INSERT", {}, sqlite3.OperationalError("database is locked"))
        return write(self, record)

    monkeypatch.setattr(tracking_log.Log, "write_child", locked_once)
    run_id = tracking.log_task(TaskRecord(key="k", name="t", zone="client", state="FINISHED", started_ms=1))
    assert attempts == ["t", "t"]
    assert runs()["t"][0].info.run_id == run_id


def test_another_process_records_under_the_same_parent(tracked):
    @task(name="square")
    def square(number: int) -> int:
        return number * number

    @flow(name="fan-out", task_runner=ProcessPoolTaskRunner(max_workers=1))
    def fan_out() -> list[int]:
        with tracking.parent_run("key", "fan-out", parameters={}):
            return square.map([2, 3]).result()

    assert fan_out() == [4, 9]
    found = runs()
    parent = found["fan-out"][0].info.run_id
    assert [run.data.tags["mlflow.parentRunId"] for run in found["square"]] == [parent] * 2


def test_many_tasks_at_once_are_all_recorded(tracked):
    @task(name="square")
    def square(number: int) -> int:
        return number * number

    @flow(name="fan-out")
    def fan_out() -> list[int]:
        with tracking.parent_run("key", "fan-out", parameters={}):
            return square.map(list(range(24))).result()

    fan_out()
    assert [run.info.status for run in runs()["square"]] == ["FINISHED"] * 24


@pytest.fixture
def tracking_server(empty_tracking_store, tmp_path):
    """The port of a real MLflow server on this machine."""
    shutil.copy(empty_tracking_store, tmp_path / "served.db")
    log = tmp_path / "mlflow.log"
    with held_port() as port, log.open("w") as said:
        words = f"--host 127.0.0.1 --port {port} --workers 1 --backend-store-uri sqlite:///{tmp_path / 'served.db'}"
        command, streams = ["-m", "mlflow", "server", *words.split()], [said.fileno()] * 3
        process = fork_server.start(command, environment=bare_environment(), folder=str(tmp_path), streams=streams)
        try:
            wait_for(f"http://127.0.0.1:{port}", process.poll, log)
            yield port
        finally:
            process.kill()


def test_a_run_on_a_server_of_mlflow_prints_no_address_with_its_password(tracking_server, monkeypatch, capfd):
    """What the commands print with --json is for programs, and a worker's log is kept."""
    monkeypatch.setenv("UNDERSTUDY_MLFLOW_URI", f"http://me:swordfish@127.0.0.1:{tracking_server}")
    with tracking.parent_run("key-1", "method", parameters={}) as run_id:
        pass
    assert tracking_log.open_log("client").client.get_run(run_id).info.status == "FINISHED"
    said = capfd.readouterr()
    assert said.out + said.err == ""


@pytest.mark.parametrize("uri", ["sqlite:///x.db", "http://me:swordfish@mlflow:5000/?token=swordfish"])
def test_each_side_shows_the_other(tracked, uri):
    seen = {}

    @flow(name="linked")
    def linked() -> None:
        with tracking.parent_run("key", "linked", parameters={}) as run_id:
            link_from_prefect(uri, "7", run_id)
            seen.update(run_id=run_id, flow_run_id=flow_run.id)

    with temporary_settings({PREFECT_UI_URL: "http://prefect:4200"}):
        linked()
    url = runs()["linked"][0].data.tags["prefect.flow_run_url"]
    assert url.startswith("http://prefect:4200/")
    assert url.endswith(seen["flow_run_id"])
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=_of_flow_run(seen["flow_run_id"]))
    notes = [artifact.data for artifact in found]
    shown = {
        "sqlite:///x.db": f"MLflow run `{seen['run_id']}`; to look at it: `mlflow ui --backend-store-uri {uri}`",
    }
    page = f"[MLflow run {seen['run_id']}](http://mlflow:5000/#/experiments/7/runs/{seen['run_id']})"
    assert shown.get(uri, page) in notes


def test_a_flow_inside_a_flow_is_a_child(tracked):
    @flow(name="inner")
    def inner() -> ArtifactRef:
        with tracking.parent_run("inner-key", "inner", parameters={}):
            return base("b")

    @flow(name="outer")
    def outer() -> ArtifactRef:
        with tracking.parent_run("outer-key", "outer", parameters={}):
            return inner()

    outer()
    found = runs()
    assert found["inner"][0].data.tags["mlflow.parentRunId"] == found["outer"][0].info.run_id
    assert found["base"][0].data.tags["mlflow.parentRunId"] == found["inner"][0].info.run_id


def test_a_deleted_experiment_is_told_with_how_to_restore_it(tracked):
    log = tracking_log.open_log("client")
    log.client.delete_experiment(log.experiment)
    tracking_log.connect.cache_clear()
    with pytest.raises(InputError, match=rf"deleted.*restore --experiment-id {log.experiment}"):
        method("key-1")
    log.client.restore_experiment(log.experiment)
    method("key-1")


def test_an_experiment_that_was_renamed_is_gone_on_with_under_its_new_name(tracked):
    ref = method("key-1")
    log = tracking_log.open_log("client")
    log.client.delete_experiment_tag(log.experiment, tracking_experiment.OWN)  # as an earlier version has made it
    for renamed in ("mine", "ours"):
        tracking_log.connect.cache_clear()  # as in another process
        tracking_log.open_log("client")
        log.client.rename_experiment(log.experiment, renamed)
        tracking_log.connect.cache_clear()
        method("key-1")
        assert {name: len(same) for name, same in runs().items()} == dict.fromkeys(runs(), 1)
        assert tracking.lineage(ref.id).task == "generate"
    assert [found.name for found in log.client.search_experiments() if tracking_experiment.OWN in found.tags] == [
        "ours"
    ]
    log.client.delete_experiment(log.experiment)
    tracking_log.connect.cache_clear()
    with pytest.raises(InputError, match=rf"deleted.*restore --experiment-id {log.experiment}"):
        method("key-1")


@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("gone", ["experiment", "run"])
def test_what_is_deleted_while_a_run_writes_to_it_is_told_and_the_same_run_goes_on(
    tracked, monkeypatch, gone, for_good
):
    monkeypatch.setattr(tracking_attempts, "_RETRY_AFTER_S", ())
    log = tracking_log.open_log("client")
    store = log.client._tracking_client.store

    def deleting(run_id: str) -> str:
        if gone == "run":
            log.client.delete_run(run_id)
            if for_good:
                store._hard_delete_run(run_id)
            return run_id
        log.client.delete_experiment(log.experiment)
        if for_good:
            store._hard_delete_run(run_id)
            store._hard_delete_experiment(log.experiment)
        return log.experiment

    @flow(name="deleting", persist_result=False)
    def deleting_flow(delete: bool) -> None:
        with tracking.parent_run("key", "deleting", parameters={}) as run_id:
            if delete:
                deleted.append(deleting(run_id))
            tracking.add_to_parent(run_id, tags={"made": "true"}, metrics={})

    deleted: list[str] = []
    with pytest.raises(TrackingFailed) as failed:
        deleting_flow(True)
    told = str(failed.value)
    assert deleted[0] in told
    assert "same command again" in told
    restores = f"mlflow {gone}s restore --{gone}-id {deleted[0]}"
    assert (restores in told, "for good: another one takes its place" in told) == (not for_good, for_good)
    if not for_good:
        getattr(log.client, f"restore_{gone}")(deleted[0])
    deleting_flow(False)
    (run,) = runs()["deleting"]
    assert (run.info.status, run.data.tags["made"]) == ("FINISHED", "true")
    assert (run.info.run_id == deleted[0]) is (gone == "run" and not for_good)


def test_a_database_may_be_named_by_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_MLFLOW_URI", "sqlite:///mlflow.db")
    with tracking.parent_run("key", "script", parameters={}):
        pass
    assert (tmp_path / "mlflow.db").exists()
    monkeypatch.setattr(tracking_log.Log, "persist", lambda *_: pytest.fail("another database"))
    assert tracking_log.open_log("client").client.get_experiment_by_name(tracking_experiment.EXPERIMENT) is not None


def test_the_text_of_an_error_that_cannot_be_kept_costs_only_the_text(monkeypatch):
    monkeypatch.setattr(tracking_attempts, "_RETRY_AFTER_S", ())
    monkeypatch.setattr(failures, "write_atomically", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(TrackingFailed, match=r"the run could not be recorded \(OSError\); what is done"):
        tracking_attempts.persisted("the run", "http://mlflow", lambda: (_ for _ in ()).throw(OSError("no space")))


def test_the_server_zone_has_its_own_store(monkeypatch):
    assert tracking_log.tracking_uri("server") == os.environ["UNDERSTUDY_MLFLOW_URI"]
    monkeypatch.setenv("UNDERSTUDY_SERVER_MLFLOW_URI", "http://server:5000")
    assert tracking_log.tracking_uri("server") == "http://server:5000"
    assert tracking_log.tracking_uri("client") == os.environ["UNDERSTUDY_MLFLOW_URI"]
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    assert tracking_log.tracking_uri("client") == "http://server:5000"


def test_a_parent_without_prefect(tracked):
    with tracking.parent_run("key", "script", parameters={}) as run_id:
        assert runs()["script"][0].info.status == "RUNNING"
    assert [(run.info.run_id, run.info.status) for run in runs()["script"]] == [(run_id, "FINISHED")]


def killed_amid_a_run() -> None:
    with tracking.parent_run("killed-key", "killed", parameters={}):
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_next_start_marks_a_killed_run_and_no_run_that_computes(tracked):
    with tracking.parent_run("key", "script", parameters={}):
        assert forked.called(killed_amid_a_run) == -signal.SIGKILL
        assert runs()["killed"][0].info.status == "RUNNING"
        with tracking.parent_run("inner-key", "inner", parameters={}):
            pass
        assert (runs()["killed"][0].info.status, runs()["script"][0].info.status) == ("KILLED", "RUNNING")
    assert list((tracked / "locks" / "runs").rglob("*.*")) == []


def test_sources_name_the_charge_only_where_something_was_released():
    secret = write_json({}, kind="note", label=private("reviews"))
    other = write_json({}, kind="note", label=private("clinic"))
    sold = write_json({}, kind="note", label=released(GUARANTEE))
    assert source_names([secret, other], [sold]) == ["source:clinic", "source:reviews@c1"]
    assert source_names([secret, secret], [other]) == ["source:clinic", "source:reviews"]
    assert source_names([], [sold]) == []


def test_parameters_are_flat_and_leave_references_out():
    ref = write_json({}, kind="note", label=public())
    assert flatten({"a": ref, "b": [ref], "c": {"d": Config(), "e": None}, "f": "x" * 9000}) == {
        "c.d.steps": "3",
        "c.d.rate": "0.5",
        "c.e": "None",
        "f": "x" * 5000,
    }
