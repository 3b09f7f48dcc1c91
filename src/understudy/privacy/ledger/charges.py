"""What a transaction does with charges: reserve one, bind it, start its mechanism, close it."""

from __future__ import annotations

import json
import secrets
from typing import Any

import sqlalchemy as sa

from understudy.errors import UnderstudyError
from understudy.privacy.ledger import secret as keys
from understudy.privacy.ledger import selects as queries
from understudy.privacy.ledger import stored_secrets as vault
from understudy.privacy.ledger.budget import admit
from understudy.privacy.ledger.database import CHARGES
from understudy.privacy.ledger.records import Charge, ChargeRequest, KeyMaterial
from understudy.privacy.ledger.sealed import SealedTables


def reserve(
    connection: sa.Connection,
    tables: SealedTables,
    request: ChargeRequest,
    *,
    instead_of: str | None,
    environment: str | None,
) -> Charge:
    """The charge of a request: the one it has already, or a new one, tied to `environment`, if the budget allows it."""
    source = queries.get_source(connection, request.source)
    known = queries.latest(connection, request.request_key)
    if known is not None and known.id != instead_of:
        queries.check_same_request(known, request)
        return queries.to_charge(known, new=False)
    queries.check_fits_source(source, request)
    cost = queries.cost(source, request)
    if request.counted:
        admit(source, [*queries.costs(connection, source.name).values()], cost)
    charge = Charge(
        **request.model_dump(),
        id=secrets.token_hex(12),
        attempt=1 if known is None else known.attempt + 1,
        kind="counted" if request.counted else "internal",
        status="reserved",
        key_id=keys.key_id(tables.secret),
        created_at=tables.now(),
        released_at=None,
        new=True,
    )
    private = {"salt": secrets.token_bytes(32), "renyi_curve": json.dumps(cost.curve)}
    connection.execute(sa.insert(CHARGES).values(charge.model_dump(exclude={"new", "resumable"}) | private))
    tables.append(connection, "reserve", charge.id)
    if environment is not None:
        bind(connection, tables, charge.id, environment)
    return charge.model_copy(update={"environment": environment})


def bind(connection: sa.Connection, tables: SealedTables, charge_id: str, fingerprint: str) -> None:
    """Ties a charge to what its bytes depend on, or refuses where it is tied to something else."""
    bound = queries.get_charge(connection, charge_id).environment
    if bound is None:
        change = sa.update(CHARGES).where(CHARGES.c.id == charge_id).values(environment=fingerprint)
        connection.execute(change)
        tables.append(connection, "environment", charge_id, environment=fingerprint)
    elif bound != fingerprint:
        raise UnderstudyError(
            f"charge {charge_id} began in another environment than this one: finish it there (same device type, "
            "library versions, threads, micro-batch), or pay for a new run with --accept-new-charge"
        )


def start(connection: sa.Connection, tables: SealedTables, charge_id: str, *, part: int) -> KeyMaterial:
    """What the noise of a reserved charge is derived from; the start is noted."""
    from understudy.privacy.queries import queries_from_json

    row = _open_charge(connection, charge_id)
    secret = vault.secret_of(connection, row.key_id, current=tables.secret)
    started = queries.note_start(connection, charge_id, part=part, now=tables.now())
    tables.append(connection, "start", charge_id, **started)
    return KeyMaterial(secret, charge_id, bytes(row.salt), queries_from_json(row.queries))


def note_query(connection: sa.Connection, tables: SealedTables, charge_id: str, *, call: str, tag: str) -> str:
    """The tag of the query that a call of a charge was made with first: of this one, if none is noted yet."""
    _open_charge(connection, charge_id)
    known = queries.noted_query(connection, charge_id, call=call)
    if known is None:
        tables.append(connection, "query", charge_id, call=call, tag=tag)
    return known or tag


def _open_charge(connection: sa.Connection, charge_id: str) -> sa.Row[Any]:
    """The row of a charge whose noise may be drawn."""
    row = queries.get_charge(connection, charge_id)
    if row.status == "released" or row.salt is None:
        is_released = row.status == "released"
        why, use = ("it was released", "use what it released, or ") if is_released else ("its source was purged", "")
        raise UnderstudyError(
            f"charge {charge_id}: its noise cannot be drawn again, for {why}; {use}pay for a new run with "
            "--accept-new-charge"
        )
    return row


def close(connection: sa.Connection, tables: SealedTables, charge_id: str) -> Charge:
    """Erases the salt of a charge that is not closed yet."""
    if queries.get_charge(connection, charge_id).status == "reserved":
        change = sa.update(CHARGES).where(CHARGES.c.id == charge_id)
        values = {"status": "released", "released_at": tables.now(), "salt": None}
        connection.execute(change.values(values))
        vault.drop_idle_secrets(connection)
        tables.append(connection, "release", charge_id, released_at=values["released_at"])
    return queries.to_charge(queries.get_charge(connection, charge_id), new=False)
