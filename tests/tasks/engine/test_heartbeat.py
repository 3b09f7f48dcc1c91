"""A process whose run is cancelled on its Prefect server stops, though no worker tells it."""

import logging
import signal
import socket
import threading
import time
import traceback
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from prefect import flow, get_client, task
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.engine import handle_engine_signals
from prefect.exceptions import ObjectNotFound, TerminationSignal
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Running

from understudy.errors import BudgetRefused, UnderstudyError
from understudy.flows.interruption import signals_unwind
from understudy.flows.run_name import run_named
from understudy.settings import settings
from understudy.tasks.engine import heartbeat
from understudy.tasks.engine.heartbeat import beating

ran = []
STATES = {"cancelling": Cancelling, "cancelled": Cancelled}


@pytest.fixture(autouse=True)
def watched(tracked, monkeypatch):
    """Runs are told to the session's server, each second; Ctrl-C interrupts them, also where these tests ignore it."""
    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))
    monkeypatch.setenv("UNDERSTUDY_HEARTBEAT_S", "1")
    ran.clear()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@task
def computes(state: str, seconds: float) -> None:
    run = FlowRunContext.get().flow_run
    ran.append(run.id)
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, STATES[state](), force=True)
    time.sleep(seconds)
    ran.append("to its end")


@flow(persist_result=False)
def computing(state: str, seconds: float = 300) -> None:
    with beating():
        computes(state, seconds)


def stands() -> str:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(ran[0]).state_name


@pytest.mark.parametrize("state", STATES)
def test_a_cancelled_run_stops_and_says_how_to_go_on(state):
    with pytest.raises(UnderstudyError, match=r"cancelled.*same again"):
        run_named(computing, state)
    assert len(ran) == 1, "it did not compute on"
    assert stands() == "Cancelled"


@task
def deletes_its_run(seconds: float) -> None:
    run = FlowRunContext.get().flow_run
    with get_client(sync_client=True) as client:
        client.delete_flow_run(run.id)
    deadline = time.monotonic() + 100
    while seconds and any(thread.name == "flow-heart" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "expected a heart that stops once its run is deleted"
        time.sleep(0.1)
    time.sleep(seconds)
    ran.append("to its end")


@flow(persist_result=False)
def deleted(seconds: float) -> None:
    with beating():
        deletes_its_run(seconds)


@flow(persist_result=False)
def deleted_and_failed(seconds: float) -> None:
    with beating():
        deletes_its_run(seconds)
        raise ValueError("the rows")


@flow(persist_result=False)
def refused(seconds: float) -> None:
    with beating():
        raise BudgetRefused("nothing is left") if not seconds else ValueError("a fault of ours")


@flow(persist_result=False)
def deleted_and_interrupted(seconds: float) -> None:
    with beating():
        deletes_its_run(seconds)
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("computing", [deleted, deleted_and_failed])
def test_a_run_that_is_deleted_says_so_and_how_to_go_on(computing):
    with pytest.raises(UnderstudyError, match=r"flow run deleted-.*deleted on the Prefect server.*same again") as told:
        run_named(computing, 0)
    assert ran == ["to its end"]
    assert "prefect.exceptions" not in "".join(traceback.format_exception(told.value))


def test_a_run_that_is_deleted_is_told_once_while_it_computes(caplog):
    with pytest.raises(UnderstudyError):
        run_named(deleted, 2.5)  # further seconds, in which a second heartbeat would come
    (said,) = [record.getMessage() for record in caplog.records if record.name == heartbeat.__name__]
    assert "was deleted on the Prefect server: its process goes on" in said


def left_by(computing, seconds):
    """With which code Prefect's own process for a worker's run would end, and the run."""
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(computing), name="default")
        run = client.create_flow_run_from_deployment(deployment, parameters={"seconds": seconds})
    with pytest.raises(SystemExit) as left, handle_engine_signals(run.id):
        run_flow(computing, flow_run=run)
    return left.value.code, run


@pytest.mark.parametrize(("seconds", "told"), [(0, "nothing is left"), (1, "a fault of ours")])
def test_a_worker_tells_a_refusal_in_a_line_and_shows_where_any_other_error_came_from(seconds, told, caplog):
    left_by(refused, seconds)
    assert told in caplog.text
    assert ("Traceback" in caplog.text) == bool(seconds)


@pytest.mark.parametrize(("computing", "failed"), [(deleted, False), (deleted_and_failed, True)])
def test_a_run_of_a_worker_that_is_deleted_ends_without_the_page_of_errors_of_an_engine(computing, failed, caplog):
    code, run = left_by(computing, 0)
    assert (code, ran) == (0, ["to its end"])
    said = [
        record for record in caplog.records if record.levelno >= logging.WARNING and record.name.startswith("unders")
    ]
    assert f"flow run {run.name} was deleted on the Prefect server" in said[-1].getMessage()
    assert [str(record.exc_info[1]) for record in said if record.exc_info] == ["the rows"] * failed
    assert "ObjectNotFound" not in caplog.text


def test_ctrl_c_in_a_run_that_is_deleted_is_still_ctrl_c():
    with pytest.raises(KeyboardInterrupt), signals_unwind():
        run_named(deleted_and_interrupted, 0)


def test_what_else_the_server_does_not_have_is_not_taken_for_a_deleted_run():
    @flow(name="asks")
    def asks(nothing: None) -> None:
        with get_client(sync_client=True) as client:
            client.read_deployment_by_name("no/such")

    with pytest.raises(ObjectNotFound):
        run_named(asks, None)


