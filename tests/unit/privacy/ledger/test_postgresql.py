"""A ledger on a PostgreSQL server: every wait ends."""

import socket

import forked
import pytest
from unit.privacy.ledger.ledger_requests import asked

from understudy.errors import UnderstudyError
from understudy.privacy.ledger import postgresql
from understudy.privacy.ledger.database import open_engine
from understudy.privacy.ledger.ledger import Ledger, SourceRecord

pytestmark = pytest.mark.timeout(60)  # what is tested here hung for ever

SECRET = b"the client zone's secret, for tests"


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
Ledger(url, secret=secret, on_step=stop).reserve(**asked)
"""


def test_a_machine_that_stands_still_inside_a_transaction_keeps_nobody_out(ledger, postgresql_url):
    process, pipe = forked.start(STOPPED, url=postgresql_url, secret=SECRET, asked=asked())
    try:
        assert pipe.recv() == "inside"
        assert ledger.reserve(**asked()).new
    finally:
        process.kill()
        process.join()


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
