"""MLflow's SQLite file is made whole or not at all, and one that is not whole is told with how to go on."""

import os
import shutil
import sqlite3
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

import fork_server
import pytest
from full_disk import files_of_at_most

from understudy.errors import InputError, TrackingFailed
from understudy.tasks.engine import tracking, tracking_attempts, tracking_log
from understudy.tasks.engine.tracking_database import check_database, whole_database

HALF = 200_000  # bytes; a whole one has four times as many


@pytest.fixture
def database(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place" / "mlflow.db"


@pytest.fixture
def made(database, empty_tracking_store) -> Path:
    shutil.copy(empty_tracking_store, database)
    return database


def entries(database: Path) -> list[str]:
    return sorted(path.name for path in database.parent.iterdir())


def opened(database: Path) -> str:
    """As the first command does; gives the id of the experiment."""
    tracking_log.connect.cache_clear()
    return tracking_log.connect(f"sqlite:///{database}").experiment


def change(database: Path, *statements: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


# No file gets larger than half a database, and then any may.
ON_A_FULL_DISK = f"""
import os, resource, signal, sys
from understudy.errors import TrackingFailed
from understudy.tasks.engine import tracking, tracking_attempts, tracking_log

uri, place = sys.argv[1:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, ({HALF}, most))
try:
    tracking_log.connect(uri)
except TrackingFailed as failed:
    assert "UNDERSTUDY_MLFLOW_URI" in str(failed)
    assert os.listdir(place) == ["mlflow.db.lock"]
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert tracking_log.connect(uri).experiment
else:
    raise AssertionError("expected no room")
"""
OPENED = "import sys; from understudy.tasks.engine import tracking_log; tracking_log.connect(sys.argv[1])"


@pytest.fixture
def start(tmp_path, database):
    """Run a script about the database in a process of its own, which has imported MLflow already."""
    with ExitStack() as held:

        def start(script: str) -> fork_server.Forked:
            (tmp_path / "script.py").write_text(script)
            streams = [held.enter_context((tmp_path / name).open("w+b")).fileno() for name in ("in", "out", "error")]
            words = [str(tmp_path / "script.py"), f"sqlite:///{database}", str(database.parent)]
            child = fork_server.start(words, environment=os.environ, streams=streams)
            held.callback(child.kill)
            return child

        yield start


def test_a_full_disk_leaves_nothing_of_a_database(database, start, tmp_path):
    assert start(ON_A_FULL_DISK).wait() == 0, (tmp_path / "error").read_text()
    check_database(database)


def test_a_disk_that_gets_full_later_is_told_and_not_by_pages(made, monkeypatch, capfd):
    """MLflow says of each attempt what it failed with, in fifty lines, before it raises that."""
    monkeypatch.setattr(tracking_attempts, "_RETRY_AFTER_S", (0.0,))
    log = tracking_log.connect(f"sqlite:///{made}")

    def write() -> None:
        for number in range(60):
            log.client.create_run(log.experiment, tags={str(number): "public " * 1000})

    told = f"The disk of sqlite:///{made} takes no more: make room"
    with files_of_at_most(made.stat().st_size), pytest.raises(TrackingFailed, match=told):
        log.persist("the run", write)
    assert capfd.readouterr() == ("", "")
    log.persist("the run", write)


def test_a_kill_leaves_no_half_database(database, start):
    child = start(OPENED)
    ends = time.monotonic() + 120
    while not any(path.stat().st_size > HALF for path in database.parent.rglob("mlflow.db")):
        assert time.monotonic() < ends
        time.sleep(0.001)
    child.kill()
    assert entries(database) == [".mlflow.db.new", "mlflow.db.lock"]
    assert opened(database)
    assert entries(database) == ["mlflow.db", "mlflow.db.lock"]
    check_database(database)


def test_an_empty_file_and_what_lies_beside_it_make_room(database):
    database.touch()
    database.with_name("mlflow.db-journal").write_bytes(b"of a database that is gone")
    check_database(database)
    assert opened(database)
    assert entries(database) == ["mlflow.db", "mlflow.db.lock"]


def test_two_that_make_a_database_at_once_end_with_one(database):
    seen = []

    def make() -> None:
        with whole_database(database):
            check_database(database)
            seen.append(database.stat().st_ino)

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 2
    assert len(set(seen)) == 1


def test_a_database_that_is_as_mlflow_made_it_is_whole(made, tmp_path):
    check_database(made)
    check_database(tmp_path / "not-made-yet.db")


# As a kill of an earlier version left it: MLflow takes the tables for all there are, or fails to make the others.
HALVES = {
    "version": ("update alembic_version set version_num = '770bee3ae1dd'",),
    "no version": ("delete from alembic_version",),
    "tables": ("drop table trace_tags", "drop table spans"),
}


@pytest.mark.parametrize("half", HALVES)
def test_half_a_database_is_refused_with_the_command_that_mends_it(made, half):
    change(made, "pragma foreign_keys = off", *HALVES[half])
    with pytest.raises(InputError, match=rf"mlflow\.db: .*no run in it; .*mv {made} {made}\.broken"):
        check_database(made)


def test_a_database_that_mlflow_fails_on_is_refused_before_anything_else(made):
    change(made, HALVES["version"][0])
    with pytest.raises(InputError, match="770bee3ae1dd"):
        opened(made)


def test_once_half_a_database_is_moved_away_a_new_one_is_made(made):
    change(made, "pragma foreign_keys = off", *HALVES["tables"])
    made.rename(f"{made}.broken")
    assert opened(made)


def test_a_database_with_runs_in_it_is_upgraded_not_thrown_away(made, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_MLFLOW_URI", f"sqlite:///{made}")
    with tracking.parent_run("key", "script", parameters={}):
        pass
    change(made, HALVES["version"][0])
    with pytest.raises(InputError, match=rf"copy the file and call `mlflow db upgrade sqlite:///{made}`"):
        check_database(made)


@pytest.mark.parametrize("damage", ["no database", "torn"])
def test_a_damaged_file_is_refused(made, damage):
    if damage == "no database":
        made.write_text("not a database, " * 100)
    else:
        content = made.read_bytes()
        made.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=rf"mlflow\.db: .*mv {made}"):
        check_database(made)
