"""A killed run continues where it was and ends in the same bytes."""

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

from prefect.settings import PREFECT_API_URL

from understudy.settings import settings
from understudy.tasks.engine import tracking

FLOW = Path(__file__).with_name("killed_flow.py")


def run(home: Path, steps_run: Path, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    """Run the flow in another process, with the session's Prefect server and another working directory."""
    environment = {
        **os.environ,
        "PREFECT_API_URL": str(PREFECT_API_URL.value()),
        "UNDERSTUDY_HOME": str(home),
        "STEPS_RUN": str(steps_run),
        "KILL_AT": kill_at,
    }
    return subprocess.run(
        [sys.executable, str(FLOW)], env=environment, cwd="/", capture_output=True, text=True, timeout=120, check=False
    )


def child_runs() -> list[tuple[str, str]]:
    log = tracking._open("client")
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
        done = run(tracked, steps_run, kill_at)
        assert done.returncode == -signal.SIGKILL, (kill_at, done.stderr)
    # The steps before the first kill were not run again.
    assert steps_run.read_text() == "0 1 2 3 4 5 "
    assert child_runs() == [("chain", "FINISHED"), ("killed", "RUNNING"), ("seed", "FINISHED")]

    last = run(tracked, steps_run)
    assert last.returncode == 0, last.stderr
    assert last.stdout == whole
    # The second kill was between the record and the commit: the result was there already.
    assert steps_run.read_text() == "0 1 2 3 4 5 "
    assert child_runs() == [("chain", "FINISHED"), ("killed", "FINISHED"), ("seed", "FINISHED")]
    assert list(settings().checkpoints_root.iterdir()) == []
