"""MLflow's place can be written, whatever it keeps its records in."""

from __future__ import annotations

import os
import sqlite3
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

from understudy.addresses import SQLITE, lock_of_file, public_address
from understudy.errors import InputError
from understudy.runs.checks.answers import PATIENCE_S, said, within
from understudy.runs.folders import probe_folder
from understudy.settings import settings

# What MLflow keeps its records in, besides SQLite and its own server.
_DATABASES = ("postgresql", "mysql", "mssql", "sqlite")


def tracking() -> str:
    """MLflow's place can be written: a SQLite file, another database, or a server. Each zone looks at its own."""
    now = settings()
    server = {now.server_mlflow_uri: "UNDERSTUDY_SERVER_MLFLOW_URI"} if now.server_mlflow_uri else {}
    client = {now.mlflow_uri: "UNDERSTUDY_MLFLOW_URI"}
    # As tasks/engine/tracking_log.py chooses: the server zone takes the client's place where it has none of its own.
    places = {"client": client, "server": server or client, "both": client | server}[now.zone]
    for uri, name in places.items():
        within(PATIENCE_S, partial(_tracking_at, uri, name), f"{name}={public_address(uri)}: MLflow")
    return ", ".join(map(public_address, places))


def _tracking_at(uri: str, name: str) -> None:
    kind = uri.partition(":")[0].partition("+")[0]
    if uri.startswith(("http://", "https://")):
        _tracking_server(uri, name)
    elif uri.startswith(SQLITE):
        _tracking_file(Path(uri.removeprefix(SQLITE)), name)
    elif "://" in uri and kind in _DATABASES:
        _tracking_database(uri, name)
    elif kind not in {"databricks", *(point.name for point in entry_points(group="mlflow.tracking_store"))}:
        raise InputError(
            f"{name}={public_address(uri)}: expected {SQLITE}FILE, http(s)://SERVER or the URL of a database "
            f"({', '.join(_DATABASES[:-1])}), found {kind if '://' in uri else 'a path'!r}; name one of these"
        )


def _tracking_server(uri: str, name: str) -> None:
    """The server answers with the credentials that MLflow's client would take from the environment.

    Without any there, a refusal is an answer too: the client has other ways to find some, and opens the run's record
    before anything is charged.
    """
    import httpx

    user, password, token = (os.environ.get(f"MLFLOW_TRACKING_{part}") for part in ("USERNAME", "PASSWORD", "TOKEN"))
    login = httpx.BasicAuth(user, password) if user and password else None
    headers = {"Authorization": f"Bearer {token}"} if token and login is None else {}
    try:
        answer = httpx.get(f"{uri.rstrip('/')}/health", headers=headers, auth=login, timeout=PATIENCE_S / 3)
        if answer.status_code in (401, 403) and login is None and not headers:
            return
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _no_tracking(name, public_address(uri), "an MLflow server that answers", said(error)) from None


def _tracking_file(path: Path, name: str) -> None:
    """The file takes a write, which is rolled back, and its lock a holder; where there is none yet, its folder does."""
    try:
        if not path.exists():
            probe_folder(path.parent)
            return
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=PATIENCE_S / 3)
        try:
            connection.execute("begin immediate")
            # A file that may only be read takes the beginning, and first refuses the write.
            (version,) = connection.execute("pragma user_version").fetchone()
            connection.execute(f"pragma user_version = {int(version)}")
            connection.rollback()
        finally:
            connection.close()
    except (OSError, sqlite3.Error) as error:
        raise _no_tracking(name, f"sqlite:///{path}", "a database that MLflow can write", said(error)) from None
    lock = lock_of_file(path)
    if not os.access(lock if lock.exists() else lock.parent, os.W_OK):
        raise _no_tracking(name, f"sqlite:///{path}", "a database that MLflow can write", f"{lock} is not writable")


def _tracking_database(uri: str, name: str) -> None:
    import sqlalchemy

    try:
        engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text("select 1"))
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
        raise _no_tracking(name, public_address(uri), "a database that answers", type(error).__name__) from None


def _no_tracking(name: str, place: str, expected: str, found: str) -> InputError:
    return InputError(f"{name}={place}: expected {expected}, found: {found}; fix or start it, or correct {name}")
