"""After a purge nothing that is left points at what is gone, wherever it is stored."""

import contextlib
import json
import sqlite3
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.artifacts.access import exchange_store, private_store
from understudy.data.digests import row_digests
from understudy.errors import InputError, SourcePurged, TrackingFailed
from understudy.evaluation.metrics import Metrics
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.reporting.report import build_report
from understudy.runs.folders import read_record
from understudy.runs.placement import INTERNAL
from understudy.settings import prepare_environment, settings
from understudy.tasks import housekeeping
from understudy.tasks.engine import leases, tracking_attempts, tracking_log
from understudy.tasks.housekeeping import purge_source


def stored() -> set[str]:
    return {ref.id for store in (private_store(), exchange_store()) for ref in store.refs()}


def files_naming(gone: set[str], *roots: Path) -> list[str]:
    """Files under the roots in which an id stands, as it is or as MLflow cuts it."""
    needles = [name[:36].encode() for name in gone]
    files = [
        path for root in roots for path in root.rglob("*") if path.is_file() and not path.name.startswith("mlflow.db")
    ]
    return [str(path) for path in files if any(needle in path.read_bytes() for needle in needles)]


def unmarked_runs(database: Path, gone: set[str]) -> list[tuple[str, str]]:
    """(run, id) of each removed artifact that a recorded run names without saying that it is gone."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        named = connection.execute(
            "select inputs.destination_id, input_tags.value from inputs join input_tags using (input_uuid) "
            "where input_tags.name = 'understudy.id'"
        ).fetchall()
        purged = dict(connection.execute("select run_uuid, value from tags where key = 'understudy.purged'"))
    assert named
    return [(run, name) for run, name in named if name in gone and name not in json.loads(purged.get(run, "[]"))]


@pytest.fixture
def finished(prefect_server, request_of, home, tmp_path):
    """A run, and the ids of what it stored."""
    prepare_environment()
    from understudy.flows.conditional_generation import conditional_generation

    conditional_generation(request_of(samples=8))
    return stored()


def test_nothing_dangles_after_a_purge(finished, home, tmp_path, call, monkeypatch):
    out = tmp_path / "out"
    answers = settings().private_root / "endpoint-answers"
    answers.mkdir()
    (answers / "answer").write_text("to a text that follows from the rows")
    kept = {
        source: leases.acquire(settings().checkpoints_root, source, sources=[source]) for source in ("ward", "other")
    }
    for lease in kept.values():
        (lease.directory() / "step-000000001.safetensors").write_bytes(b"weights of a killed training")
        lease.release()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (out / INTERNAL, *(out / INTERNAL).iterdir())}
    assert modes.pop("internal") == 0o700
    assert set(modes.values()) == {0o600}
    assert len(list((settings().private_root / "plans").iterdir())) == 1
    places = (settings().private_root, home / "exchange", out / INTERNAL)
    assert len(files_naming(finished, *places)) > 10, "the search finds what is there"

    # MLflow is away at the end: everything else is done, and the next purge finishes it.
    with monkeypatch.context() as away:
        away.setattr(tracking_attempts, "_RETRY_AFTER_S", ())
        away.setattr(tracking_log.Log, "mark_purged", lambda *_: (_ for _ in ()).throw(OSError("away")))
        with pytest.raises(TrackingFailed):
            purge_source("ward")
    gone = finished - stored()
    assert len(gone) == 7
    assert unmarked_runs(home / "mlflow.db", gone)

    told = purge_source("ward")
    assert told["tracked_runs_marked"] > 0
    assert unmarked_runs(home / "mlflow.db", gone) == []
    assert files_naming(gone, home, *places) == []
    assert list((settings().private_root / "plans").iterdir()) == []
    assert not (out / INTERNAL).exists()
    assert list(answers.iterdir()) == []
    assert [path.name for path in settings().checkpoints_root.iterdir()] == ["other"], (
        "what a kill left behind goes too"
    )
    assert (out / "export/synthetic.parquet").exists(), "what was released stands for itself"
    assert Ledger.open().spent("ward")[0] == 3.0
    assert stored() == finished - gone, "the public baseline stays"

    with pytest.raises(InputError, match=r"run\.json"):
        read_record(out)
    (model,) = {name for name in gone if tracked_kind(home, name) == "model"}
    code, said = call("lineage", model)
    assert code == 0, said
    assert "purged" in said
    purge_source("ward")


def tracked_kind(home: Path, name: str) -> str | None:
    with contextlib.closing(sqlite3.connect(f"file:{home / 'mlflow.db'}?mode=ro", uri=True)) as connection:
        found = connection.execute("select name from datasets where digest = ?", (name[:36],)).fetchone()
    return found[0] if found else None


def test_an_interrupted_purge_is_finished_by_the_next(finished, home, tmp_path, monkeypatch):
    """Killed after the artifacts: results that name them are found although the stores hold them no more."""
    with monkeypatch.context() as killed:
        killed.setattr(housekeeping, "_drop_caches", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            purge_source("ward")
    gone = finished - stored()
    assert gone
    assert unmarked_runs(home / "mlflow.db", gone)
    purge_source("ward")
    assert unmarked_runs(home / "mlflow.db", gone) == []
    assert files_naming(gone, home, tmp_path / "out" / INTERNAL) == []


@pytest.mark.parametrize("moment", ["before the charge", "after the charge"])
def test_a_purge_beside_a_run_is_told_by_that_run(moment, prefect_server, request_of, tmp_path, monkeypatch):
    prepare_environment()
    from understudy.flows import paid_run
    from understudy.flows.conditional_generation import conditional_generation

    charge = paid_run.charge

    def beside(*given, **named):
        if moment == "after the charge":
            receipt = charge(*given, **named)
        purge_source("ward")
        return receipt if moment == "after the charge" else charge(*given, **named)

    monkeypatch.setattr(paid_run, "charge", beside)
    with pytest.raises(SourcePurged, match=r"'ward'.*understudy purge.*again.*--accept-new-charge"):
        conditional_generation(request_of(samples=8))
    assert Ledger.open().spent("ward")[0] == (3.0 if moment == "after the charge" else 0.0)


def test_what_was_purged_does_not_come_back_with_the_export(prefect_server, request_of, home, tmp_path, monkeypatch):
    prepare_environment()
    from understudy.flows import conditional_generation as flows

    evaluate = flows.evaluate

    def and_purge(*given):
        metrics = evaluate(*given)
        purge_source("ward")
        return metrics

    monkeypatch.setattr(flows, "evaluate", and_purge)
    with pytest.raises(SourcePurged):
        flows.conditional_generation(request_of(samples=8))
    assert not list((tmp_path / "out").glob("*/*"))


def test_gc_while_the_python_api_runs_takes_nothing_from_it(home, tmp_path, private_rows):
    from understudy.runs.handed_tables import as_files

    with as_files({"data": private_rows}) as files:
        assert housekeeping.collect_garbage()["caches"] == 0
        assert Path(str(files["data"])).is_file()
        purged = Path(str(files["data"])).parent
        housekeeping._remove(purged)
    assert not purged.exists(), "and what a purge took away is not missed"


def test_the_report_of_an_evaluation_goes_with_the_source_of_its_rows(
    home, tmp_path, private_rows, prefect_server, call
):
    tables = {"real": private_rows.slice(0, 40), "test": private_rows.slice(40), "synthetic": made_up_reviews()}
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    words = [word for name in tables for word in (f"--{name}", tmp_path / f"{name}.parquet")]
    register("ward", private_rows)
    register("clinic", made_up_reviews())
    code, said = call("evaluate", *words, "--out", tmp_path / "report", "--json")
    assert code == 0, said
    assert names_in(tmp_path / "report") == ["report.html", "report.json", "sources.json"]
    assert purge_source("clinic")["evaluation_reports"] == []
    told = purge_source("ward")
    assert (told["evaluation_reports"], told["not_removed"]) == ([str(tmp_path / "report")], [])
    assert not (tmp_path / "report").exists()


def test_the_report_of_an_evaluation_goes_although_its_rows_were_registered_later(
    home, tmp_path, private_rows, request_of, prefect_server, call
):
    """Nobody knew whose the rows were: the source takes the report over when a run registers them."""
    tables = {"real": private_rows.slice(0, 40), "test": private_rows.slice(40), "synthetic": made_up_reviews()}
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    words = [word for name in tables for word in (f"--{name}", tmp_path / f"{name}.parquet")]
    code, said = call("evaluate", *words, "--out", tmp_path / "report", "--json")
    assert code == 0, said
    assert names_in(tmp_path / "report") == ["report.html", "report.json"]
    (note,) = (settings().private_root / "evaluated").iterdir()
    known = {digest.hex() for table in tables.values() for digest in row_digests(table.select(["text"]))}
    assert known.isdisjoint(json.loads(note.read_text())["rows"]), "a bare digest would tell a row to who guesses it"

    from understudy.runs import registration
    from understudy.runs.validation import validate

    registration.register(validate(request_of(), "conditional-generation"))
    assert names_in(tmp_path / "report") == ["report.html", "report.json", "sources.json"]
    told = purge_source("ward")
    assert (told["evaluation_reports"], told["not_removed"]) == ([str(tmp_path / "report")], [])
    assert not (tmp_path / "report").exists()
    assert names_in(settings().private_root / "evaluated") == []


def made_up_reviews() -> pa.Table:
    texts = [f"a {word} stay on ward {i} , take {i}" for i in range(20) for word in ("lovely", "dreadful")]
    return pa.table({"text": texts, "label": ["good", "bad"] * 20})


def register(source: str, table: pa.Table) -> None:
    """As a run of the source does."""
    record = SourceRecord(
        name=source, unit="example", relation="replace_special", epsilon=8, delta=1e-4, n=table.num_rows
    )
    Ledger.open().register(record)
    Ledger.open().register_rows(source, row_digests(table.select(["text"])))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_report_drawn_again_closes_what_an_earlier_version_left_open(tmp_path, call):
    inner = tmp_path / "out" / INTERNAL
    build_report(inner, title="t", metrics=Metrics(), statement={})
    (inner / "run.json").write_text("{}")
    for path in (inner, *inner.iterdir()):
        path.chmod(0o755)
    code, said = call("report", tmp_path / "out")
    assert code == 0, said
    assert {stat.S_IMODE(path.stat().st_mode) for path in inner.iterdir()} == {0o600}
    assert stat.S_IMODE(inner.stat().st_mode) == 0o700
