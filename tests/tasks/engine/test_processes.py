"""Tasks that compute in processes of their own: side by side, the same results, and none outlives its run."""

import os
import subprocess
import time
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from pathlib import Path

import fork_server
import pytest
from prefect import flow, unmapped
from pydantic import BaseModel

from understudy.errors import BudgetRefused, LeaseLost, TaskFailed
from understudy.tasks.engine import processes
from understudy.tasks.engine.body import Body
from understudy.tasks.engine.failures import can_pass
from understudy.tasks.engine.runtime import checkpoint_directory, progress, report_metrics, task


class Meeting(BaseModel, frozen=True):
    place: str


@task(name="meet", apart=True)
def meet(meeting: Meeting, number: int) -> dict[str, int]:
    """Waits until another process has come, and says which process this is."""
    report_metrics({"number": number})
    (Path(meeting.place) / str(number)).touch()
    progress(1, 2)
    deadline = time.monotonic() + 100
    while len(list(Path(meeting.place).iterdir())) < 2:
        assert time.monotonic() < deadline, "expected the other task to compute at the same time"
        time.sleep(0.05)
    (checkpoint_directory() / "met").touch()
    progress(2, 2)
    return {"process": os.getpid(), "number": number}


@flow(name="meeting", persist_result=False)
def meeting(place: str) -> list[dict[str, int]]:
    return meet.map(unmapped(Meeting(place=place)), [0, 1]).result()


@task(name="refuse", apart=True)
def refuse() -> None:
    """Raises an error that the user may read."""
    raise BudgetRefused("expected a budget, found none")


@task(name="break", apart=True)
def broken(secret: str) -> None:
    """Raises an error whose text may be private."""
    raise ValueError(secret)


@task(name="vanish", apart=True)
def vanish() -> None:
    """Ends as a killed process does."""
    os.kill(os.getpid(), 9)


@task(name="own", apart=True)
def of_own_method() -> int:
    """Imports what lies beside a notebook."""
    return int(import_module("own_method").HERE)


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


def body_of(folder, told):
    return Body(lambda: folder, lambda *steps: told.append(steps))


def apart(function, body, **arguments):
    return processes.compute_apart(function.name, function.fn.__wrapped__, arguments, body)


@pytest.fixture
def imported(monkeypatch):
    """A task's process starts from one that has imported what takes a second; the others here start from nothing."""
    start = subprocess.Popen
    words = fork_server.command("-m", processes.__name__).split()
    monkeypatch.setattr(processes.subprocess, "Popen", lambda _, **given: start(words, **given))


def test_mapped_tasks_compute_at_the_same_time_in_processes_of_their_own(home, prefect_server, monkeypatch, place):
    monkeypatch.setenv("UNDERSTUDY_PROCESSES", "2")
    monkeypatch.setenv("UNDERSTUDY_DEVICE", "cpu")
    found = meeting(str(place))
    assert [one["number"] for one in found] == [0, 1]
    assert len({os.getpid(), *(one["process"] for one in found)}) == 3


def test_progress_metrics_and_the_directory_are_those_of_the_run(home, place, tmp_path):
    (place / "other").touch()
    told = []
    body = body_of(tmp_path, told)
    assert apart(meet, body, meeting=Meeting(place=str(place)), number=1)["number"] == 1
    assert told == [(1, 2), (2, 2)]
    assert body.metrics == {"number": 1}
    assert (tmp_path / "met").exists()


@pytest.mark.parametrize("library", ["json", "prefect", "pydantic"])
def test_no_file_of_the_working_directory_is_imported_beside_private_rows(home, tmp_path, monkeypatch, library):
    """A command does not import from there; data, and whatever came with them, may lie there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes.sys, "path", [path for path in processes.sys.path if path not in ("", os.getcwd())])
    (tmp_path / f"{library}.py").write_text("open('was-run', 'w').close()\nraise ImportError('somebody else\\'s')\n")
    with pytest.raises(BudgetRefused, match="expected a budget"):
        apart(refuse, body_of(tmp_path, []))
    assert not (tmp_path / "was-run").exists()


def test_what_a_notebook_imports_from_its_folder_is_found_by_its_tasks(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes.sys, "path", ["", *processes.sys.path])
    (tmp_path / "own_method.py").write_text("HERE = 7\n")
    assert apart(of_own_method, body_of(tmp_path, [])) == 7


def test_an_error_comes_back_as_it_is_and_a_foreign_one_without_its_text(home, tmp_path, imported):
    with pytest.raises(BudgetRefused, match="expected a budget") as refused:
        apart(refuse, body_of(tmp_path, []))
    assert refused.value.exit_code == 3
    with pytest.raises(TaskFailed, match="ValueError") as failed:
        apart(broken, body_of(tmp_path, []), secret="Zibby")
    assert "Zibby" not in str(failed.value)


def test_a_process_that_was_killed_is_a_fault_that_can_pass(home, tmp_path, imported):
    with pytest.raises(BrokenProcessPool, match="vanish") as broke:
        apart(vanish, body_of(tmp_path, []))
    assert can_pass(broke.value)


def test_work_that_nobody_holds_a_lease_for_any_more_is_stopped(home, place, tmp_path, imported):
    def lost(_step, _total):
        raise LeaseLost("taken over")

    with pytest.raises(LeaseLost):
        apart(meet, Body(lambda: tmp_path, lost), meeting=Meeting(place=str(place)), number=0)
    (place / "other").touch()
    assert not (tmp_path / "met").exists()
