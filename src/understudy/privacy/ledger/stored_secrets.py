"""The ledger and its secret: founding, rotation, loss, and the file that keeps it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from understudy.errors import UnderstudyError
from understudy.privacy.ledger import chain
from understudy.privacy.ledger import secret as keys
from understudy.privacy.ledger.chain import Tampered
from understudy.privacy.ledger.database import CHARGES, META, SECRETS, SOURCES, create_tables, open_engine, transact
from understudy.privacy.ledger.head import Head

_SCHEMA: Final = b"2"


class SecretReplaced(UnderstudyError):
    """The secret at hand was the ledger's, until it was rotated."""


def stored_secret(url: str, path: Path, *, head: Head) -> bytes:
    """The secret in a file, made if the ledger has none yet; finishes a rotation that was killed half-way.

    Raises:
        InputError: when the file cannot be used.
        UnderstudyError: when the ledger has a secret and the file is gone.
    """
    if not keys.pending(path).exists() and (kept := keys.read_secret(path)) is not None:
        # Whether it is the ledger's is seen where the ledger is opened with it.
        return kept
    engine = open_engine(url)
    create_tables(engine)
    current = transact(engine, current_key_id)
    secret = keys.finish_rotation(path, current=current) or keys.read_secret(path)
    if secret is None and current is not None:
        raise UnderstudyError(lost_secret(current, f"no secret in {path}"))
    if secret is None:
        head.announce()
    return secret or keys.create_secret(path)


def is_founded(connection: sa.Connection) -> bool:
    """Whether the tables hold a ledger."""
    return connection.execute(sa.select(META.c.name).limit(1)).first() is not None


def found_or_read_root_key(connection: sa.Connection, secret: bytes, *, now: str) -> bytes:
    """The random key under which rows, requests and entries are hashed; makes it, and so founds a new ledger.

    Raises:
        UnderstudyError: when the ledger has another schema or belongs to another secret.
        Tampered: when it is not said which schema it has, or its root key is gone.
    """
    meta = dict(connection.execute(sa.select(META.c.name, META.c.value)).tuples().all())
    if not meta:
        root_key = secrets.token_bytes(32)
        wrapped = keys.wrap(secret, root_key, name="root")
        entries = [{"name": "schema", "value": _SCHEMA}, {"name": "root_key", "value": wrapped}]
        connection.execute(sa.insert(META), entries)
        connection.execute(sa.insert(SECRETS).values(key_id=keys.key_id(secret), created_at=now))
        chain.append(connection, root_key, "found", keys.key_id(secret), at=now)
        return root_key
    _check_meta(meta)
    require_current_secret(connection, secret)
    return keys.unwrap(secret, meta["root_key"], name="root")


def _check_meta(meta: Mapping[str, object]) -> None:
    """Refuses a ledger of another schema, and one that does not say which it has."""
    schema, expected = meta.get("schema"), _SCHEMA.decode()
    if not isinstance(schema, bytes) or not schema.isdigit():
        found = "none" if schema is None else "something else"
        raise Tampered(f"expected the number of its schema, {expected}, in ledger_meta, found {found}")
    if schema != _SCHEMA:
        raise UnderstudyError(
            f"expected a ledger of schema {expected}, found {schema.decode()[:20]}: use the version of Understudy that "
            "made it"
        )
    if "root_key" not in meta:
        raise Tampered("expected its root key in ledger_meta, found none")


def current_key_id(connection: sa.Connection) -> str | None:
    """The key id of the secret that the ledger belongs to, None when it is new."""
    return connection.execute(sa.select(SECRETS.c.key_id).where(SECRETS.c.retired_at.is_(None))).scalar()


def require_current_secret(connection: sa.Connection, secret: bytes) -> None:
    """Refuses to work with another secret than the ledger's.

    Raises:
        SecretReplaced: it was replaced since.
        UnderstudyError: it never was the ledger's; naming both by their key ids.
    """
    found, current = keys.key_id(secret), current_key_id(connection)
    if current is None or found == current:
        return
    retired = connection.execute(sa.select(SECRETS.c.retired_at).where(SECRETS.c.key_id == found)).scalar()
    if retired:
        raise SecretReplaced(lost_secret(current, f"the secret {found}, which was replaced at {retired}"))
    raise UnderstudyError(lost_secret(current, f"the secret {found}"))


def lost_secret(current: str, found: str) -> str:
    """What to tell when the ledger's secret is not at hand."""
    return (
        f"the ledger belongs to the secret with key id {current}, found {found}. Put that secret back: the "
        "file `secret` of UNDERSTUDY_HOME from a backup, or UNDERSTUDY_SECRET. If it is lost for good, "
        "unfinished charges cannot be resumed, nor rows recognised: keep this ledger for what it says was "
        "spent, and start another UNDERSTUDY_HOME whose budgets are lowered by that"
    )


def secret_of(connection: sa.Connection, key_id: str, *, current: bytes) -> bytes:
    """The secret that a charge was made under, the current one or an earlier one.

    Raises:
        UnderstudyError: when it is not kept any more.
    """
    if key_id == keys.key_id(current):
        return current
    wrapped = connection.execute(sa.select(SECRETS.c.wrapped).where(SECRETS.c.key_id == key_id)).scalar()
    if wrapped is None:
        raise UnderstudyError(f"the ledger no longer keeps the secret {key_id}: restore it from a backup")
    return keys.unwrap(current, wrapped, name=f"secret/{key_id}")


def rewrap(connection: sa.Connection, *, old: bytes, new: bytes, now: str) -> None:
    """Turns the ledger to a new secret: everything wrapped under the old one is wrapped under the new one."""

    def turned(wrapped: object, name: str) -> bytes:
        return keys.wrap(new, keys.unwrap(old, wrapped, name=name), name=name)

    root = connection.execute(sa.select(META.c.value).where(META.c.name == "root_key")).scalar_one()
    connection.execute(sa.update(META).where(META.c.name == "root_key").values(value=turned(root, "root")))
    for name, wrapped in connection.execute(sa.select(SOURCES.c.name, SOURCES.c.wrapped_key)).all():
        value = turned(wrapped, f"source/{name}")
        connection.execute(sa.update(SOURCES).where(SOURCES.c.name == name).values(wrapped_key=value))
    kept = sa.select(SECRETS.c.key_id, SECRETS.c.wrapped).where(SECRETS.c.wrapped.is_not(None))
    for key_id, wrapped in connection.execute(kept).all():
        value = turned(wrapped, f"secret/{key_id}")
        connection.execute(sa.update(SECRETS).where(SECRETS.c.key_id == key_id).values(wrapped=value))
    retired = keys.wrap(new, old, name=f"secret/{keys.key_id(old)}")
    change = sa.update(SECRETS).where(SECRETS.c.retired_at.is_(None))
    connection.execute(change.values(retired_at=now, wrapped=retired))
    connection.execute(sa.insert(SECRETS).values(key_id=keys.key_id(new), created_at=now))
    drop_idle_secrets(connection)


def drop_idle_secrets(connection: sa.Connection) -> None:
    """Erases every earlier secret under which no charge can be resumed any more."""
    in_use = sa.select(CHARGES.c.key_id).where(CHARGES.c.salt.is_not(None))
    idle = sa.and_(SECRETS.c.wrapped.is_not(None), SECRETS.c.key_id.not_in(in_use))
    connection.execute(sa.update(SECRETS).where(idle).values(wrapped=None))
