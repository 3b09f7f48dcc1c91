import os
import shutil

import pytest
from sqlalchemy.exc import OperationalError

from understudy.tasks.engine import tracking_attempts, tracking_log
from understudy.tasks.engine.run_record import TaskRecord
from understudy.tasks.engine.turns import Turns


@pytest.fixture
def log(home, empty_tracking_store):
    """A flow run's record, made by this process; and how often runs are searched for from here on."""
    home.mkdir(mode=0o700)
    shutil.copy(empty_tracking_store, home / "mlflow.db")
    found = tracking_log.open_log("client")
    parent = found.persist("a", lambda: found.open_parent("key", "flow", {}, {"prefect.flow_run_id": "f"}, None))
    assert found.parent_of("f") == parent
    return found


@pytest.fixture
def searches(log, monkeypatch):
    asked = []
    search = log.client.search_runs

    def counted(*args, **kwargs):
        asked.append(args)
        return search(*args, **kwargs)

    monkeypatch.setattr(log.client, "search_runs", counted)
    return asked


def record(key: str, **changes) -> TaskRecord:
    return TaskRecord(key=key, name=key, zone="client", state="FINISHED", started_ms=1, flow_run_id="f", **changes)


def write(log, key: str, **changes) -> str:
    return log.persist("a task", lambda: log.write_child(record(key, **changes)))


def other_writer(log):
    """As another process has it: a client and turns of its own."""
    return tracking_log._with_experiment(log.uri, log.lock)


def names(log) -> list[str]:
    return sorted(run.info.run_name for run in log.client.search_runs([log.experiment]))


def test_who_wrote_all_there_is_does_not_search(log, searches):
    written = [write(log, key) for key in ("a", "b", "c")]
    assert not searches
    assert len(set(written)) == 3
    assert names(log) == ["a", "b", "c", "flow"]


def test_the_same_task_again_is_found(log, searches):
    assert write(log, "a") == write(log, "a", cached=True)
    assert len(searches) == 1
    assert names(log) == ["a", "flow"]


def test_what_another_process_wrote_is_found(log, searches):
    write(log, "a")
    other = other_writer(log)
    theirs = write(other, "b")
    assert write(log, "b") == theirs
    assert write(other, "a") == write(log, "a")
    assert len(searches) == 2
    assert names(log) == ["a", "b", "flow"]


def test_what_a_failed_attempt_left_is_found(log, searches, monkeypatch):
    monkeypatch.setattr(tracking_attempts, "_RETRY_AFTER_S", (0.0,))
    batch, failed = log.client.log_batch, []

    def fails_once(*args, **kwargs):
        if not failed:
            failed.append(True)
            raise OperationalError("INSERT", {}, Exception("database is locked"))
        return batch(*args, **kwargs)

    monkeypatch.setattr(log.client, "log_batch", fails_once)
    write(log, "a", metrics={"loss": 1.0})
    assert failed
    assert names(log) == ["a", "flow"]
    assert log.client.search_runs([log.experiment], "tags.`understudy.key` = 'a'")[0].data.metrics == {"loss": 1.0}


def test_children_of_a_run_that_was_found_are_searched_for(log, searches):
    """It may be one that was killed, or one that goes on beside this one."""
    again = other_writer(log)
    again.persist("a", lambda: again.open_parent("key", "flow", {}, {"prefect.flow_run_id": "f"}, None))
    assert again._turns.writes(again.parent_of("f"), "a")


def test_a_process_that_forked_knows_nothing(tmp_path, monkeypatch):
    turns = Turns(tmp_path / "lock")
    with turns.turn():
        turns.made("run")
    assert not turns.writes("run", "a")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with turns.turn():
        assert turns.writes("run", "b")


def test_of_a_store_that_others_can_write_to_nothing_is_known():
    turns = Turns(None)
    with turns.turn():
        turns.made("run")
        assert turns.writes("run", "a")


def test_a_lock_file_that_was_taken_away_is_another_writers(tmp_path):
    turns = Turns(tmp_path / "lock")
    with turns.turn():
        turns.made("run")
    (tmp_path / "lock").unlink()
    with turns.turn():
        assert turns.writes("run", "a")
