"""The databases of a session are alike, MLflow's and the ledger's: what was found out about the first holds for all."""

import functools
from collections.abc import Callable
from typing import Any

import pytest


def quick_tracking(patch: pytest.MonkeyPatch) -> None:
    """Compile each statement once in a session, not once in each test's database; do not wait for the disk.

    A commit is safe from the death of a process, which tests bring about, and not from that of the machine.
    """
    from mlflow.store.db import utils
    from sqlalchemy import event

    from understudy.privacy.ledger import database

    connect = _alike(utils.create_sqlalchemy_engine)

    def engine_of(uri: str) -> Any:
        engine = connect(uri)
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", lambda connection, _: connection.execute("pragma synchronous = off"))
        return engine

    patch.setattr(utils, "create_sqlalchemy_engine", engine_of)
    patch.setattr(database, "_sqlite_engine", functools.lru_cache(maxsize=8)(_alike(database._sqlite_engine)))
    # Which version the package's migrations end in; it reads all of them to say so.
    patch.setattr(utils, "_get_latest_schema_revision", functools.cache(utils._get_latest_schema_revision))


def _alike(connect: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """SQLAlchemy keeps compiled statements by engine and dialect, so SQLite's engines share both."""
    first: list[Any] = []

    def engine_of(url: Any) -> Any:
        engine = connect(url)
        if engine.dialect.name == "sqlite":
            first.append(engine)
            engine.dialect = engine.pool._dialect = first[0].dialect
            engine._compiled_cache = first[0]._compiled_cache
            del first[1:]
        return engine

    return engine_of
