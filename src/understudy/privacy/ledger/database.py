"""The ledger's tables and the one way to touch them: short transactions, each serial to all others.

SQLite: rollback release log, `synchronous=EXTRA` (as FULL, and the release log's removal is flushed too, so that a
committed charge survives a power cut), `secure_delete`, `BEGIN IMMEDIATE`. PostgreSQL: SERIALIZABLE with
retry, behind a table lock taken before the snapshot, so that retries are rare (`postgresql`). There, erased values
stay in dead row versions and in the log until the server recycles them; they are of no use without the secret.
"""

from __future__ import annotations

import functools
import os
import random
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from understudy.addresses import public_address
from understudy.durable import is_of_full_database
from understudy.errors import InputError, UnderstudyError
from understudy.owner_only import remedy
from understudy.privacy.ledger import postgresql

T = TypeVar("T")

METADATA: Final = sa.MetaData()

META: Final = sa.Table(
    "ledger_meta",
    METADATA,
    sa.Column("name", sa.String(40), primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
)

# Every secret that ever was; exactly one is not retired. A retired one is kept, wrapped under the current
# one, as long as a charge made under it may still be resumed.
SECRETS: Final = sa.Table(
    "ledger_secrets",
    METADATA,
    sa.Column("key_id", sa.String(40), primary_key=True),
    sa.Column("wrapped", sa.LargeBinary),
    sa.Column("created_at", sa.String(40), nullable=False),
    sa.Column("retired_at", sa.String(40)),
)

SOURCES: Final = sa.Table(
    "ledger_sources",
    METADATA,
    sa.Column("name", sa.String(100), primary_key=True),
    sa.Column("record", sa.Text, nullable=False),
    sa.Column("wrapped_key", sa.LargeBinary, nullable=False),
)

CHARGES: Final = sa.Table(
    "ledger_charges",
    METADATA,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("source", sa.ForeignKey("ledger_sources.name"), nullable=False, index=True),
    sa.Column("request_key", sa.String(100), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("queries", sa.Text, nullable=False),
    sa.Column("epsilon", sa.Double, nullable=False),
    sa.Column("delta", sa.Double, nullable=False),
    sa.Column("unit", sa.String(20), nullable=False),
    sa.Column("relation", sa.String(40), nullable=False),
    sa.Column("accountant", sa.String(40), nullable=False),
    sa.Column("epsilon_rdp", sa.Double, nullable=False),
    sa.Column("status", sa.String(20), nullable=False),
    sa.Column("simulation", sa.Boolean, nullable=False),
    sa.Column("key_id", sa.ForeignKey("ledger_secrets.key_id"), nullable=False),
    sa.Column("code_digest", sa.String(100), nullable=False),
    sa.Column("created_at", sa.String(40), nullable=False),
    sa.Column("released_at", sa.String(40)),
    sa.Column("renyi_curve", sa.Text, nullable=False),
    sa.Column("salt", sa.LargeBinary),
    sa.Column("environment", sa.Text),
    sa.UniqueConstraint("request_key", "attempt"),
)

ROWS: Final = sa.Table(
    "ledger_rows",
    METADATA,
    sa.Column("keyed_hash", sa.LargeBinary(32), primary_key=True),
    sa.Column("source", sa.ForeignKey("ledger_sources.name"), nullable=False, index=True),
    sqlite_with_rowid=False,
)

# Every time the key material of a charge was handed out for a part of its mechanism, such as a round: the part's first
# start, then its restarts.
STARTS: Final = sa.Table(
    "ledger_starts",
    METADATA,
    sa.Column("charge", sa.ForeignKey("ledger_charges.id"), primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("started_at", sa.String(40), nullable=False),
)

# What happened to the ledger, in order, each entry with an HMAC over all before it (`ledger_chain`).
CHAIN: Final = sa.Table(
    "ledger_chain",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("subject", sa.String(100), nullable=False),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("mac", sa.LargeBinary(32), nullable=False),
)

# Types in /proc/mounts, with or without the prefix "fuse.".
_NETWORK_FILE_SYSTEMS: Final = {
    *("9p", "afs", "beegfs", "ceph", "ceph-fuse", "cifs", "davfs", "davfs2", "gcsfuse", "glusterfs", "gpfs"),
    *("juicefs", "lustre", "moosefs", "mfs", "mount-s3", "ncpfs", "nfs", "nfs4", "orangefs", "pvfs2", "rclone"),
    *("s3fs", "seaweedfs", "smb", "smb2", "smb3", "smbfs", "smbnetfs", "sshfs", "vboxsf", "virtiofs"),
    *("vmhgfs", "vmhgfs-fuse"),
}
_SQLITE_WAIT_SECONDS: Final = 120
_RETRY_SECONDS: Final = 120
# Table and column of all that there is, in one question: an inspector asks several for each table, and a run opens its
# ledger a dozen times.
_COLUMNS: Final = {
    "sqlite": "select m.name, c.name from sqlite_master m, pragma_table_xinfo(m.name) c where m.type = 'table'",
    "postgresql": "select table_name, column_name from information_schema.columns "
    "where table_schema = current_schema()",
}
# Flushes what a commit wrote, and that the release log is gone.
_SYNCHRONOUS: Final = "EXTRA"


def parse_url(url: str) -> sa.URL:
    """The URL of a ledger in its parts.

    Raises:
        InputError: when it is none; without it, for SQLAlchemy would repeat what stands after a wrong password.
    """
    try:
        return sa.make_url(url)
    except (SQLAlchemyError, ValueError):
        raise InputError(
            "UNDERSTUDY_LEDGER_URL: expected sqlite:////ABSOLUTE/FILE or postgresql://..., found no URL of SQLAlchemy; "
            "correct it, with %40 for an @ in a password and %3A for a colon"
        ) from None


def shown(url: sa.URL) -> str:
    """The URL of a ledger as it may be shown."""
    return public_address(url.render_as_string(hide_password=True))


def open_engine(url: str) -> sa.Engine:
    """An engine whose transactions are serial and durable.

    Raises:
        InputError: when the URL is not one of a SQLite file on a local disk or a PostgreSQL database.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        return _postgresql_engine(parsed)
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database == ":memory:":
        raise InputError(
            "UNDERSTUDY_LEDGER_URL: expected sqlite:////ABSOLUTE/FILE or postgresql://..., found "
            f"{shown(parsed)}; name one of these"
        )
    prepare_sqlite_file(Path(parsed.database))
    return _sqlite_engine(parsed)


# Engines keep no connection, only the statements that they have compiled.
@functools.lru_cache(maxsize=8)
def _sqlite_engine(url: sa.URL) -> sa.Engine:
    engine = sa.create_engine(
        url,
        poolclass=NullPool,
        connect_args={"timeout": _SQLITE_WAIT_SECONDS, "isolation_level": None},
        hide_parameters=True,
    )
    sa.event.listen(engine, "connect", _set_pragmas)
    sa.event.listen(engine, "begin", _begin_immediate)
    return engine


_postgresql_engine = functools.lru_cache(maxsize=8)(postgresql.make_engine)


def prepare_sqlite_file(path: Path) -> None:
    """Makes the file, closed to other users, if it is not there.

    Raises:
        InputError: when it lies on a network file system, whose locks cannot be trusted, or is read-only.
    """
    found = file_system_type(Path(os.path.realpath(path)).parent, Path("/proc/mounts"))
    if found.removeprefix("fuse.") in _NETWORK_FILE_SYSTEMS:
        raise InputError(
            f"the ledger {path} lies on a network file system ({found}), where two machines could overspend: "
            "put UNDERSTUDY_HOME on a local disk, or use a PostgreSQL ledger (UNDERSTUDY_LEDGER_URL)"
        )
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise InputError(f"the ledger {path} cannot be written: {error.strerror}; {remedy(path)}") from None


def file_system_type(directory: Path, mounts: Path) -> str:
    """The type of the file system that holds a directory, by a table such as /proc/mounts; "" if unknown."""
    if not mounts.exists():
        return ""
    real = os.path.realpath(directory)
    best, found = "", ""
    for line in mounts.read_bytes().splitlines():
        _, escaped, kind, *_ = line.split()
        # The table writes a space in a path as \040, and so on.
        place = os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), escaped))
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        # Of two mounts on one place, the later one is on top.
        if inside and len(place) >= len(best):
            best, found = place, kind.decode()
    return found


def transact(engine: sa.Engine, work: Callable[[sa.Connection], T], *, lock: bool = True) -> T:
    """Runs `work` in one serialisable transaction and commits it; repeats what was rolled back.

    A transaction that lost against another is repeated, and one whose connection was lost before its commit was sent.
    After that it may stand already, and `work` is not repeated: a second charge could be made.

    Args:
        engine: from `open_engine`.
        work: may run more than once, so it changes nothing but the database.
        lock: whether to wait for others first; False only while the tables are being made.

    Raises:
        UnderstudyError: when the database cannot be used.
    """
    return _repeated(engine, lambda: _committed(engine, work, lock=lock))


def _committed(engine: sa.Engine, work: Callable[[sa.Connection], T], *, lock: bool) -> T:
    sent = False
    try:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                postgresql.begin(connection, lock=CHARGES if lock else None)
            result = work(connection)
            sent = True
    except SQLAlchemyError as error:
        if sent and engine.dialect.name == "postgresql" and postgresql.has_lost_connection(error):
            raise UnderstudyError(
                f"the ledger {shown(engine.url)} was lost while a change was committed, which may stand or not: "
                f"{_words(error)}. Run the same again, which finds what stands: the same request is never charged twice"
            ) from None
        raise
    return result


def _repeated(engine: sa.Engine, attempt: Callable[[], T]) -> T:
    """The result of an attempt, made again while there is hope that it succeeds."""
    failed_first: float | None = None
    while True:
        try:
            return attempt()
        except SQLAlchemyError as error:
            failed_first = failed_first or time.monotonic()
            patience, pause = _patience(engine, error)
            if time.monotonic() - failed_first >= patience:
                raise _unusable(engine, error) from None
        # Jitter only: nothing private or random depends on it.
        time.sleep(random.uniform(0.1, 1) * pause)


def _patience(engine: sa.Engine, error: SQLAlchemyError) -> tuple[float, float]:
    """For how many seconds to try again after an error, and the longest pause in between."""
    if engine.dialect.name != "postgresql":
        return 0, 0
    if postgresql.has_lost_against_another(error):
        return _RETRY_SECONDS, 0.05
    if postgresql.has_lost_connection(error) and postgresql.was_reached(engine):
        return postgresql.OUTAGE_SECONDS, 0.5
    return 0, 0


def create_tables(engine: sa.Engine) -> None:
    """Makes the tables that are missing; of several processes at once, one makes them.

    Raises:
        UnderstudyError: when a table has other columns than this version writes, or the database cannot be used.
    """
    found = _columns(engine)
    for name, table in METADATA.tables.items():
        wanted = set(table.columns.keys())
        if name in found and found[name] != wanted:
            differing = ", ".join(sorted(found[name] ^ wanted))
            raise UnderstudyError(
                f"the ledger {shown(engine.url)} was made by another version of "
                f"Understudy: its table {name} differs in {differing}. What it holds is spent for good, so go on with "
                "the version that made it; start another UNDERSTUDY_HOME only for rows that it does not know"
            )
    if not set(METADATA.tables) <= set(found):
        transact(engine, METADATA.create_all, lock=False)


def _columns(engine: sa.Engine) -> dict[str, set[str]]:
    """Table -> its columns."""

    def ask() -> Sequence[sa.Row[Any]]:
        with engine.connect() as connection:
            return connection.exec_driver_sql(_COLUMNS[engine.dialect.name]).all()

    columns: dict[str, set[str]] = {}
    for table, name in _repeated(engine, ask):
        columns.setdefault(table, set()).add(name)
    return columns


def _set_pragmas(connection: Any, _record: object) -> None:
    for pragma in ("journal_mode=DELETE", f"synchronous={_SYNCHRONOUS}", "secure_delete=ON", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _unusable(engine: sa.Engine, error: SQLAlchemyError) -> UnderstudyError:
    words = _words(error)
    if engine.dialect.name == "postgresql" and postgresql.waited_in_vain(error):
        words += f": another session has held its tables for {postgresql.LOCK_SECONDS} s (pg_stat_activity shows which)"
    is_full = isinstance(error, DBAPIError) and is_of_full_database(error.orig)
    remedy = "The disk that it lies on takes no more: make room there" if is_full else "Fix it"
    return UnderstudyError(
        f"the ledger {shown(engine.url)} cannot be used: {words}. {remedy} and run again: the same request is never "
        "charged twice"
    )


def _words(error: SQLAlchemyError) -> str:
    """The driver's own, on one line; SQLAlchemy's would quote the statement and its parameters."""
    return " ".join((str(error.orig) if isinstance(error, DBAPIError) else type(error).__name__).split())
