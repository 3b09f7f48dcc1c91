"""What a transaction does with sources: register one, note its rows, purge it."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence

import sqlalchemy as sa

from understudy.errors import InputError
from understudy.privacy.ledger import rows
from understudy.privacy.ledger import secret as keys
from understudy.privacy.ledger import selects as queries
from understudy.privacy.ledger import stored_secrets as vault
from understudy.privacy.ledger.database import CHARGES, ROWS, SOURCES
from understudy.privacy.ledger.records import SourceRecord
from understudy.privacy.ledger.sealed import SealedTables


def register(connection: sa.Connection, tables: SealedTables, record: SourceRecord) -> SourceRecord:
    """Registers a source, or gives the same one that is registered.

    Raises:
        InputError: it is registered with other properties, or is to be disjoint from one that is not there.
    """
    known = queries.find_source(connection, record.name)
    if known is not None:
        queries.check_same_source(known, record)
        return known
    for name in record.disjoint_from:
        if name == record.name or queries.find_source(connection, name) is None:
            raise InputError(
                f"--disjoint-from {name}: expected the name of another source that is registered; register that one "
                "first"
            )
    wrapped = keys.wrap(tables.secret, secrets.token_bytes(32), name=f"source/{record.name}")
    values = {"name": record.name, "record": record.model_dump_json(), "wrapped_key": wrapped}
    connection.execute(sa.insert(SOURCES).values(values))
    tables.append(connection, "source", record.name)
    return record


def note_rows(connection: sa.Connection, tables: SealedTables, name: str, hashes: rows.Hashes) -> None:
    """Notes that these keyed hashes belong to a source."""
    tables.check_rows(connection)
    if rows.note(connection, name, hashes):
        tables.append(connection, "rows", name, **rows.recount(connection, tables.root_key, name))


def purge(connection: sa.Connection, tables: SealedTables, name: str, *, forget_rows: bool) -> None:
    """Erases the key of a source and its unreleased salts, and with `forget_rows` the hashes of its rows."""
    wrapped = keys.wrap(tables.secret, secrets.token_bytes(32), name=f"source/{name}")
    queries.get_source(connection, name)
    if forget_rows:
        connection.execute(sa.delete(ROWS).where(ROWS.c.source == name))
        tables.append(connection, "rows", name, **rows.recount(connection, tables.root_key, name))
    connection.execute(sa.update(CHARGES).where(CHARGES.c.source == name).values(salt=None))
    connection.execute(sa.update(SOURCES).where(SOURCES.c.name == name).values(wrapped_key=wrapped))
    vault.drop_idle_secrets(connection)
    tables.append(connection, "purge", name)


def row_hashes(tables: SealedTables, row_digests: Sequence[bytes], client_digests: Sequence[bytes]) -> rows.Hashes:
    """Keyed, under a key for each kind: what is not compared has none."""
    found: rows.Hashes = []
    for kind, digests in (("row", row_digests), ("client", client_digests)):
        key = keys.derive(tables.root_key, f"{kind}s")
        found += [(kind, i, hmac.digest(key, digest, "sha256")) for i, digest in enumerate(digests) if digest]
    return found
