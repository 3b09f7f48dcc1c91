"""`understudy doctor` and `understudy gc` where only a part of what they look at is there."""

import errno
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path


def test_the_server_zone_is_examined_without_what_only_the_client_zone_has(call, home, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    code, said = call("doctor", "--json")
    assert code == 0, said
    found = json.loads(said[: said.rindex("]") + 1])
    assert not {"secret and ledger", "private store"} & {check["name"] for check in found}
    assert {"home", "exchange store", "tracking"} <= {check["name"] for check in found}
    code, said = call("gc", "--json")
    assert code == 0, said
    assert not (home / "ledger.db").exists()


def test_a_place_that_may_not_be_read_is_one_failed_check(call, home, monkeypatch):
    """`models list` says of each model why it is not there."""
    from understudy.models import listing

    def denied(model):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), f"/models/{model.name}")

    monkeypatch.setattr(listing, "find_named", denied)
    code, said = call("models", "list", "--json")
    assert code == 0, said
    for model in json.loads(said):
        assert f"/models/{model['name']}: expected" in model["state"]
        assert "UNDERSTUDY_MODELS" in model["state"]
    monkeypatch.setattr("understudy.flows.doctor._python", lambda: denied(Path("python")))
    code, said = call("doctor", "--json")
    assert code == 1
    assert "/models/python: expected" in said
    assert "Permission denied; fix it" in said


def test_gc_removes_no_folder_of_others(call, tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", str(tmp_path / "share"))
    (tmp_path / "share" / "photos").mkdir(parents=True)
    (tmp_path / "share" / "photos" / "sea.jpg").write_bytes(b"x")
    code, said = call("gc", "--json")
    assert code == 0, said
    assert (tmp_path / "share" / "photos" / "sea.jpg").read_bytes() == b"x"


def test_half_a_database_of_mlflow_is_no_good_one(call, home, empty_tracking_store):
    """It can be written, so it was told to be in order; then no run could use it."""
    home.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(empty_tracking_store, home / "mlflow.db")
    with closing(sqlite3.connect(home / "mlflow.db")) as connection:
        connection.execute("drop table spans")
        connection.commit()
    code, said = call("doctor", "--json")
    assert code == 1, said
    failed = [check for check in json.loads(said[: said.rindex("]") + 1]) if not check["ok"]]
    assert [check["name"] for check in failed] == ["tracking"]
    assert f"mv {home / 'mlflow.db'} " in failed[0]["found"]


def test_a_deleted_experiment_of_mlflow_is_told_before_a_run_is_refused_over_it(call, home, empty_tracking_store):
    from mlflow.tracking import MlflowClient

    home.mkdir(mode=0o700)
    shutil.copy(empty_tracking_store, home / "mlflow.db")
    client = MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("understudy").experiment_id
    client.delete_experiment(experiment)
    code, said = call("doctor", "--json")
    assert code == 1
    failed = [check for check in json.loads(said[: said.rindex("]") + 1]) if not check["ok"]]
    assert [check["name"] for check in failed] == ["tracking"]
    assert f"mlflow experiments restore --experiment-id {experiment}" in failed[0]["found"]


def test_a_misspelt_variable_is_told_by_the_doctor_and_by_what_may_begin_a_ledger(call, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_HOMEE", "/elsewhere")
    code, said = call("doctor", "--json")
    assert code == 1
    assert "UNDERSTUDY_HOMEE: nothing reads" in said
    code, said = call("ledger", "register", "ward", "--budget", "8,0.01", "--rows", 60)
    assert code == 0, said
    assert "note: UNDERSTUDY_HOMEE: nothing reads" in said
