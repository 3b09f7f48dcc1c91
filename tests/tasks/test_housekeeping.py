"""What `gc` may remove: nothing that another home, another program or an unfinished run still needs."""

import json
import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from data_set_hub import DataSetHub
from unit.privacy.ledger.ledger_requests import one_sum

from understudy.artifacts.access import ArtifactRef, exchange_store, path_of, private_store, write_json
from understudy.data.readers import read_source
from understudy.errors import InputError
from understudy.privacy.labels import Label, private, public
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.runs.registration import _store_rows
from understudy.settings import settings
from understudy.tasks.engine import leases
from understudy.tasks.housekeeping import collect_garbage, purge_source

NOTHING = {"private_artifacts": 0, "exchange_artifacts": 0, "checkpoints": 0, "caches": 0}
ROWS = pa.table({"text": ["one", "two"], "label": [0, 1]})


@pytest.fixture
def tracking_store(home: Path, empty_tracking_store: Path, one_way_to_connect: None) -> None:
    """An MLflow database with its tables; a purge marks it, and makes one where there is none."""
    home.mkdir(mode=0o700)
    shutil.copy(empty_tracking_store, home / "mlflow.db")


def registered(source: str = "reviews") -> Ledger:
    ledger = Ledger.open()
    about = {"unit": "example", "relation": "replace_special", "epsilon": 8.0, "delta": 1e-4, "n": 1000}
    ledger.register(SourceRecord(name=source, **about))
    return ledger


def charged() -> Label:
    """The label of what a charge of this home released."""
    asked = {"source": "reviews", "request_key": "request", "queries": one_sum(), "epsilon": 2.0, "delta": 1e-5}
    about = {"epsilon_rdp": 2.2, "unit": "example", "relation": "replace_special", "code_digest": "code"}
    return registered().reserve(**asked, **about).label()


def old(ref: ArtifactRef) -> ArtifactRef:
    os.utime(path_of(ref) / "manifest.json", (1, 1))
    return ref


def note(label: Label, content: str = "x", kind: str = "note", parents=()) -> ArtifactRef:
    return old(write_json(content, kind=kind, label=label, parents=parents))


def kept(*refs: ArtifactRef) -> list[bool]:
    there = {ref.id for store in (private_store(), exchange_store()) for ref in store.refs()}
    return [ref.id in there for ref in refs]


def stored_result(ref: ArtifactRef) -> Path:
    path = settings().results_root / "key"
    path.write_text(json.dumps({"result": ref.model_dump_json()}))
    return path


def test_registered_rows_stay_until_their_source_is_purged(tracking_store):
    ledger = registered()
    rows = [old(_store_rows(ledger, "reviews", kind, ROWS)) for kind in ("rows", "test-rows")]
    passing = note(private("reviews"))
    assert collect_garbage() == {**NOTHING, "private_artifacts": 1}
    assert kept(*rows, passing) == [True, True, False]
    assert _store_rows(ledger, "reviews", "rows", ROWS) == rows[0], "every task's key holds this id"
    purge_source("reviews")
    assert kept(*rows) == [False, False]


def test_what_another_home_made_or_released_stays_in_a_shared_store(tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", str(tmp_path / "share"))
    label = charged()
    named = [f"source:reviews@{label.guarantees[0].charge_id}"]
    candidates = note(label, "candidates")
    scores = note(label, "scores", parents=[*named, candidates])
    paid = [candidates, scores, note(label, kind="model"), note(label, "gradient", parents=named)]
    passing, common = note(label, "passing"), note(public())

    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "another"))
    assert collect_garbage() == NOTHING
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    assert collect_garbage() == NOTHING
    assert all(kept_in_exchange(*paid, passing, common))

    monkeypatch.delenv("UNDERSTUDY_ZONE")
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "understudy-home"))
    assert collect_garbage() == {**NOTHING, "exchange_artifacts": 1}
    assert kept(*paid, passing, common) == [True] * 4 + [False, True]


def kept_in_exchange(*refs: ArtifactRef) -> list[bool]:
    there = {ref.id for ref in exchange_store().refs()}
    return [ref.id in there for ref in refs]


