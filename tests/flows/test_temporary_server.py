"""Temporary servers: started in turn, ended with their process, and what a killed run left there as Running.

Two that made one database at a time failed over it.
"""

import fcntl
import json
import logging
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import forked
import httpx
import prefect
import psutil
import pytest
from prefect import flow
from prefect.exceptions import PrefectHTTPStatusError
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_HOME,
    PREFECT_SERVER_DATABASE_CONNECTION_URL,
    temporary_settings,
)
from prefect_servers import flow_run_names

from understudy.errors import BudgetRefused, UnderstudyError
from understudy.flows import tied_server
from understudy.flows.commands import run as commands
from understudy.flows.lost_server import ServerLost, keeping, told_if_lost
from understudy.flows.run_name import run_named
from understudy.flows.temporary_server import start_in_turn
from understudy.runs.request import RunRequest


@pytest.fixture
def starts(tmp_path, monkeypatch):
    """What a start of the server would find: whether another one may start beside it."""
    seen = []

    def start(*_):
        descriptor = os.open(tmp_path / "prefect", os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            seen.append("beside")
        except BlockingIOError:
            seen.append("in turn")
        finally:
            os.close(descriptor)

    monkeypatch.setattr(SubprocessASGIServer, "start", start)
    monkeypatch.setattr("understudy.flows.temporary_server.end_dead_runs", lambda: None)
    return seen


def test_one_starts_after_another_and_none_where_there_is_a_server(starts, tmp_path):
    with temporary_settings({PREFECT_HOME: tmp_path / "prefect"}, restore_defaults={PREFECT_API_URL}):
        start_in_turn()
        start_in_turn()
    with temporary_settings({PREFECT_HOME: tmp_path / "prefect", PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        start_in_turn()
    assert starts == ["in turn", "in turn"]


def test_the_command_line_starts_it_before_the_flow_whose_run_is_named_by_its_source(prefect_server, monkeypatch):
    seen = []

    @flow(name="conditional-generation")
    def noted(request: RunRequest) -> None:
        seen.append("flow")

    monkeypatch.setattr("understudy.flows.temporary_server.start_in_turn", lambda: seen.append("server"))
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "INFO")
    request = RunRequest(data="sample:reviews", source="ward {7}", out="out", epsilon=3.0)
    for _ in range(2):
        commands.ended(noted, request)
    assert seen == ["server", "flow"] * 2
    assert len([name for name in flow_run_names() if name.startswith("conditional-generation-ward {7}-")]) == 2


def test_a_server_that_cannot_start_is_told_in_one_line_and_not_started_for_minutes(tmp_path, monkeypatch, capfd):
    """And no file of the working directory is run in its process, whatever library it is called like."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "uvicorn.py").write_text("raise ImportError('somebody else\\'s')\n")
    monkeypatch.setattr(tied_server, "_STARTS", 1)  # a start takes seconds
    monkeypatch.setattr(SubprocessASGIServer, "_instances", {})
    (tmp_path / "prefect.db").write_text("no database, as on a disk that was full")
    database = {PREFECT_SERVER_DATABASE_CONNECTION_URL: f"sqlite+aiosqlite:///{tmp_path}/prefect.db"}
    told = rf"{tmp_path}, found: .*file is not a database; fix that"
    given = temporary_settings({PREFECT_HOME: tmp_path, **database}, restore_defaults={PREFECT_API_URL})
    with given, pytest.raises(UnderstudyError, match=told):
        start_in_turn()
    assert capfd.readouterr() == ("", "")


BEGIN = """
import os, signal
from pathlib import Path
from prefect import flow, get_client, task
from prefect.context import FlowRunContext
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, PREFECT_LOGGING_LEVEL, temporary_settings
from understudy.flows.temporary_server import given_up_with_it, start_in_turn
from understudy.tasks.engine.heartbeat import beating

def states():
    with get_client(sync_client=True) as client:
        return {str(run.id): run.state_name for run in client.read_flow_runs()}

def services():
    with get_client(sync_client=True) as client:
        return client._client.get("/admin/settings").json()["server"]["services"]

given = {PREFECT_HOME: Path(home), PREFECT_LOGGING_LEVEL: "CRITICAL"}
told = temporary_settings(given, restore_defaults={PREFECT_API_URL})
told.__enter__()
start_in_turn()
server = SubprocessASGIServer().server_process.pid
"""

HELD = (
    BEGIN
    + """
@task
def waits():
    pipe.send((server, str(FlowRunContext.get().flow_run.id), services()))
    pipe.recv()

@flow
def train():
    with beating():
        waits()

train()
"""
)

LOOK = BEGIN + "pipe.send(states())"

INTERRUPTED = (
    BEGIN
    + """
@flow
def train():
    with beating():
        os.killpg(0, signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with given_up_with_it():
        train()
except KeyboardInterrupt:
    pipe.send(list(states().values()))
"""
)


def told_by(code, home):
    process, pipe = forked.start(code, home=home)
    found = pipe.recv()
    process.wait()
    return found


def test_a_killed_process_takes_its_server_along_and_the_next_one_finds_its_run_crashed(database):
    process, pipe = forked.start(HELD, home=database)
    number, killed, services = pipe.recv()
    server = psutil.Process(number)
    assert told_by(LOOK, database)[killed] == "Running", "a run that computes is left alone"
    assert not services["triggers"]["enabled"], "automations of a server in this home wait for heartbeats"
    assert services["task_run_recorder"]["enabled"]
    process.kill()
    server.wait(timeout=60)
    assert told_by(LOOK, database) == {killed: "Crashed"}


def test_an_interrupt_of_the_process_group_leaves_the_server_to_be_told(database):
    """As Ctrl-C in a terminal: the run ends as Crashed in the database."""
    assert told_by(INTERRUPTED, database) == ["Crashed"]


LOST = """
import time
from pathlib import Path
from prefect import flow, task
from prefect.events.worker import EventsWorker
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, PREFECT_LOGGING_LEVEL, temporary_settings
from understudy.errors import BudgetRefused, UnderstudyError
from understudy.flows.run_name import run_named
from understudy.flows.temporary_server import given_up_with_it, start_in_turn

@task
def step(number):
    return number

@flow
def computes(refusal):
    step(-1)
    EventsWorker.instance().wait_until_empty()
    server = SubprocessASGIServer().server_process
    server.kill()
    server.wait()
    time.sleep(0.5)  # until the end of the server is seen
    for number in range(6):
        step(number)
    if refusal == "the next flow":
        flow(lambda: None, name="inner")()
    if refusal:
        raise BudgetRefused(refusal)
    return "made"

given = {PREFECT_HOME: Path(home), PREFECT_LOGGING_LEVEL: "WARNING"}
with temporary_settings(given, restore_defaults={PREFECT_API_URL}):
    start_in_turn()
    try:
        with given_up_with_it():
            made = run_named(computes, refusal)
        pipe.send((str, made, EventsWorker.instance()._queue.qsize()))
    except UnderstudyError as error:
        # What Prefect would try to send when the interpreter ends, each event for seven seconds.
        pipe.send((type(error), str(error), EventsWorker.instance()._queue.qsize()))
"""


@pytest.mark.parametrize("refusal", ["the next flow", "nothing is left", ""])
def test_a_server_that_is_killed_is_told_with_what_to_do_and_holds_nobody_up(database, refusal, capfd, monkeypatch):
    """As where memory is short. Each of the run's events was tried for seven seconds, with a page of errors."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    process, pipe = forked.start(LOST, home=database, refusal=refusal)
    kind, told, waiting = pipe.recv()
    process.wait()
    said = capfd.readouterr().err
    assert waiting == 0
    if refusal == "nothing is left":
        assert (kind, told) == (BudgetRefused, refusal), "what the run itself failed with goes first"
    elif refusal:
        assert kind is ServerLost
        assert all(words in told for words in ("temporary server", "Connection refused", "the same again"))
    else:
        assert (kind, told) == (str, "made"), "a run that has come to its end did not fail"
        assert all(words in said for words in ("temporary server", "Connection refused", "done all the same"))
    assert "EventsWorker" not in said


def asks(request: "RunRequest") -> "RunRequest":
    return request


def test_a_flow_whose_result_is_kept_reads_what_it_is_given_as_before():
    """Names of types are looked up in the flow's own module."""
    kept = flow(asks, name="asks").with_options()
    kept.fn = keeping(kept.fn, [])
    given = {"data": "d", "source": "s", "out": "o"}
    assert kept.validate_parameters({"request": given})["request"] == RunRequest(**given)


@pytest.fixture
def refusing():
    """The address of a server that tells its version and refuses all else with one status, and a place for that."""
    status = []

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self):
            is_version = self.path.endswith("/admin/version")
            body = json.dumps(prefect.__version__).encode() * is_version
            self.send_response(200 if is_version else status[0])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/api", status
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("status", "raised"), [(503, ServerLost), (500, ServerLost), (409, PrefectHTTPStatusError)])
def test_a_server_that_answers_nothing_but_that_it_is_out_of_service_is_told_as_lost(
    status, raised, refusing, monkeypatch
):
    url, answers = refusing
    monkeypatch.setenv("PREFECT_API_URL", url)
    answers.append(status)
    given = temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0})
    with given, pytest.raises(raised, match=str(status)) as found:
        run_named(flow(lambda request: request, name="computes"), None)
    if raised is ServerLost:
        assert all(words in str(found.value) for words in (url, "the same again"))


