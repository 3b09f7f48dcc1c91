"""A ledger on a PostgreSQL server: every wait ends, and a short outage is waited out and charges nothing twice."""

import os
import select
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import forked
import pytest
from unit.privacy.ledger.ledger_requests import asked

from understudy.errors import UnderstudyError
from understudy.privacy.ledger import postgresql
from understudy.privacy.ledger.database import open_engine
from understudy.privacy.ledger.ledger import Ledger, SourceRecord

pytestmark = pytest.mark.timeout(60)  # what is tested here hung for ever

SECRET = b"the client zone's secret, for tests"
SOCKET = ".s.PGSQL.5432"


@pytest.fixture
def ledger(postgresql_url):
    return registered(Ledger(postgresql_url, secret=SECRET))


def registered(ledger: Ledger) -> Ledger:
    ledger.register(
        SourceRecord(name="reviews", unit="example", relation="replace_special", epsilon=100.0, delta=1e-3, n=900)
    )
    return ledger


def connected(url: str):
    """Another session on the server."""
    import psycopg

    return psycopg.connect(url, autocommit=False)


def end_other_sessions(url: str) -> None:
    """As a server does that is restarted."""
    others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
    with connected(url) as session:
        session.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")


def test_another_session_that_keeps_the_tables_is_said(ledger, postgresql_url, monkeypatch):
    monkeypatch.setattr(postgresql, "LOCK_SECONDS", 1)
    with connected(postgresql_url) as other:
        other.execute("LOCK TABLE ledger_charges")
        with pytest.raises(UnderstudyError, match=r"another session.* 1 s .*pg_stat_activity") as refused:
            ledger.reserve(**asked())
    assert "\n" not in str(refused.value)
    assert ledger.reserve(**asked()).new


STOPPED = """
import os, signal
from understudy.privacy.ledger import postgresql
from understudy.privacy.ledger.ledger import Ledger

stopped = []

def stop(step):
    if step == "reserve:written" and not stopped:
        stopped.append(step)
        pipe.send("inside")
        os.kill(os.getpid(), signal.SIGSTOP)

postgresql.IDLE_SECONDS = 1
charge = Ledger(url, secret=secret, on_step=stop).reserve(**asked)
pipe.send((charge.id, charge.new))
"""


def test_a_machine_that_stands_still_inside_a_transaction_keeps_nobody_out(ledger, postgresql_url):
    """And when it wakes up, it finds the charge that was made meanwhile."""
    process, pipe = forked.start(STOPPED, url=postgresql_url, secret=SECRET, asked=asked())
    try:
        assert pipe.recv() == "inside"
        made = ledger.reserve(**asked())
        assert made.new
        os.kill(process.pid, signal.SIGCONT)
        assert pipe.recv() == (made.id, False)
    finally:
        process.kill()


def test_a_server_that_does_not_answer_is_not_waited_for(postgresql_server, monkeypatch):
    monkeypatch.setattr(postgresql, "CONNECT_SECONDS", 2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        with pytest.raises(UnderstudyError, match=rf"127.0.0.1:{port}.*timeout"):
            Ledger(f"postgresql://understudy@127.0.0.1:{port}/none", secret=SECRET)


def test_a_connection_has_limits_and_those_of_its_url_come_first(postgresql_server):
    with open_engine(f"{postgresql_server}&keepalives_count=7").connect() as connection:
        given = connection.connection.dbapi_connection.info.get_parameters()
    assert (given["keepalives_count"], given["tcp_user_timeout"]) == ("7", "60000")


@pytest.mark.parametrize("step", ["begun", "written"])
def test_a_connection_lost_before_the_commit_is_made_anew(postgresql_url, step):
    lost = []

    def lose(now: str) -> None:
        if now == f"reserve:{step}" and not lost:
            lost.append(now)
            end_other_sessions(postgresql_url)

    ledger = registered(Ledger(postgresql_url, secret=SECRET, on_step=lose))
    made = ledger.reserve(**asked())
    assert lost
    assert made.new
    assert [charge.id for charge in ledger.charges()] == [made.id]
    ledger.verify()


@contextmanager
def server_away(url: str, *, seconds: float) -> Iterator[None]:
    """For so long nobody can connect to it; who is connected already stays so."""
    place = Path(url.split("host=")[1]) / SOCKET
    away = place.with_name("away")
    place.rename(away)
    back = threading.Timer(seconds, away.rename, [place])
    back.start()
    try:
        yield
    finally:
        back.join()


def test_a_server_that_is_away_for_a_moment_is_waited_for(ledger, postgresql_url):
    with server_away(postgresql_url, seconds=1):
        assert ledger.reserve(**asked()).new
    with server_away(postgresql_url, seconds=1):
        assert not Ledger(postgresql_url, secret=SECRET).reserve(**asked()).new
    assert len(ledger.charges()) == 1


def test_a_server_that_stays_away_is_said(ledger, postgresql_url, monkeypatch):
    monkeypatch.setattr(postgresql, "OUTAGE_SECONDS", 0.2)
    with (
        server_away(postgresql_url, seconds=2),
        pytest.raises(UnderstudyError, match=r"cannot be used: .*No such file") as refused,
    ):
        ledger.reserve(**asked())
    assert "\n" not in str(refused.value)
    assert ledger.charges() == ()


@contextmanager
def losing_an_answer(server: str) -> Iterator[tuple[str, list[bytes]]]:
    """The URL of a way to the server, and the questions at which it breaks, once.

    It breaks when the server has answered and its client has not heard it yet.
    """
    there = str(Path(server.split("host=")[1]) / SOCKET)
    questions: list[bytes] = []
    # The names of sockets are short, and pytest's folders are not.
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/{SOCKET}")
        listener.listen()
        threading.Thread(target=_carry, args=(listener, there, questions), daemon=True).start()
        yield server.replace(str(Path(there).parent), folder), questions
        listener.shutdown(socket.SHUT_RDWR)


def _carry(listener: socket.socket, there: str, questions: list[bytes]) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        with client, socket.socket(socket.AF_UNIX) as server, suppress(ConnectionError):
            server.connect(there)
            while _passed_on(client, server, questions):
                pass


def _passed_on(client: socket.socket, server: socket.socket, questions: list[bytes]) -> bool:
    """Pass on what comes next; False at an end."""
    for one in select.select([client, server], [], [])[0]:
        said = one.recv(65536)
        (server if one is client else client).sendall(said)
        if not said:
            return False
        if one is client and any(question in said for question in questions):
            questions.clear()
            server.recv(65536)
            return False
    return True


def test_a_commit_whose_answer_is_lost_is_said_and_not_repeated(postgresql_url):
    """Whether it stands is told by the next look alone."""
    with losing_an_answer(postgresql_url) as (url, questions):
        ledger = registered(Ledger(url, secret=SECRET))
        questions.append(b"COMMIT")
        with pytest.raises(UnderstudyError, match="may stand or not"):
            ledger.reserve(**asked())
        (made,) = ledger.charges()
        found = ledger.reserve(**asked())
        assert (found.id, found.new) == (made.id, False)
        ledger.verify()