def test_what_a_kept_artifact_was_made_of_stays():
    label = charged()
    first = note(label, "first")
    second = note(label, "second", parents=[first])
    third = note(label, "third", parents=[second])
    result = stored_result(third)
    assert collect_garbage() == NOTHING
    result.unlink()
    assert collect_garbage()["exchange_artifacts"] == 3


@pytest.mark.usefixtures("tracking_store")
@pytest.mark.parametrize("content", ["", '{"result": ', "\udcff"])
def test_a_result_that_does_not_read_stops_neither_gc_nor_purge(content):
    registered()
    ref = note(private("reviews"))
    broken = settings().results_root / "broken"
    broken.write_bytes(content.encode(errors="surrogateescape"))
    stored_result(ref)
    assert collect_garbage() == NOTHING
    purges = settings().private_root / "purges"
    purges.mkdir(mode=0o700)
    assert purge_source("reviews")["results"] == 2
    assert not broken.exists()
    assert kept(ref) == [False]
    assert list(purges.iterdir()) == []


def test_a_purge_of_a_source_that_is_not_there_says_which_are_and_advises_no_registration():
    registered()
    with pytest.raises(InputError, match=r"--source reveiws: .*has reviews; correct.*nothing was removed") as refused:
        purge_source("reveiws")
    assert "ledger register" not in str(refused.value)


def test_a_result_that_cannot_be_read_now_stops_gc_before_anything_is_removed(monkeypatch):
    """A disk that is away for a moment does not make a result name nothing."""
    ref = note(private("reviews"))
    stored_result(ref)
    monkeypatch.setattr(Path, "read_bytes", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"):
        collect_garbage()
    monkeypatch.undo()
    assert (path_of(ref) / "manifest.json").exists()


def test_a_result_that_vanishes_while_it_is_looked_for_names_nothing(monkeypatch):
    result = stored_result(note(private("reviews")))
    found = type(result).iterdir

    def listed(folder):
        names = list(found(folder))
        if folder == result.parent:
            monkeypatch.setattr(Path, "is_file", lambda _: True)
            result.unlink()
        return iter(names)

    monkeypatch.setattr(Path, "iterdir", listed)
    assert collect_garbage()["private_artifacts"] == 1


@pytest.mark.usefixtures("tracking_store")
def test_gc_spares_temporary_files_that_a_run_may_use(monkeypatch):
    root = settings().temporary_root
    for name in ("inbox-young", "inbox-old"):
        (root / name).mkdir()
        (root / name / "data.parquet").touch()
    os.utime(root / "inbox-old", (1, 1))
    failure = settings().private_root / "failures"
    failure.mkdir(mode=0o700)
    (failure / "train-1.txt").touch()
    assert collect_garbage()["caches"] == 2
    assert [path.name for path in root.iterdir()] == ["inbox-young"]
    registered()
    purge_source("reviews")
    assert list(root.iterdir()) == [], "what came from rows goes with them"


@pytest.mark.usefixtures("tracking_store")
def test_gc_and_purge_remove_what_was_fetched_of_the_hub(monkeypatch):
    folder = settings().private_root / "datasets"
    registered()
    with DataSetHub({"train.csv": b"text,label\none,0\n"}) as hub:
        for name, value in hub.environment.items():
            monkeypatch.setenv(name, value)
        for remove in (collect_garbage, lambda: purge_source("reviews")):
            assert read_source("hub:someone/rows").num_rows == 1
            assert list((folder / "hub").rglob("train.csv"))
            assert remove()["caches"] > 0
            assert list(folder.iterdir()) == []


def test_the_server_zone_collects_its_own_checkpoints_and_has_no_ledger(home, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    leases.acquire(settings().checkpoints_root, "k" * 64).release()
    place = settings().checkpoints_root / ("k" * 64)
    long_ago = time.time() - 365 * 24 * 3600
    os.utime(place, (long_ago, long_ago))
    assert collect_garbage() == {**NOTHING, "checkpoints": 1}
    assert not (home / "ledger.db").exists()
