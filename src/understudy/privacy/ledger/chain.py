"""The chain of a ledger's entries: each carries an HMAC over itself, over what it records and over the entry before.

Everything that changes the ledger appends an entry: it is founded, a source is registered, rows are noted, a charge is
reserved, bound, started, asked or released, a source is purged, the secret is replaced, a loss is accepted. The key
follows from the ledger's root key, so whoever can write to the database and lacks the secret can neither make an entry
nor change, drop or reorder one, nor change what one records: a budget, a charge, its status, its salt. What is left to
them is to cut the end off, which the head that is kept apart tells (`ledger_head`).

What an entry records is read from the tables when the chain is checked and is not kept twice.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import sqlalchemy as sa

from understudy.errors import UnderstudyError
from understudy.privacy.ledger import secret as keys
from understudy.privacy.ledger.database import CHAIN, CHARGES, SECRETS, SOURCES, STARTS

Kind = Literal[
    "found",
    "source",
    "rows",
    "reserve",
    "environment",
    "start",
    "query",
    "release",
    "purge",
    "rotate",
    "loss",
]

START: Final = bytes(32)
# What happens to a charge after it was reserved; entries of their own record it.
_LATER: Final = frozenset({"status", "released_at", "salt", "environment"})
_FIXED: Final = tuple(column for column in CHARGES.columns if column.name not in _LATER)
_CHARGE: Final = sa.select(*_FIXED, *(CHARGES.c[name] for name in sorted(_LATER)))


class Tampered(UnderstudyError):
    """The ledger is not as its chain records it."""


@dataclass(frozen=True)
class Tip:
    """How far a chain goes: the number of its entries and the last one's HMAC, in hexadecimal digits."""

    entries: int
    mac: str


@dataclass
class _Charge:
    """What the chain says of a charge."""

    source: str
    salt_tag: str
    environment: str | None = None
    released_at: str | None = None
    erased: bool = False


@dataclass
class Chain:
    """A chain that was checked.

    Attributes:
        macs: of each entry, in order.
        losses: what each accepted loss says: the head that was lost, and when.
    """

    macs: list[bytes] = field(default_factory=list)
    losses: list[Mapping[str, Any]] = field(default_factory=list)
    _secret: str = ""
    _sources: set[str] = field(default_factory=set)
    _charges: dict[str, _Charge] = field(default_factory=dict)
    _starts: set[tuple[str, int, int, str]] = field(default_factory=set)

    @property
    def tip(self) -> Tip:
        """How far it goes."""
        return Tip(len(self.macs), (self.macs[-1] if self.macs else b"").hex())

    @property
    def accepted(self) -> set[str]:
        """The heads that were lost, and whose loss was accepted."""
        return {loss["mac"] for loss in self.losses}

    def apply(self, kind: str, subject: str, content: Mapping[str, Any], source: str) -> None:
        """Note what one entry records; `source` is that of a reserved charge."""
        match kind:
            case "found" | "rotate":
                self._secret = subject
            case "source":
                self._sources.add(subject)
            case "purge":
                for charge in self._charges.values():
                    charge.erased |= charge.source == subject
            case "loss":
                self.losses.append(content)
            case _:
                self._apply_to_charge(kind, subject, content, source)

    def _apply_to_charge(self, kind: str, subject: str, content: Mapping[str, Any], source: str) -> None:
        match kind:
            case "reserve":
                self._charges[subject] = _Charge(source, content["salt"])
            case "environment":
                self._charges[subject].environment = content["environment"]
            case "start":
                self._starts.add((subject, content["part"], content["number"], content["started_at"]))
            case "release":
                self._charges[subject].released_at = content["released_at"]

    def compare(self, connection: sa.Connection, key: bytes, charges: Mapping[str, sa.Row[Any]]) -> None:
        """Compare the tables with what the entries record.

        Raises:
            Tampered: naming what differs.
        """
        sources = set(connection.execute(sa.select(SOURCES.c.name)).scalars())
        for name in sorted(sources ^ self._sources):
            raise Tampered(f"no entry records the source {name!r}")
        for charge_id in sorted(set(charges) ^ set(self._charges)):
            raise Tampered(f"no entry records the charge {charge_id}")
        for charge_id, row in charges.items():
            _compare_charge(row, self._charges[charge_id], key)
        starts = {tuple(row) for row in connection.execute(sa.select(STARTS)).all()}
        for charge_id, *_ in sorted(starts ^ self._starts):
            raise Tampered(f"the starts of the charge {charge_id} are not as the entries record them")
        current = sa.select(SECRETS.c.key_id).where(SECRETS.c.retired_at.is_(None))
        if connection.execute(current).scalars().all() != [self._secret]:
            raise Tampered(f"the last entry for a secret records {self._secret}, another one stands as the current one")


