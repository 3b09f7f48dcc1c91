"""A run is called dead only when no process can have it."""

import os
import signal

import forked
import pytest

from understudy.errors import TrackingFailed
from understudy.tasks.engine import run_locks
from understudy.tasks.engine.run_locks import hold


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def dead():
    return []


def killed(folder, *run_keys: str) -> None:
    """Begin runs in a process that dies amid them."""
    for run_key in run_keys:
        hold(folder, run_key, lambda _: None)
    os.kill(os.getpid(), signal.SIGKILL)


def test_runs_of_a_killed_process_are_dead_once(folder, dead):
    assert forked.called(killed, folder, "a", "b") == -signal.SIGKILL
    hold(folder, "c", dead.append).release(ended=True)
    hold(folder, "c", dead.append).release(ended=True)
    assert dead == [{"a", "b"}]
    assert list(folder.iterdir()) == []


def test_a_run_that_computes_is_left_alone_whatever_became_of_another_attempt(folder, dead):
    assert forked.called(killed, folder, "a") == -signal.SIGKILL
    living = hold(folder, "a", dead.append)
    hold(folder, "b", dead.append).release(ended=True)
    assert dead == []
    living.release(ended=False)
    hold(folder, "b", dead.append).release(ended=True)
    assert dead == [{"a"}], "its end was not told"


def test_another_attempt_at_a_living_run_leaves_it_alone_when_it_dies(folder, dead):
    living = hold(folder, "a", dead.append)
    assert forked.called(killed, folder, "a") == -signal.SIGKILL
    hold(folder, "b", dead.append).release(ended=True)
    assert dead == []
    living.release(ended=True)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("machine", "host", "is_dead"), [("new", "here", True), ("new", "other", False)])
def test_a_free_lock_of_another_machine_says_nothing_and_one_of_before_a_restart_does(
    folder, dead, monkeypatch, machine, host, is_dead
):
    monkeypatch.setattr(run_locks, "_here", lambda: ("old", "here"))
    hold(folder, "a", dead.append).release(ended=False)
    monkeypatch.setattr(run_locks, "_here", lambda: (machine, host))
    hold(folder, "b", dead.append).release(ended=True)
    assert dead == ([{"a"}] if is_dead else [])
    assert len(list(folder.iterdir())) == (0 if is_dead else 1)


def test_where_the_store_is_away_the_next_start_tells_it(folder, dead):
    def away(_):
        raise TrackingFailed("away")

    hold(folder, "a", dead.append).release(ended=False)
    hold(folder, "b", away).release(ended=True)
    hold(folder, "b", dead.append).release(ended=True)
    assert dead == [{"a"}]
