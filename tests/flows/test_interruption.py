"""SIGTERM and SIGHUP inside the block that unwinds: once, not where they are ignored, and not in a fork."""

import signal

import forked
import pytest

from understudy.flows.interruption import SIGNALS, signals_unwind

UNWINDS = """
import signal
from understudy.flows.interruption import signals_unwind

signal.signal(number, signal.SIG_DFL)  # the tests may run under nohup
told = []
try:
    with signals_unwind():
        try:
            signal.raise_signal(number)
            told.append("went on")
        finally:
            signal.raise_signal(number)
            told.append("unwound")
except KeyboardInterrupt as interrupt:
    told.append(interrupt.exit_code)
signal.raise_signal(number)
pipe.send(told)
"""

FORKS = """
import os, signal
from understudy.flows.interruption import signals_unwind

with signals_unwind():
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGTERM)
        os._exit(0)
    pipe.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def told_by(code: str, **names: object) -> object:
    process, pipe = forked.start(code, **names)
    found = pipe.recv()
    process.wait()
    return found


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_unwinds_and_further_ones_do_not_disturb_it(number):
    assert told_by(UNWINDS, number=number) == ["unwound", 128 + number]


AMID = """
import signal
from understudy.flows.interruption import signals_unwind

def prefects(number, frame):
    raise SystemExit("amid the unwinding")

signal.signal(signal.SIGHUP, signal.SIG_DFL)
try:
    with signals_unwind():
        try:
            signal.raise_signal(signal.SIGHUP)
        finally:
            signal.signal(signal.SIGTERM, prefects)
            signal.raise_signal(signal.SIGTERM)
except KeyboardInterrupt as interrupt:
    pipe.send(interrupt.exit_code)
"""


def test_what_a_further_signal_raises_elsewhere_changes_nothing():
    """A flow of Prefect has a handler of its own for SIGTERM; a session that ends sends SIGHUP beside it."""
    assert told_by(AMID) == 128 + signal.SIGHUP


SERVER_GONE = """
import signal
import prefect
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, PREFECT_HOME, PREFECT_LOGGING_LEVEL
from prefect.settings import temporary_settings
from pathlib import Path
from understudy.flows.interruption import signals_unwind
from understudy.flows.temporary_server import start_in_turn

@prefect.flow
def hit():
    server = SubprocessASGIServer().server_process
    server.kill()
    server.wait()
    signal.raise_signal(signal.SIGTERM)

signal.signal(signal.SIGTERM, signal.SIG_DFL)
given = {PREFECT_HOME: Path(home), PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_LOGGING_LEVEL: "CRITICAL"}
try:
    with temporary_settings(given, restore_defaults={PREFECT_API_URL}), signals_unwind():
        start_in_turn()
        hit()
except BaseException as error:
    pipe.send((type(error).__name__, getattr(error, "exit_code", None)))
"""


@pytest.mark.slow
def test_a_signal_that_ended_the_temporary_server_first_is_no_error(database):
    """A signal to the process group reaches both; Prefect then fails to tell its server of it.

    So it does below, where Prefect's client would first wait.
    """
    assert told_by(SERVER_GONE, home=database) == ("Interrupted", 128 + signal.SIGTERM)


GIVEN_UP = """
import signal, time
import prefect
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, PREFECT_LOGGING_LEVEL
from prefect.settings import temporary_settings
from pathlib import Path
from understudy.flows.interruption import signals_unwind
from understudy.flows.temporary_server import given_up_with_it, start_in_turn

@prefect.flow
def hit():
    global began
    server = SubprocessASGIServer().server_process
    server.kill()
    server.wait()
    began = time.monotonic()
    signal.raise_signal(number)

signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
given = {PREFECT_HOME: Path(home), PREFECT_LOGGING_LEVEL: "CRITICAL"}
try:
    with temporary_settings(given, restore_defaults={PREFECT_API_URL}), signals_unwind():
        start_in_turn()
        with given_up_with_it():
            hit()
except BaseException as error:
    pipe.send((type(error).__name__, getattr(error, "exit_code", None), time.monotonic() - began))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_has_ended_is_not_asked_again_for_a_minute(database, number):
    """Ctrl-C in a terminal reaches the server too; Prefect's client would wait 62 seconds for it."""
    *told, seconds = told_by(GIVEN_UP, home=database, number=number)
    assert told == ["Interrupted", 128 + number]
    assert seconds < 30


def test_a_fork_is_ended_as_by_default():
    assert told_by(FORKS) == -signal.SIGTERM


def test_after_the_block_the_signals_are_as_before_and_an_ignored_one_stays_ignored():
    """SIGHUP is ignored under `nohup`."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_unwind():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is before[signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
