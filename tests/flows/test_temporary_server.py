"""Runs that begin at a time start their temporary servers in turn: two that made one database failed over it."""

import fcntl
import os

import pytest
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from understudy.flows import commands
from understudy.flows.temporary_server import start_in_turn


@pytest.fixture
def starts(tmp_path, monkeypatch):
    """What a start of the server would find: whether another one may start beside it."""
    seen = []

    def start(_):
        descriptor = os.open(tmp_path / "prefect", os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            seen.append("beside")
        except BlockingIOError:
            seen.append("in turn")
        finally:
            os.close(descriptor)

    monkeypatch.setattr(SubprocessASGIServer, "start", start)
    return seen


def test_one_starts_after_another_and_none_where_there_is_a_server(starts, tmp_path):
    with temporary_settings({PREFECT_HOME: tmp_path / "prefect"}, restore_defaults={PREFECT_API_URL}):
        start_in_turn()
        start_in_turn()
    with temporary_settings({PREFECT_HOME: tmp_path / "prefect", PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        start_in_turn()
    assert starts == ["in turn", "in turn"]


def test_the_command_line_starts_it_before_the_flow_does(monkeypatch):
    seen = []
    monkeypatch.setattr("understudy.flows.temporary_server.start_in_turn", lambda: seen.append("server"))
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "INFO")
    commands.ended(lambda _: seen.append("flow"), None)
    assert seen == ["server", "flow"]
