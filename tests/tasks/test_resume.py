"""A killed run continues where it was and ends in the same bytes."""

import runpy
import signal
from pathlib import Path

from prefect.settings import PREFECT_API_URL

from understudy.settings import settings
from understudy.tasks.engine import tracking

FLOW = Path(__file__).with_name("killed_flow.py")
IMPORTED = ["prefect.flow_engine", "understudy.tasks.engine.runtime", "mlflow.store.tracking.sqlalchemy_store"]
# The flow in a process and a working directory of its own, with the session's Prefect server.
RUN = """
import contextlib, io, os, runpy
from prefect.settings import PREFECT_API_URL, temporary_settings
os.chdir("/")
os.environ |= {"STEPS_RUN": str(steps_run), "KILL_AT": kill_at}
with temporary_settings({PREFECT_API_URL: api}), contextlib.redirect_stdout(io.StringIO()) as said:
    runpy.run_path(str(flow), run_name="__main__")
pipe.send(said.getvalue())
"""


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


def test_a_run_killed_twice_ends_in_the_same_bytes(tracked, tmp_path, monkeypatch, start):
    whole = uninterrupted(monkeypatch, tmp_path)
    steps_run = tmp_path / "steps"

    def run(kill_at=""):
        return start(RUN, flow=FLOW, api=PREFECT_API_URL.value(), steps_run=steps_run, kill_at=kill_at)

    for kill_at in ("step 3", "tracked"):
        process, _ = run(kill_at)
        process.join(120)
        assert process.exitcode == -signal.SIGKILL, kill_at
    # The steps before the first kill were not run again.
    assert steps_run.read_text() == "0 1 2 3 4 5 "
    assert child_runs() == [("chain", "FINISHED"), ("killed", "RUNNING"), ("seed", "FINISHED")]

    _, pipe = run()
    assert pipe.poll(120)
    assert pipe.recv() == whole
    # The second kill was between the record and the commit: the result was there already.
    assert steps_run.read_text() == "0 1 2 3 4 5 "
    assert child_runs() == [("chain", "FINISHED"), ("killed", "FINISHED"), ("seed", "FINISHED")]
    assert list(settings().checkpoints_root.iterdir()) == []
