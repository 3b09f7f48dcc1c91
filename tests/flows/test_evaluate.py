"""Evaluations of any synthetic table as flows: by command, from Python and by Prefect; what they tell, and to whom."""

import errno
import json
import os
import re
import signal
import sys
from pathlib import Path

import forked
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from guarantees import GUARANTEE
from needles import found_in

import understudy
from understudy.artifacts.access import write_json, write_table
from understudy.data.digests import row_digests
from understudy.errors import InputError, TaskFailed, UnderstudyError
from understudy.privacy.labels import private, released
from understudy.runs.evaluations.request import EvaluateRequest
from understudy.runs.file_origin import ARTIFACT, RELEASED, with_origin
from understudy.tasks.engine.run_record import OUT

TABLES = ("synthetic", "real", "test")
KINDS = ("zibbygood", "zibbybad")


@pytest.fixture
def tables(private_rows):
    """Real rows with labels that occur nowhere else, in two parts, and made-up ones."""
    labels = [KINDS[label == "bad"] for label in private_rows["label"].to_pylist()]
    real = pa.table({"text": private_rows["text"], "label": labels})
    made = [f"a {word} stay , take {i}" for i in range(20) for word in ("lovely", "dreadful")]
    synthetic = pa.table({"text": made, "label": [*KINDS] * 20})
    return {"synthetic": synthetic, "real": real.slice(0, 40), "test": real.slice(40)}


@pytest.fixture
def files(tables, tmp_path):
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    return {name: str(tmp_path / f"{name}.parquet") for name in TABLES}


@pytest.fixture
def words(files, tmp_path):
    """The command and its options."""
    return ("evaluate", *(word for name in TABLES for word in (f"--{name}", files[name])), "--out", tmp_path / "out")


@pytest.fixture
def request_of(files, tmp_path):
    def make(**given) -> EvaluateRequest:
        return EvaluateRequest.model_validate({**files, "out": str(tmp_path / "out"), **given})

    return make


