"""A ledger on a PostgreSQL server: how long it is waited for, and what a lost connection means.

Nothing is waited for without an end: not a server that does not answer, not another session that holds the tables, not
a machine that lost power inside a transaction. Each wait ends in an error that says so. TCP's own limits are the
client's, so the server's operator need set nothing.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from understudy.errors import InputError

# For another session to let go of the tables, as long as SQLite waits.
LOCK_SECONDS = 120
# After which the server ends a transaction whose client is silent, and so lets others go on. Shorter than they wait,
# and far longer than this package computes between two statements.
IDLE_SECONDS = 90
# For a server that was reached before and is away, as while it is restarted or another takes its place.
OUTAGE_SECONDS = 30
CONNECT_SECONDS = 10
_SILENCE_SECONDS: Final = 60

# Serialization failure, deadlock, and a unique value that another transaction has just written.
_LOST_AGAINST_ANOTHER: Final = frozenset({"40001", "40P01", "23505"})
# The server is going down, has crashed, or is starting.
_AWAY: Final = frozenset({"57P01", "57P02", "57P03"})
_CONNECTION: Final = "08"
_LOCK_NOT_AVAILABLE: Final = "55P03"

# Engines that have had a connection: their URL was right.
_REACHED: Final[WeakSet[sa.Engine]] = WeakSet()


def make_engine(url: sa.URL) -> sa.Engine:
    """An engine whose transactions are serial, and whose waits end; the URL's own parameters come first.

    Raises:
        InputError: when the driver is not installed.
    """
    limits = {
        "connect_timeout": CONNECT_SECONDS,
        "keepalives": 1,
        "keepalives_idle": _SILENCE_SECONDS // 2,
        "keepalives_interval": _SILENCE_SECONDS // 6,
        "keepalives_count": 3,
        "tcp_user_timeout": _SILENCE_SECONDS * 1000,
    }
    try:
        engine = sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            poolclass=NullPool,
            connect_args={name: value for name, value in limits.items() if name not in url.query},
            isolation_level="SERIALIZABLE",
            hide_parameters=True,
        )
    except ModuleNotFoundError:
        raise InputError("a PostgreSQL ledger needs its driver: pip install 'understudy[postgres]'") from None
    sa.event.listen(engine, "connect", lambda *_: _REACHED.add(engine))
    return engine


def begin(connection: sa.Connection, *, lock: sa.Table | None) -> None:
    """What a transaction begins with: its bounds, and the lock of a table before the snapshot.

    LOCK TABLE takes no snapshot, so what follows sees all that earlier holders of the lock committed.
    """
    connection.exec_driver_sql(
        f"SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = '{LOCK_SECONDS}s'; "
        f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"
    )
    if lock is not None:
        connection.exec_driver_sql(f"LOCK TABLE {lock.name} IN EXCLUSIVE MODE")


def has_lost_against_another(error: SQLAlchemyError) -> bool:
    """Whether another transaction came first: this one was rolled back and may be repeated."""
    return _state(error) in _LOST_AGAINST_ANOTHER


def has_lost_connection(error: SQLAlchemyError) -> bool:
    """Whether the server went away or is not there. A commit that had been sent then stands, or does not."""
    if not isinstance(error, DBAPIError):
        return False
    state = _state(error)
    # While a connection is made the driver knows no state.
    unknown = state is None and isinstance(error, OperationalError)
    return error.connection_invalidated or unknown or state in _AWAY or (state or "").startswith(_CONNECTION)


def was_reached(engine: sa.Engine) -> bool:
    """Whether this process has had a connection: a URL that was never right is not waited for."""
    return engine in _REACHED


def waited_in_vain(error: SQLAlchemyError) -> bool:
    """Whether another session held the lock for too long."""
    return _state(error) == _LOCK_NOT_AVAILABLE


def _state(error: SQLAlchemyError) -> str | None:
    return getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None
