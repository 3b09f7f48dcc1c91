"""The MLflow databases of a session are copies of one: what was found out about the first holds for all."""

import functools
from typing import Any

import pytest


def quick_tracking(patch: pytest.MonkeyPatch) -> None:
    """Compile each statement once in a session, not once in each test's database; do not wait for the disk.

    SQLAlchemy keeps compiled statements by engine and dialect, so engines share both. A commit is safe from the death
    of a process, which tests bring about, and not from that of the machine.
    """
    from mlflow.store.db import utils
    from sqlalchemy import event

    connect, first = utils.create_sqlalchemy_engine, []

    def engine_of(uri: str) -> Any:
        engine = connect(uri)
        if engine.dialect.name == "sqlite":
            first.append(engine)
            engine.dialect = engine.pool._dialect = first[0].dialect
            engine._compiled_cache = first[0]._compiled_cache
            event.listen(engine, "connect", lambda connection, _: connection.execute("pragma synchronous = normal"))
            del first[1:]
        return engine

    patch.setattr(utils, "create_sqlalchemy_engine", engine_of)
    # Which version the package's migrations end in; it reads all of them to say so.
    patch.setattr(utils, "_get_latest_schema_revision", functools.cache(utils._get_latest_schema_revision))