def test_a_server_that_is_gone_when_the_flow_begins_is_told_as_lost(monkeypatch):
    """It was there while the run was validated. Prefect's first call wraps what it finds in an error of its own."""
    url = "http://127.0.0.1:1/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    given = temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0})
    with given, pytest.raises(ServerLost, match="Connection refused") as found:
        run_named(flow(lambda request: request, name="computes"), None)
    assert all(words in str(found.value) for words in (url, "the same again"))


def test_another_fault_of_a_flow_is_no_lost_server():
    with pytest.raises(RuntimeError, match="of ours"), told_if_lost():
        raise RuntimeError("a fault of ours") from httpx.ConnectError("of another server")


def test_while_a_server_is_away_it_is_said_once_and_not_with_each_event(caplog):
    clients, service = logging.getLogger("prefect.events.clients"), logging.getLogger("prefect._internal.concurrency")
    with told_if_lost():
        for _ in range(3):
            clients.warning("Unable to connect to %r", "ws://127.0.0.1:1/api/events/in")
            service.error("Service %r failed to process item %r", "EventsWorker", "an event")
        service.error("Service %r failed to process item %r", "LogsWorker", "a line")
    said = [record.getMessage().split()[0] for record in caplog.records if record.name.startswith("prefect")]
    assert said == ["Unable", "Service"]
    clients.warning("Unable to connect to %r", "another place")
    assert "another place" in caplog.text, "only while a flow runs"