def names_in(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def figures_in(folder) -> dict[str, float]:
    return json.loads((folder / "report.json").read_text())["metrics"]


def recorded(out):
    """The MLflow run of an evaluation, and those of its tasks."""
    from understudy.tasks.engine import tracking_log

    log = tracking_log.open_log("client")
    (run,) = log.search({"understudy.out": str(out)})
    return run, log.search({"mlflow.parentRunId": run.info.run_id})


def write_with_other_labels(files, name):
    table = pq.read_table(files[name])
    others = pa.array(table["label"].to_pylist()[::-1])
    pq.write_table(table.set_column(1, "label", others), files[name])


def test_the_command_the_python_api_and_a_flow_that_prefect_starts_report_the_same(
    words, tables, request_of, home, tmp_path, prefect_server, call, monkeypatch
):
    from understudy.flows.evaluate import evaluate
    from understudy.runs.evaluations import inputs

    reads, plain = [], inputs.read_tables
    monkeypatch.setattr(inputs, "read_tables", lambda *given, **named: reads.append(1) or plain(*given, **named))
    code, said = call(*words, "--json")
    assert code == 0, said
    assert reads == [1], "the flow measures the tables that the command has checked"
    told = json.loads(said[said.index("{") :])
    assert told.pop("report") == str(tmp_path / "out/report.html")
    assert list(told.items()) == list(figures_in(tmp_path / "out").items())
    assert 0 <= told["utility.synthetic.accuracy"] <= 1
    assert names_in(tmp_path / "out") == ["report.html", "report.json"]
    assert (tmp_path / "out/report.json").stat().st_mode & 0o077 == 0
    code, said = call(*words)
    assert code == 0, said
    assert "utility.synthetic.accuracy" in said

    page = (tmp_path / "out/report.html").read_bytes()
    (tmp_path / "out/report.html").unlink()
    code, said = call("report", tmp_path / "out", "--json")
    assert code == 0, said
    assert (tmp_path / "out/report.html").read_bytes() == page, "its page is drawn again as it was"
    for command in (("generate", "--samples", "2", "--from"), ("lineage",)):
        code, said = call(*command, tmp_path / "out")
        assert code == 2
        assert "holds an evaluation" in said
        assert "understudy report" in said

    ended = evaluate(request_of(out=str(tmp_path / "flow")))
    assert ended.model_dump() == {"report": str(tmp_path / "flow/report.html")}, "Prefect is told no figure"
    assert not (home / "ledger.db").exists(), "nothing is charged, and no ledger is begun"

    before = len(reads)
    found = understudy.evaluate(**tables, out=tmp_path / "python")
    assert (found.values, len(reads)) == (told, before + 1)
    assert found.lengths is not None
    first, *others = ((tmp_path / place / "report.json").read_bytes() for place in ("out", "flow", "python"))
    assert others == [first, first]


def test_an_evaluation_is_one_run_in_mlflow_that_holds_no_figure(tables, files, request_of, tmp_path, prefect_server):
    from understudy.flows.evaluate import evaluate

    for name, values in {"synthetic": ("praise", "blame"), "real": ("1", "0"), "test": ("1", "0")}.items():
        labels = [values[label == "zibbybad"] for label in tables[name]["label"].to_pylist()]
        pq.write_table(tables[name].set_column(1, "label", pa.array(labels)), files[name])
    for _ in range(2):
        evaluate(request_of(label_names={"1": "praise", "0": "blame"}))
    run, children = recorded(tmp_path / "out")
    assert run.data.tags["mlflow.note.content"].endswith(f"internal: {tmp_path / 'out' / 'report.html'}")
    assert run.info.status == "FINISHED"
    assert re.fullmatch("evaluate [0-9a-f]{7}", run.info.run_name)
    assert run.data.params["request.real"] == files["real"]
    assert run.data.params["request.label_names.1"] == "praise", "declared, and so public"
    (child,) = children
    assert (child.info.status, child.data.tags["understudy.task"]) == ("FINISHED", "report-evaluation")
    assert run.data.metrics == child.data.metrics == {}


def write_with_origin(files, **ids):
    pq.write_table(with_origin(pq.read_table(files["synthetic"]), ids), files["synthetic"])


@pytest.mark.parametrize("name", [ARTIFACT, RELEASED])
def test_mlflow_leads_from_an_evaluation_to_the_run_that_made_the_table(
    files, request_of, home, tmp_path, prefect_server, name
):
    """A file of `run` names its table, and one of `generate` the model."""
    from understudy.flows.evaluate import evaluate
    from understudy.tasks.engine import tracking, tracking_log
    from understudy.tasks.engine.run_record import TaskRecord

    ids = {}
    for text in ("one", "two"):
        made = write_json({"text": text}, kind="synthetic", label=released(GUARANTEE), parents=["source:reviews@c1"])
        started = {"zone": "client", "state": "FINISHED", "started_ms": 1}
        ids[made.id] = tracking.log_task(TaskRecord(key=text, name="generate", result=made, **started))
    for made, maker in ids.items():
        write_with_origin(files, **{name: made})
        evaluate(request_of())
        log = tracking_log.open_log("client")
        evaluations = {run.data.tags["understudy.evaluated"]: run for run in log.search({OUT: str(tmp_path / "out")})}
        assert evaluations[made].info.status == "FINISHED"
        assert [entry.dataset.digest for entry in evaluations[made].inputs.dataset_inputs] == [made[:36]]
        assert {run.info.run_id for run in log.runs_with(made)} == {maker, evaluations[made].info.run_id}
        assert tracking.lineage(made).run_id == maker
    assert set(evaluations) == set(ids), "another table under the same path is another run"
    assert tracking.mark_purged(list(ids)) == 4


@pytest.mark.parametrize("name", [ARTIFACT, RELEASED])
@pytest.mark.parametrize("change", ["filtered", "rewritten"])
def test_a_table_that_was_changed_is_not_recorded_as_the_one_that_the_run_released(
    files, words, home, call, tmp_path, told_prefect, name, change
):
    made = write_json({"text": "one"}, kind="synthetic", label=released(GUARANTEE), parents=["source:reviews@c1"]).id
    write_with_origin(files, **{name: made})
    table = pq.read_table(files["synthetic"])
    changed = table.slice(2) if change == "filtered" else table.set_column(0, "text", pa.array(["a b"] * len(table)))
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), files["synthetic"])
    code, said = call(*words)
    assert code == 0, said
    notes = [line for line in said.splitlines() if line.startswith("note: ")]
    assert [made in note and files["synthetic"] in note for note in notes] == [True], said
    run, _ = recorded(tmp_path / "out")
    assert "understudy.evaluated" not in run.data.tags
    assert not run.inputs.dataset_inputs


def test_a_private_artifact_that_a_file_names_is_not_told(files, request_of, home, tmp_path, prefect_server):
    from understudy.flows.evaluate import evaluate

    named = write_table(pq.read_table(files["synthetic"]), kind="distilled", label=private("ward")).id
    write_with_origin(files, **{ARTIFACT: named})
    evaluate(request_of())
    run, _ = recorded(tmp_path / "out")
    assert "understudy.evaluated" not in run.data.tags
    assert not run.inputs.dataset_inputs
    kept = b"".join(path.read_bytes() for path in home.glob("mlflow.db*"))
    assert found_in(kept, [named.encode(), str(tmp_path / "out").encode()]) == [str(tmp_path / "out").encode()]


