"""A killed run continues where it was and ends in the same bytes."""

import os
import runpy
import signal
import tempfile
from pathlib import Path

import fork_server
from prefect.settings import PREFECT_API_URL

from understudy.settings import settings
from understudy.tasks.engine import tracking_log

FLOW = Path(__file__).with_name("killed_flow.py")


def run(home: Path, steps_run: Path, kill_at: str = "") -> tuple[int, str, str]:
    """Run the flow in another process, with the session's Prefect server and another working directory.

    Returns:
        Exit status, standard output and standard error.
    """
    environment = {
        **os.environ,
        "PREFECT_API_URL": str(PREFECT_API_URL.value()),
        "UNDERSTUDY_HOME": str(home),
        "STEPS_RUN": str(steps_run),
        "KILL_AT": kill_at,
    }
    with tempfile.TemporaryFile() as nothing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        streams = [file.fileno() for file in (nothing, out, errors)]
        status = fork_server.start([str(FLOW)], environment=environment, folder="/", streams=streams).wait()
        return status, *(os.pread(number, 1_000_000, 0).decode() for number in streams[1:])


def child_runs() -> list[tuple[str, str]]:
    log = tracking_log.open_log("client")
    runs = log.client.search_runs([log.experiment])
    return sorted((run.info.run_name, run.info.status) for run in runs)


def uninterrupted(monkeypatch, tmp_path) -> str:
    """The id that the chain ends with in another home, without Prefect and without a kill."""
    with monkeypatch.context() as patch:
        patch.setenv("STEPS_RUN", str(tmp_path / "other-steps"))
        patch.setenv("UNDERSTUDY_HOME", str(tmp_path / "other-home"))
        patch.setenv("UNDERSTUDY_EXCHANGE", str(tmp_path / "other-home" / "exchange"))
        flow = runpy.run_path(str(FLOW))
        return flow["chain"].fn(flow["seed"].fn("start"), flow["Config"]()).id


def test_a_run_killed_twice_ends_in_the_same_bytes(tracked, tmp_path, monkeypatch):
    whole = uninterrupted(monkeypatch, tmp_path)
    steps_run = tmp_path / "steps"
    for kill_at in ("step 3", "tracked"):
        status, _, errors = run(tracked, steps_run, kill_at)
        assert status == -signal.SIGKILL, (kill_at, errors)
    # The steps before the first kill were not run again.
    assert steps_run.read_text() == "0 1 2 3 4 5 "
    assert child_runs() == [("chain", "FINISHED"), ("killed run-key", "RUNNING"), ("seed", "FINISHED")]

    status, said, errors = run(tracked, steps_run)
    assert status == 0, errors
    assert said == whole
    # The second kill was between the record and the commit: the result was there already.
    assert steps_run.read_text() == "0 1 2 3 4 5 "
    assert child_runs() == [("chain", "FINISHED"), ("killed run-key", "FINISHED"), ("seed", "FINISHED")]
    assert list(settings().checkpoints_root.iterdir()) == []
