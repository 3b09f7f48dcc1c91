"""What the ledger reads, checks and rewraps inside one of its transactions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError

from understudy.errors import InputError, UnderstudyError
from understudy.privacy.ledger.budget import Cost
from understudy.privacy.ledger.database import CHAIN, CHARGES, SOURCES, STARTS
from understudy.privacy.ledger.records import Charge, ChargeRequest, SourceRecord

# Of registered sources, in a message.
_MOST_NAMES = 10

# Sources


def find_source(connection: sa.Connection, name: str) -> SourceRecord | None:
    """The source with this name, if there is one."""
    record = connection.execute(sa.select(SOURCES.c.record).where(SOURCES.c.name == name)).scalar()
    return None if record is None else SourceRecord.model_validate_json(record)


def get_source(connection: sa.Connection, name: str) -> SourceRecord:
    """The source with this name.

    Raises:
        InputError: when there is none.
    """
    found = find_source(connection, name)
    if found is None:
        names = connection.execute(sa.select(SOURCES.c.name).order_by(SOURCES.c.name)).scalars().all()
        known = ", ".join([*names[:_MOST_NAMES], *(["others"] if len(names) > _MOST_NAMES else [])]) or "none yet"
        raise InputError(
            f"expected a registered source, found source={name!r}; this ledger has {known}: correct the "
            f"name, or register it with `understudy ledger register {name} --budget EPSILON,DELTA --rows N`, or run "
            "with --budget"
        )
    return found


def check_same_source(known: SourceRecord, new: SourceRecord) -> None:
    """Refuses to register a name with other properties.

    Raises:
        InputError: naming what differs.
    """
    fields = [f for f in type(new).model_fields if f != "registered_at" and getattr(known, f) != getattr(new, f)]
    if fields:
        differences = ", ".join(f"{f}={getattr(known, f)!r}, found {getattr(new, f)!r}" for f in fields)
        raise InputError(
            f"source={new.name!r} is registered since {known.registered_at} with {differences}: "
            "use it as it is registered, or choose another name for other data"
        )


# Charges


def to_charge(row: sa.Row[Any], *, new: bool) -> Charge:
    """The charge in a row of the table, without what is private."""
    stored = {name: getattr(row, name) for name in Charge.model_fields if name not in ("new", "resumable")}
    return Charge(**stored, new=new, resumable=row.salt is not None)


def get_charge(connection: sa.Connection, charge_id: str) -> sa.Row[Any]:
    """The row of a charge.

    Raises:
        InputError: when there is none.
    """
    row = connection.execute(sa.select(CHARGES).where(CHARGES.c.id == charge_id)).first()
    if row is None:
        raise InputError(f"expected a charge of this ledger, found charge_id={charge_id!r}")
    return row


def latest(connection: sa.Connection, request_key: str) -> sa.Row[Any] | None:
    """The row of the newest charge of a request."""
    query = sa.select(CHARGES).where(CHARGES.c.request_key == request_key)
    return connection.execute(query.order_by(CHARGES.c.attempt.desc()).limit(1)).first()


def costs(connection: sa.Connection, name: str) -> dict[str, Cost]:
    """Id -> cost of each counted charge of a source, reserved or released."""
    query = sa.select(CHARGES.c.id, CHARGES.c.epsilon, CHARGES.c.delta, CHARGES.c.renyi_curve, CHARGES.c.queries)
    query = query.where(CHARGES.c.source == name, CHARGES.c.kind == "counted")
    rows = connection.execute(query)
    return {charge: _cost(e, d, tuple(json.loads(curve)), asked) for charge, e, d, curve, asked in rows}


def cost(source: SourceRecord, request: ChargeRequest) -> Cost:
    """What a charge of this request costs.

    Raises:
        UnderstudyError: when RDP does not know the event.
    """
    return _cost(request.epsilon, request.delta, _renyi_curve(source, request), request.queries)


def _cost(epsilon: float, delta: float, curve: tuple[float, ...], queries: str) -> Cost:
    if not curve:
        return Cost(epsilon, delta)
    from understudy.privacy.queries import masked_rounds, queries_from_json

    return Cost(epsilon, delta, curve, masked_rounds(queries_from_json(queries)))


def checked_request(fields: Mapping[str, Any]) -> ChargeRequest:
    """The request that the fields make.

    Raises:
        InputError: when one is out of range.
    """
    try:
        return ChargeRequest(**fields)
    except ValidationError as error:
        parts = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False)]
        raise InputError(f"this charge cannot be made: {'; '.join(parts)}") from None


def check_cost(request: ChargeRequest) -> None:
    """Refuses a counted charge whose queries cost more than its epsilon; this recomputes it by PLD.

    Raises:
        UnderstudyError: with both figures.
    """
    from understudy.privacy.queries import check_epsilon_of, queries_from_json

    if request.counted:
        check_epsilon_of(queries_from_json(request.queries), epsilon=request.epsilon, delta=request.delta)


def check_same_request(known: sa.Row[Any], request: ChargeRequest) -> None:
    """Refuses to give a request another one's charge.

    Raises:
        UnderstudyError: naming what differs.
    """
    names = ("source", "queries", "delta", "unit", "relation", "simulation")
    differing = [name for name in names if getattr(known, name) != getattr(request, name)]
    if differing:
        raise UnderstudyError(
            f"request_key={request.request_key!r} has the charge {known.id}, which was made for another "
            f"{', '.join(differing)}: the request key must cover everything that is charged"
        )


def check_fits_source(source: SourceRecord, request: ChargeRequest) -> None:
    """Refuses a charge that the source's guarantee cannot absorb.

    Raises:
        InputError: when unit or relation differ, delta is not below 1/n, or the queries are over more than n units.
    """
    from understudy.privacy.queries import queries_from_json

    asked, registered = (request.unit, request.relation), (source.unit, source.relation)
    if asked != registered:
        raise InputError(
            f"source={source.name!r}: expected unit and relation {registered}, found {asked}; no conversion "
            "between them is known here, so register the data for the method that you run"
        )
    if request.delta >= 1 / source.n:
        raise InputError(f"expected delta < 1/n = {1 / source.n:.6g}, found delta={request.delta:.6g}")
    units = max((query.units for query in queries_from_json(request.queries)), default=0)
    if units > source.n:
        raise InputError(
            f"source={source.name!r} is registered for at most {source.n} {source.unit}s, found queries over {units}: "
            f"its delta of {source.delta:.6g} was chosen for {source.n}. Leave {units - source.n} out, or register "
            f"the data again, under a new name and with --rows {units}, before anything is charged to this one"
        )


def _renyi_curve(source: SourceRecord, request: ChargeRequest) -> tuple[float, ...]:
    """The charge's Renyi bounds at the source's orders; empty where nothing adds them up."""
    if source.composition == "sum" or not request.counted:
        return ()
    from understudy.privacy import accounting
    from understudy.privacy.queries import event_of, queries_from_json

    return accounting.renyi_curve(event_of(queries_from_json(request.queries)), source.renyi_orders)


def restarts(connection: sa.Connection, charge_id: str) -> int:
    """How often the key material of a charge was handed out for a part that had it before."""
    query = sa.select(sa.func.count()).select_from(STARTS).where(STARTS.c.charge == charge_id, STARTS.c.number > 1)
    return int(connection.execute(query).scalar_one())


def note_start(connection: sa.Connection, charge_id: str, *, part: int, now: str) -> dict[str, Any]:
    """Notes that a part of a charge's mechanism starts, once more, and gives what was noted."""
    before = sa.select(sa.func.count()).select_from(STARTS).where(STARTS.c.charge == charge_id, STARTS.c.part == part)
    number = int(connection.execute(before).scalar_one()) + 1
    noted = {"part": part, "number": number, "started_at": now}
    connection.execute(sa.insert(STARTS).values(charge=charge_id, **noted))
    return noted


def noted_query(connection: sa.Connection, charge_id: str, *, call: str) -> str | None:
    """The tag of the query that a call of a charge was first made with; None before it is made."""
    noted = sa.select(CHAIN.c.content).where(CHAIN.c.kind == "query", CHAIN.c.subject == charge_id)
    entries = (json.loads(content) for content in connection.execute(noted).scalars())
    return next((str(entry["tag"]) for entry in entries if entry["call"] == call), None)
