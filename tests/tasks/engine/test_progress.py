import io
import socket
from types import SimpleNamespace

import pyarrow as pa
import pytest
from rich.console import Console

from understudy.artifacts.access import write_table
from understudy.privacy import labels
from understudy.tasks.engine.body import progress, progress_on
from understudy.tasks.engine.progress import Bars, Reporter, prefect_publisher, say_waiting, waiting


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_short_work_shows_nothing(clock):
    published = []
    reporter = Reporter("train", published.append, clock=clock)
    for step in range(100):
        clock.now = step * 0.01
        reporter.update(step, 100)
    reporter.close()
    assert published == []


def test_long_work_is_throttled_and_ends_at_its_last_step(clock):
    published = []
    reporter = Reporter("train", published.append, clock=clock, quiet_s=2.0, publish_every_s=5.0)
    for step in range(1, 1001):
        clock.now = step * 0.02
        reporter.update(step, 1000)
    reporter.close()
    assert len(published) == 5
    assert published == sorted(published)
    assert published[-1] == 100.0


@pytest.mark.parametrize(("step", "total"), [(1, 0), (5, 4), (-1, 4)])
def test_impossible_steps_are_refused(step, total, clock):
    with pytest.raises(ValueError, match=f"found {step} of {total}"):
        Reporter("train", lambda _: None, clock=clock).update(step, total)


def test_without_a_terminal_a_task_has_a_line_as_it_begins_and_one_a_minute(clock, capsys):
    published = []
    reporter = Reporter("train", published.append, bars=Bars(Console(file=io.StringIO())), clock=clock)
    reporter.begin()
    for step in range(1, 131):
        clock.now = float(step)
        reporter.update(step, 130)
    reporter.close()
    assert capsys.readouterr().err.splitlines() == ["train begins", "train: 60 of 130", "train: 120 of 130"]


def test_a_log_that_nobody_reads_any_more_ends_no_task(clock, monkeypatch):
    """The worker that read it was killed, and the run lives."""
    tried = []

    def write(text):
        tried.append(text)
        raise BrokenPipeError

    bars = Bars(Console(file=io.StringIO()))
    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=write))
    Reporter("train", lambda _: None, bars=bars, clock=clock).begin()
    say_waiting(lambda: "for process 7")(2.0)
    assert tried == ["train begins\n", "waiting for 2 s for process 7\n"]


def test_on_a_terminal_a_task_has_its_bar_and_no_line(clock, capsys):
    reporter = Reporter(
        "train", lambda _: None, bars=Bars(Console(file=io.StringIO(), force_terminal=True)), clock=clock
    )
    reporter.begin()
    for step in range(1, 131):
        clock.now = float(step)
        reporter.update(step, 130)
    reporter.close()
    assert capsys.readouterr().err == ""


def test_two_bars_share_one_display_on_a_terminal(clock):
    out = io.StringIO()
    bars = Bars(Console(file=out, force_terminal=True, width=80))
    one, two = (Reporter(name, lambda _: None, bars=bars, clock=clock, quiet_s=0.0) for name in ("train", "audit"))
    one.update(1, 4)
    two.update(2, 4)
    one.close()
    two.update(3, 4)
    two.close()
    assert "train" in out.getvalue()
    assert "3/4" in out.getvalue()
    assert bars._display is None


def test_no_bar_without_a_terminal(clock):
    out = io.StringIO()
    reporter = Reporter("train", lambda _: None, bars=Bars(Console(file=out)), clock=clock, quiet_s=0.0)
    reporter.update(1, 4)
    reporter.close()
    assert out.getvalue() == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_waiting_is_said_in_a_terminal_only(terminal):
    shown = io.StringIO()
    with waiting("propose-0: waiting", Console(file=shown, force_terminal=terminal)):
        pass
    assert ("propose-0: waiting" in shown.getvalue()) is terminal


def test_prefect_shows_one_artifact_that_moves(tracked):
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

    @flow(name="shows-progress")
    def shows_progress():
        publish = prefect_publisher("Train 1")
        publish(10.0)
        publish(60.0)

    shows_progress()
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["progress-train-1"])))
    assert [(a.type, a.data) for a in found] == [("progress", 60.0)]


def test_a_silent_server_costs_only_the_picture(monkeypatch, caplog):
    import httpx
    import prefect.artifacts

    def refuse(**_):
        raise httpx.ConnectError("no route")

    monkeypatch.setattr(prefect.artifacts, "create_progress_artifact", refuse)
    prefect_publisher("train")(10.0)
    assert "ConnectError" in caplog.text


@pytest.mark.filterwarnings("ignore:Artifact creation outside of a flow")
def test_a_server_that_is_away_holds_no_work_up(caplog, monkeypatch):
    """Prefect's client asked for a minute and more at every sign of progress: a training took twelve times as long."""
    import httpx
    from prefect.settings import PREFECT_API_URL, temporary_settings

    asked, slept, connect = [], [], httpx.HTTPTransport.handle_request
    monkeypatch.setattr(
        httpx.HTTPTransport, "handle_request", lambda self, request: asked.append(1) or connect(self, request)
    )
    monkeypatch.setattr("time.sleep", slept.append)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{nobody.getsockname()[1]}/api"}):
            publish = prefect_publisher("train")
            for percent in range(100):
                publish(float(percent))
    assert asked == [1], "it is asked once"
    assert sum(slept) < 2, "at once: three connections are tried, a moment apart"
    assert caplog.text.count("was not shown in Prefect: ConnectError") == 1


def test_a_server_that_was_away_is_told_of_progress_again(monkeypatch):
    import httpx
    import prefect.artifacts

    asked, now = [], [0.0]

    def refuse(**_):
        asked.append(now[0])
        now[0] += 60.0
        raise httpx.ConnectTimeout("no route")

    monkeypatch.setattr(prefect.artifacts, "create_progress_artifact", refuse)
    monkeypatch.setattr("understudy.tasks.engine.progress.time.monotonic", lambda: now[0])
    publish = prefect_publisher("train")
    while now[0] < 2000:
        publish(10.0)
        now[0] += 5.0
    assert len(asked) == 4
    assert 60 * len(asked) < now[0] / 8, "asking takes a tenth of the time"


def test_a_wait_is_said_after_two_seconds_and_then_every_minute(capsys):
    say = say_waiting(lambda: "for process 7")
    for second in range(130):
        say(float(second))
    assert capsys.readouterr().err.splitlines() == [f"waiting for {s} s for process 7" for s in (2, 62, 122)]


def test_work_on_a_private_artifact_tells_of_no_progress():
    table = pa.table({"text": ["a"]})
    for label, told in ((labels.private("reviews"), None), (labels.public(), progress)):
        assert progress_on(write_table(table, kind="table", label=label)) is told
    assert progress_on(None) is progress