def test_neither_prefect_nor_mlflow_nor_a_log_is_told_of_rows_labels_or_figures(
    tables, request_of, home, tmp_path, told_prefect, caplog, capfd
):
    from prefect.settings import PREFECT_LOCAL_STORAGE_PATH

    from understudy.flows.evaluate import evaluate

    caplog.set_level("DEBUG")
    evaluate(request_of())
    texts = [text for table in tables.values() for text in table["text"].to_pylist()]
    digests = [digest.hex() for name in ("real", "test") for digest in row_digests(tables[name].select(["text"]))]
    long = [str(value) for value in figures_in(tmp_path / "out").values() if len(str(value)) > 8]
    needles = [needle.encode() for needle in (*texts, *digests, *KINDS, *long, "utility.", "memorization.")]
    assert len(long) > 3
    assert len(found_in((tmp_path / "out/report.json").read_bytes(), needles)) > len(long), "the search finds"
    printed = capfd.readouterr()
    places = {"prefect": told_prefect("report-evaluation"), "log": caplog.text.encode()}
    places |= {"printed": (printed.out + printed.err).encode()}
    kept = [path for folder in (home, PREFECT_LOCAL_STORAGE_PATH.value()) for path in folder.rglob("*")]
    places |= {str(path): path.read_bytes() for path in kept if path.is_file()}
    assert found_in(b"".join(places.values()), [str(tmp_path / "out/report.html").encode()]), "what Prefect keeps"
    assert "mlflow.db" in {name.rpartition("/")[2] for name in places}
    assert [(name, needle) for name, content in places.items() for needle in found_in(content, needles)] == []


def test_a_flow_that_prefect_starts_tells_nothing_of_a_wrong_row_and_is_not_retried(
    tables, files, request_of, tmp_path, told_prefect, caplog, monkeypatch
):
    from understudy.flows.evaluate import evaluate
    from understudy.runs.evaluations import inputs as module

    reads, plain = [], module.read_tables
    monkeypatch.setattr(module, "read_tables", lambda *given, **named: reads.append(1) or plain(*given, **named))
    texts = [None if row == 7 else text for row, text in enumerate(tables["test"]["text"].to_pylist())]
    pq.write_table(tables["test"].set_column(0, "text", pa.array(texts)), files["test"])
    with pytest.raises(TaskFailed, match="maybe private, is in") as failed:
        evaluate(request_of())
    assert failed.value.exit_code == 2
    assert reads == [1]
    assert not (tmp_path / "out/report.json").exists()
    kept = re.search(r"\S+\.txt", str(failed.value)).group()
    assert "row 7:" in Path(kept).read_text()
    for said in (str(failed.value), caplog.text, told_prefect(Path(kept).name).decode(errors="replace")):
        assert "row 7:" not in said
        assert "zibby" not in said
    assert recorded(tmp_path / "out")[0].info.status == "FAILED"


def test_one_table_as_real_and_as_test_is_told_by_a_flow_that_prefect_starts(
    files, request_of, tmp_path, prefect_server, monkeypatch
):
    """That two names are of one table tells nothing of its rows; it was closed up as an error of one of them."""
    from understudy.flows.evaluate import evaluate
    from understudy.runs.evaluations import inputs as module

    monkeypatch.setattr(module, "read_tables", lambda *_, **__: pytest.fail("a table was read"))
    (tmp_path / "link.parquet").symlink_to(files["real"])
    for test in (files["real"], str(tmp_path / "link.parquet")):
        with pytest.raises(InputError, match=r"--test: .*found the rows of --real"):
            evaluate(request_of(test=test))


def test_how_many_labels_nobody_declared_is_not_told(tables, files, request_of, prefect_server, caplog):
    from understudy.flows.evaluate import evaluate

    pq.write_table(tables["real"].filter(pa.array([True, False] * 20)), files["real"])
    with pytest.raises(TaskFailed) as failed:
        evaluate(request_of())
    assert failed.value.exit_code == 2
    for said in (str(failed.value), caplog.text):
        assert "distinct names" not in said


def test_a_fault_that_can_pass_is_retried(request_of, tmp_path, prefect_server, monkeypatch):
    from understudy.flows.evaluate import evaluate
    from understudy.runs.evaluations import report as evaluated

    calls, plain = [], evaluated.measure_tables

    def fails_once(*given, **named):
        calls.append(1)
        if len(calls) == 1:
            raise OSError(errno.EIO, "Input/output error")
        return plain(*given, **named)

    monkeypatch.setattr(evaluated, "measure_tables", fails_once)
    evaluate(request_of())
    assert calls == [1, 1]
    assert names_in(tmp_path / "out") == ["report.html", "report.json"]
    run, (child,) = recorded(tmp_path / "out")
    assert (run.info.status, child.info.status) == ("FINISHED", "FINISHED")