def verify(connection: sa.Connection, root_key: bytes) -> Chain:
    """Check the whole chain, and the tables against it; of the rows' hashes nothing (`ledger_rows`).

    Raises:
        Tampered: naming the first entry that does not fit, or what differs.
    """
    try:
        return _verify(connection, root_key)
    except (KeyError, TypeError, ValueError):
        # SQLite keeps whatever is written into a column.
        raise Tampered("an entry holds a value of another form") from None


def _verify(connection: sa.Connection, root_key: bytes) -> Chain:
    key = keys.derive(root_key, "chain")
    chain, previous = Chain(), START
    records = dict(connection.execute(sa.select(SOURCES.c.name, SOURCES.c.record)).tuples().all())
    charges = {row.id: row for row in connection.execute(_CHARGE)}
    for entry in connection.execute(sa.select(CHAIN).order_by(CHAIN.c.number)).all():
        number = len(chain.macs) + 1
        if entry.number != number:
            raise Tampered(f"entry {number} is gone")
        row = charges.get(entry.subject)
        recorded = _recorded(entry.kind, records.get(entry.subject), row)
        if recorded is None:
            raise Tampered(f"the {_NOUN[entry.kind]} {entry.subject!r}, which entry {number} records, is gone")
        mac = _mac(key, previous, (number, entry.kind, entry.subject, entry.content, recorded))
        if not hmac.compare_digest(mac, entry.mac):
            raise Tampered(f"entry {number} ({entry.kind} {entry.subject!r}), or what it records, was changed")
        chain.apply(entry.kind, entry.subject, json.loads(entry.content), "" if row is None else row.source)
        chain.macs.append(previous := mac)
    if not chain.macs:
        raise Tampered("all entries are gone")
    chain.compare(connection, key, charges)
    return chain


def append(connection: sa.Connection, root_key: bytes, kind: Kind, subject: str, **content: Any) -> None:
    """Append an entry for what was just written, in the same transaction, after `verify`."""
    key = keys.derive(root_key, "chain")
    last = connection.execute(sa.select(CHAIN.c.number, CHAIN.c.mac).order_by(CHAIN.c.number.desc()).limit(1)).first()
    number, previous = (1, START) if last is None else (last.number + 1, bytes(last.mac))
    record = row = None
    if kind == "source":
        record = connection.execute(sa.select(SOURCES.c.record).where(SOURCES.c.name == subject)).scalar_one()
    if kind == "reserve":
        row = connection.execute(_CHARGE.where(CHARGES.c.id == subject)).one()
        content["salt"] = _salt_tag(key, row.salt)
    text = json.dumps(content, sort_keys=True)
    mac = _mac(key, previous, (number, kind, subject, text, _recorded(kind, record, row)))
    connection.execute(sa.insert(CHAIN).values(number=number, kind=kind, subject=subject, content=text, mac=mac))


def tip(connection: sa.Connection) -> Tip:
    """How far the chain goes by now."""
    last = connection.execute(sa.select(CHAIN.c.number, CHAIN.c.mac).order_by(CHAIN.c.number.desc()).limit(1)).first()
    return Tip(0, "") if last is None else Tip(last.number, bytes(last.mac).hex())


_NOUN: Final = {"source": "source", "reserve": "charge"}


def _recorded(kind: str, record: str | None, row: sa.Row[Any] | None) -> str | None:
    """What an entry is about, as text; empty for one that is whole in itself, None when it is gone."""
    if kind == "source":
        return record
    if kind == "reserve":
        return None if row is None else json.dumps(row[: len(_FIXED)])
    return ""


def _mac(key: bytes, previous: bytes, parts: tuple[int, str, str, str, str | None]) -> bytes:
    return hmac.digest(key, previous + json.dumps(parts).encode(), "sha256")


def _salt_tag(key: bytes, salt: bytes) -> str:
    return hmac.digest(keys.derive(key, "salt"), salt, "sha256").hex()


def _compare_charge(row: sa.Row[Any], told: _Charge, key: bytes) -> None:
    """The part of a charge that changes in its life."""
    status = "reserved" if told.released_at is None else "released"
    if (row.status, row.released_at, row.environment) != (status, told.released_at, told.environment):
        raise Tampered(f"the charge {row.id} is not {status} as the entries record it, or not in that environment")
    gone = told.erased or told.released_at is not None
    if gone != (row.salt is None):
        raise Tampered(f"the salt of the charge {row.id} was {'put back' if gone else 'removed'}")
    if row.salt is not None and not hmac.compare_digest(_salt_tag(key, row.salt), told.salt_tag):
        raise Tampered(f"the salt of the charge {row.id} was changed")
