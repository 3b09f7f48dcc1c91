"""A SQLite file of MLflow: made whole or not at all, and looked at whether it is whole.

MLflow makes its tables in the file itself, in a hundred steps, and a full disk or a kill leaves it after any of them:
what is there then, MLflow can neither use nor finish. So the tables are made in a folder beside the file's place.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from understudy.addresses import SQLITE, lock_of_file
from understudy.durable import sync
from understudy.errors import InputError, TrackingFailed
from understudy.locks import locked

# What SQLite keeps beside a database: of one that is gone, it would be read into the next one.
_BESIDE = ("-journal", "-wal", "-shm")


@contextmanager
def whole_database(database: Path) -> Iterator[Path]:
    """Alone with a database that is there: made if need be, and not left half by a kill or a full disk.

    Yields:
        The lock that writers of the database share.

    Raises:
        InputError: MLflow fails on the database in the block, because it is not whole.
        TrackingFailed: it cannot be made.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    database.parent.mkdir(parents=True, exist_ok=True)
    # Two processes that make the same database at the same time would break it.
    with locked(lock := lock_of_file(database)):
        if not _is_begun(database):
            _make(database)
        try:
            yield lock
            return
        except (MlflowException, SQLAlchemyError) as error:
            failed = error
        check_database(database)
        raise failed


def check_database(database: Path) -> bool:
    """Look whether a database is as the installed MLflow expects it.

    Returns:
        Whether there is one; one that is not there yet, or is empty, is no fault.

    Raises:
        InputError: saying what is missing, and how to go on.
    """
    if not _is_begun(database):
        return False
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            fault = _damage(connection) or _difference(connection, database)
    except sqlite3.DatabaseError as error:
        fault = f"{error}; {_anew(database)}"
    if fault:
        raise InputError(f"{SQLITE}{database}: expected a whole database of MLflow, found {fault}")
    return True


def _is_begun(database: Path) -> bool:
    """A kill may come before the first byte of a file."""
    return database.exists() and database.stat().st_size > 0


def _make(database: Path) -> None:
    """Make a database in a folder of its own, and rename it into its place."""
    import sqlalchemy
    from mlflow.store.db.utils import _initialize_tables
    from sqlalchemy.exc import SQLAlchemyError

    folder = database.with_name(f".{database.name}.new")
    draft = folder / database.name
    try:
        shutil.rmtree(folder, ignore_errors=True)  # what a kill left
        folder.mkdir(mode=0o700)
        engine = sqlalchemy.create_engine(f"{SQLITE}{draft}", poolclass=sqlalchemy.NullPool)
        # It is on the disk before it has its name; until then no step needs to be.
        sqlalchemy.event.listen(engine, "connect", lambda opened, _: opened.execute("pragma synchronous = off"))
        _initialize_tables(engine)
        sync(draft)
        for suffix in _BESIDE:
            database.with_name(database.name + suffix).unlink(missing_ok=True)
        draft.replace(database)
        sync(database.parent)
        return
    except (SQLAlchemyError, OSError) as error:
        found = getattr(error, "orig", None) or getattr(error, "strerror", None) or type(error).__name__
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    # Outside the handler: Prefect would log the text of the error behind it.
    raise TrackingFailed(
        f"{SQLITE}{database}: expected a place where MLflow's database can be made, found: {found}; nothing is left of "
        "it: make room, or name another place with UNDERSTUDY_MLFLOW_URI, and run the same command again"
    )


def _damage(connection: sqlite3.Connection) -> str:
    (said,) = connection.execute("pragma quick_check(1)").fetchone()
    return "" if said == "ok" else str(said)


def _difference(connection: sqlite3.Connection, database: Path) -> str:
    """What the installed MLflow would miss in the database, and how to go on; empty where it has everything."""
    from mlflow.store.db.base_sql_model import Base
    from mlflow.store.db.utils import _get_latest_schema_revision

    there = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
    missing = sorted(set(Base.metadata.tables) - there)
    version = _first(connection, "alembic_version", there)
    expected = _get_latest_schema_revision()
    faults = [f"version {version} of the tables, not {expected}"] if version != expected else []
    if missing:
        faults.append(f"{len(missing)} of {len(Base.metadata.tables)} tables missing, such as {missing[0]}")
    if not faults:
        return ""
    found = " and ".join(faults)
    if _first(connection, "runs", there) is None:
        return f"{found}, and no run in it; {_anew(database)}"
    return (
        f"{found}; copy the file and call `mlflow db upgrade {SQLITE}{database}`. If that fails, {_anew(database)}; "
        "the record of past runs is in the old one"
    )


def _first(connection: sqlite3.Connection, table: str, there: set[str]) -> str | None:
    """The first value of a table; None of an empty one and of one that is not there."""
    found = connection.execute(f"select * from {table} limit 1").fetchone() if table in there else None
    return None if found is None else str(found[0])


def _anew(database: Path) -> str:
    return f"move it away, and the next command makes a new one: mv {database} {database}.broken"