def test_where_ctrl_c_is_ignored_it_stops_as_at_sigterm(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with pytest.raises(TerminationSignal):
            computing("cancelling")
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
    assert (len(ran), stands()) == (1, "Cancelled")


def test_a_run_of_a_worker_is_left_to_it_for_a_while(monkeypatch):
    """What a worker that lives does is kinder to the run."""
    stopped, states = [], iter([Cancelling()] * 3)
    monkeypatch.setattr(heartbeat, "_state_of", lambda _: next(states))
    monkeypatch.setattr(heartbeat, "_tell", lambda *_: None)

    class Clock:
        def __init__(self) -> None:
            self.now = 0.0

        def wait(self, _: float) -> bool:
            self.now += heartbeat.LEFT_TO_WORKER_S / 2
            return False

    clock = Clock()
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: clock.now)
    run = type("Run", (), {"id": "run", "deployment_id": "deployment"})
    heartbeat._beat(run, clock, lambda: stopped.append(clock.now), nullcontext())
    assert stopped == [heartbeat.LEFT_TO_WORKER_S]


@flow(persist_result=False)
def counted_as_dead(message: str) -> str:
    run = FlowRunContext.get().flow_run
    ran.append(run.id)
    with beating(), get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, Crashed(message=message), force=True)
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline and client.read_flow_run(run.id).state.is_crashed():
            time.sleep(0.1)
        return client.read_flow_run(run.id).state.name


def test_a_run_that_counts_as_dead_says_that_it_lives():
    """Its server was away, or its machine slept: it stood as Crashed until it ended, and was retried beside itself."""
    assert counted_as_dead(f"no heartbeat for 60 s{heartbeat.RETRY}") == "Running"
    assert stands() == "Completed"


def standing_as(*states: State) -> FlowRun:
    """What is found of a run that stands in the first of these states, and then in one after the other."""
    with get_client(sync_client=True) as client:
        run = client.create_flow_run(computing, parameters={"state": "cancelled"})

        def stand(state: State) -> FlowRun:
            client.set_flow_run_state(run.id, state, force=True)
            return client.read_flow_run(run.id)

        first = stand(states[0])
        rest = threading.Thread(target=lambda: [(time.sleep(1.5), stand(state)) for state in states[1:]])
        rest.start()
        found = heartbeat.when_ended(first)
        rest.join()
    return found


DEAD = f"no heartbeat for 60 s{heartbeat.RETRY}"


@pytest.mark.parametrize(
    "then", [[Completed(message="made")], [Running(), Crashed(message=DEAD), Running(), Completed(message="made")]]
)
def test_a_run_that_counts_as_dead_for_a_moment_is_followed_to_its_end(then, monkeypatch):
    """Its server was away when it ended, or for longer than after which a run counts as dead."""
    monkeypatch.setenv("UNDERSTUDY_HEARTBEAT_S", "20")  # a moment, also where the server answers late
    found = standing_as(Crashed(message=DEAD), *then)
    assert (found.state.name, found.state.message) == ("Completed", "made")


def test_a_run_that_is_dead_is_waited_for_no_longer_than_one_that_lives_would_take(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
    assert standing_as(Crashed(message=DEAD)).state.is_crashed()
    missed = heartbeat.MISSED * settings().heartbeat_s
    assert missed < sum(slept) <= missed + 1
    slept.clear()
    assert standing_as(Crashed(message="its process was killed")).state.is_crashed()
    assert slept == []


def test_a_run_that_somebody_else_ended_is_left_as_it_is(monkeypatch):
    asked = []
    monkeypatch.setattr(heartbeat, "_say_living", asked.append)
    ended = SimpleNamespace(is_set=lambda: False, wait=lambda _: next(states, None) is None)
    run = SimpleNamespace(id="run", deployment_id=None)
    others = [Crashed(message="its process was killed"), Running(), None]
    states = iter(others)
    monkeypatch.setattr(heartbeat, "_state_of", lambda _: next(states))
    monkeypatch.setattr(heartbeat, "_tell", lambda *_: None)
    heartbeat._beat(run, ended, list, nullcontext())
    assert asked == []


def test_a_run_that_has_ended_is_not_said_to_live(monkeypatch):
    """It is asked for a state at the moment at which it ends."""
    asked, ended = [], threading.Event()
    monkeypatch.setattr(heartbeat, "_say_living", asked.append)
    monkeypatch.setattr(heartbeat, "_tell", lambda *_: None)

    def state(_):
        ended.set()
        return Crashed(message=heartbeat.RETRY)

    monkeypatch.setattr(heartbeat, "_state_of", state)
    heartbeat._beat(SimpleNamespace(id="run", deployment_id=None), ended, list, threading.Lock())
    assert asked == []


def test_a_heart_beats_on_while_its_server_is_away(monkeypatch):
    """A client of Prefect's waited for it, for longer than after which a run counts as dead."""
    told, waited = [], []
    monkeypatch.setattr(heartbeat, "_tell", lambda *_: told.append(time.monotonic()))

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) == 3

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{nobody.getsockname()[1]}/api"}):
            run = SimpleNamespace(id="00000000-0000-0000-0000-000000000000", deployment_id=None)
            heartbeat._beat(run, SimpleNamespace(wait=wait, is_set=lambda: False), list, nullcontext())
    assert len(told) == 3
    assert waited == [settings().heartbeat_s] * 3, "between two of them, and how long it takes to ask"
    assert told[-1] - told[0] < heartbeat.silence_s()