def test_a_file_that_has_changed_under_its_path_is_measured_anew(files, request_of, tmp_path, prefect_server):
    from understudy.flows.evaluate import evaluate

    evaluate(request_of())
    first = figures_in(tmp_path / "out")
    write_with_other_labels(files, "test")
    evaluate(request_of())
    assert figures_in(tmp_path / "out") != first
    assert figures_in(tmp_path / "out")["utility.test_rows"] == first["utility.test_rows"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--real", "none.csv"), "none.csv: expected a file"),
        (("--synthetic", "hub:zibby"), "hub:zibby: expected hub:OWNER/NAME"),
        (("--text-column", "words"), "expected one column 'words'"),
        (("--label-names", "a=praise,b=praise"), "expected at least two distinct names"),
        (("--label-names", "zibbygood=praise,other=blame"), "row 1: expected one of the declared labels"),
    ],
)
def test_wrong_input_is_refused_before_prefect_starts(given, told, words, tmp_path, prefect_server, call, monkeypatch):
    from understudy.flows import evaluate as module

    monkeypatch.setattr(module, "evaluate", lambda _: pytest.fail("Prefect was started"))
    code, said = call(*words, *given)
    assert (code, said.count("\n")) == (2, 1), said
    assert told in said
    assert not (tmp_path / "out").exists()


def test_a_prefect_server_that_is_away_is_told_before_a_table_is_read(words, call, monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    code, said = call(*words, "--label-names", "unknown,labels")
    assert (code, said.count("\n")) == (2, 1), said
    assert "PREFECT_API_URL=http://127.0.0.1:9/api: expected a Prefect server that answers" in said
    assert not (tmp_path / "out").exists()


def test_a_wrong_row_is_told_from_python_and_no_flow_is_run(tables, tmp_path, prefect_server, monkeypatch):
    monkeypatch.setattr("understudy.flows.evaluate.evaluate", lambda _: pytest.fail("Prefect was started"))
    wrong = tables["real"].set_column(0, "text", pa.array([None, *tables["real"]["text"].to_pylist()[1:]]))
    with pytest.raises(InputError, match=r"--real .*row 0: expected text, found null"):
        understudy.evaluate(**tables | {"real": wrong}, out=tmp_path / "out")


def test_an_interrupt_ends_the_command_and_says_that_it_begins_anew(words, tmp_path, prefect_server, call, monkeypatch):
    from understudy.runs.evaluations import report as evaluated

    with monkeypatch.context() as patch:
        patch.setattr(evaluated, "measure_tables", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
        code, said = call(*words)
    assert code == 128 + signal.SIGTERM, said
    assert "begins anew; nothing was charged" in said
    assert not (tmp_path / "out").exists()
    assert recorded(tmp_path / "out")[0].info.status == "KILLED"
    assert call(*words)[0] == 0
    assert recorded(tmp_path / "out")[0].info.status == "FINISHED"


def killed_at_the_page(*words: str) -> None:
    """Run a command in a process that is killed when report.html is to take its place."""
    from understudy.flows import cli

    replace = os.replace

    def killed(source, place):
        if str(place).endswith("report.html"):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, place)

    os.replace = killed
    sys.argv = ["understudy", *words]
    cli.main()


def test_a_killed_evaluation_leaves_whole_files_and_the_same_command_ends_it(
    words, files, home, tmp_path, prefect_server, call, monkeypatch
):
    from prefect.settings import PREFECT_API_URL

    out = tmp_path / "out"
    assert call(*words)[0] == 0
    page = (out / "report.html").read_bytes()
    write_with_other_labels(files, "synthetic")
    with monkeypatch.context() as patch:
        patch.setenv("PREFECT_API_URL", PREFECT_API_URL.value())
        assert forked.called(killed_at_the_page, *map(str, words)) == -signal.SIGKILL
    assert (out / "report.html").read_bytes() == page, "the earlier one, whole"
    assert json.loads((out / "report.json").read_text())["metrics"]
    assert recorded(out)[0].info.status == "RUNNING", "nobody was left to say that it was killed"
    assert call(*words)[0] == 0
    assert (out / "report.html").read_bytes() != page
    assert recorded(out)[0].info.status == "FINISHED"


def test_a_folder_of_a_worker_may_not_be_relative(request_of, prefect_server, monkeypatch):
    from understudy.flows import worker_places
    from understudy.flows.evaluate import evaluate

    monkeypatch.setattr(worker_places.deployment, "id", "some", raising=False)
    with pytest.raises(UnderstudyError, match="out=out: expected an absolute path"):
        evaluate(request_of(out="out"))
