"""The ledger: which privacy budgets there are, and every charge that was ever made to them.

A run is charged once, for its whole event, before it reads its first private byte. A charge is durable before
any noise is drawn, is never removed, and counts from the moment it is reserved, whether or not anything was
released. Its noise is a function of the secret, the charge's id and its salt, so a killed run resumes to the
same bytes under the same charge; releasing erases the salt, after which nobody can draw that noise again.

Nothing private is kept: rows as keyed hashes, keys wrapped under the secret, salts only until release.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import sqlalchemy as sa

from understudy.errors import InputError, UnderstudyError, ZoneError
from understudy.privacy.ledger import chain, rows
from understudy.privacy.ledger import secret as keys
from understudy.privacy.ledger import selects as queries
from understudy.privacy.ledger import stored_secrets as vault
from understudy.privacy.ledger.budget import Cost, admit, spent
from understudy.privacy.ledger.database import CHARGES, ROWS, SECRETS, SOURCES, create_tables, open_engine, transact
from understudy.privacy.ledger.head import EntriesLost, Head
from understudy.privacy.ledger.records import (
    RENYI_ORDERS,
    Charge,
    ChargeFields,
    ChargeRequest,
    KeyMaterial,
    SourceRecord,
)

if TYPE_CHECKING:
    from understudy.settings import Settings

__all__ = [
    "RENYI_ORDERS",
    "Charge",
    "ChargeFields",
    "ChargeRequest",
    "KeyMaterial",
    "Ledger",
    "SourceRecord",
    "accept_ledger_loss",
    "rotate_stored_secret",
]

T = TypeVar("T")


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _no_step(_name: str) -> None:
    """Nothing happens between the steps of an operation; tests kill the process there."""


class Ledger:
    """A ledger in a SQLite file or a PostgreSQL database. Safe to use from many processes at once."""

    def __init__(
        self,
        url: str,
        *,
        secret: bytes,
        head: Head | None = None,
        accept_loss: bool = False,
        clock: Callable[[], datetime] = _utc_now,
        on_step: Callable[[str], None] = _no_step,
    ) -> None:
        """Opens the ledger, and makes it when it is not there.

        Args:
            url: SQLAlchemy URL of a SQLite file or a PostgreSQL database.
            secret: the client zone's secret, at least 32 bytes.
            head: where the head of the chain is kept; without it a ledger that lost its last entries is not noticed.
            accept_loss: go on although the head speaks of entries that are gone, and record that.
            clock: the time that new entries carry.
            on_step: called with a name between any two steps that a crash could separate.

        Raises:
            InputError: when the URL or the secret cannot be used.
            UnderstudyError: when the ledger belongs to another secret, was changed by other means, lost entries, or
                cannot be opened.
        """
        self._secret = keys.check_secret(secret)
        self._head = head
        self._clock = clock
        self._on_step = on_step
        self._engine = open_engine(url)
        create_tables(self._engine)
        self._root_key = transact(self._engine, lambda connection: self._found_or_read(connection, accept_loss))
        if accept_loss:
            self._run("accept_loss", self._accept_loss, check_head=False)
        self._run("open", lambda _: None)

    @classmethod
    def open(cls) -> Ledger:
        """The ledger of this user's settings, with the secret from the environment or the file `home/secret`.

        Raises:
            ZoneError: in the server zone, which has no business with it.
            InputError: when a setting or the secret cannot be used.
            UnderstudyError: when the ledger has a secret already and it is not to be found.
        """
        from understudy.settings import settings

        return cls._open(settings(), accept_loss=False)

    @classmethod
    def _open(cls, now: Settings, *, accept_loss: bool) -> Ledger:
        if now.zone == "server":
            raise ZoneError("the ledger belongs to the client zone, found zone='server'")
        path, given = now.home / "secret", now.secret
        head = Head(now.home / "ledger.head", required=given is None)
        if not accept_loss and (path.exists() or head.path.exists()):
            head.check_file(now.ledger_url)
        if given is not None:
            secret = given.get_secret_value().encode()
        else:
            secret = vault.stored_secret(now.ledger_url, path, head=head)
        return cls(now.ledger_url, secret=secret, head=head, accept_loss=accept_loss)

    def verify(self) -> None:
        """Check everything: the chain, the tables, the head, and the hashes of all rows.

        Raises:
            UnderstudyError: naming what was changed or is missing.
        """
        self._run("verify", lambda connection: self._untampered(lambda: rows.check_all(connection, self._root_key)))

    def losses(self) -> tuple[Mapping[str, Any], ...]:
        """Every time that lost entries were accepted: `at`, the `entries` that there were (None: unknown), `left`."""
        return self._run("losses", lambda connection: tuple(chain.verify(connection, self._root_key).losses))

    # Sources

    def register(self, source: SourceRecord) -> SourceRecord:
        """Registers a source, once; the same again changes nothing.

        Raises:
            InputError: when the name is registered with other properties.
        """
        record = source.model_copy(update={"registered_at": source.registered_at or self._now()})

        def work(connection: sa.Connection) -> SourceRecord:
            known = queries.find_source(connection, source.name)
            if known is not None:
                queries.check_same_source(known, record)
                return known
            wrapped = keys.wrap(self._secret, secrets.token_bytes(32), name=f"source/{source.name}")
            values = {"name": source.name, "record": record.model_dump_json(), "wrapped_key": wrapped}
            connection.execute(sa.insert(SOURCES).values(values))
            self._append(connection, "source", source.name)
            return record

        return self._run("register", work)

    def source(self, name: str) -> SourceRecord:
        """The source registered as `name`.

        Raises:
            InputError: when there is none.
        """
        return self._run("source", lambda connection: queries.get_source(connection, name))

    def sources(self) -> tuple[SourceRecord, ...]:
        """Every source, by name."""
        query = sa.select(SOURCES.c.record).order_by(SOURCES.c.name)
        found = self._run("sources", lambda connection: connection.execute(query).scalars().all())
        return tuple(SourceRecord.model_validate_json(record) for record in found)

    def spent(self, name: str) -> tuple[float, float]:
        """The (epsilon, delta) that all charges of a source add up to under its composition rule.

        Raises:
            InputError: when there is no such source.
        """
        return self._run(
            "spent",
            lambda connection: spent(queries.get_source(connection, name), queries.costs(connection, name)),
        )

    def check_rows(self, name: str, row_digests: Sequence[bytes], client_digests: Sequence[bytes] = ()) -> None:
        """Refuses rows and clients that `register_rows` would refuse, and notes nothing; the source need not exist yet.

        Raises:
            InputError: when a row or its client (named by index) is registered under another source.
        """
        hashes = self._row_hashes(row_digests, client_digests)

        def work(connection: sa.Connection) -> None:
            self._untampered(lambda: rows.check_counts(connection))
            rows.known(connection, name, hashes)

        self._run("check_rows", work)

    def register_rows(self, name: str, row_digests: Sequence[bytes], client_digests: Sequence[bytes] = ()) -> None:
        """Notes which rows and clients belong to a source, as keyed hashes; the same again change nothing.

        Args:
            name: the source.
            row_digests: one digest of each row's content, in order, b"" for one that is not compared; never stored
                as such.
            client_digests: one digest of the client of each row; empty where rows have none.

        Raises:
            InputError: when there is no such source, or a row or its client (named by index) is registered under
                another: nothing is noted then.
        """
        hashes = self._row_hashes(row_digests, client_digests)

        def work(connection: sa.Connection) -> None:
            queries.get_source(connection, name)
            self._untampered(lambda: rows.check_counts(connection))
            if rows.note(connection, name, hashes):
                self._append(connection, "rows", name, **rows.recount(connection, self._root_key, name))

        self._run("register_rows", work)

    def purge(self, name: str, *, forget_rows: bool = False) -> None:
        """Erases what the ledger holds for a source's runs: the source's key and unreleased salts.

        The source and its charges stay: spent budget never comes back, and an unfinished charge can no longer
        be resumed. The keyed hashes of its rows stay too, so that the rows get no second budget under another
        name (ADR 0006).

        Args:
            name: the source.
            forget_rows: erase the hashes, also of clients, as well: nothing of the rows is left, and nothing keeps
                them from being registered under another name.

        Raises:
            InputError: when there is no such source.
        """
        wrapped = keys.wrap(self._secret, secrets.token_bytes(32), name=f"source/{name}")

        def work(connection: sa.Connection) -> None:
            queries.get_source(connection, name)
            if forget_rows:
                connection.execute(sa.delete(ROWS).where(ROWS.c.source == name))
                self._append(connection, "rows", name, **rows.recount(connection, self._root_key, name))
            connection.execute(sa.update(CHARGES).where(CHARGES.c.source == name).values(salt=None))
            connection.execute(sa.update(SOURCES).where(SOURCES.c.name == name).values(wrapped_key=wrapped))
            vault.drop_idle_secrets(connection)
            self._append(connection, "purge", name)

        self._run("purge", work)

    # Charges

    def reserve(self, *, accept_new: bool = False, **fields: Unpack[ChargeFields]) -> Charge:
        """The charge of a request: the one it has already, or a new one if the budget allows it.

        When it returns, the charge is on the disk. It counts from now on, whatever becomes of the run.

        Args:
            accept_new: charge again although the request has a charge (its attempt is one higher).
            fields: `ChargeFields`; epsilon is infinite for a run whose output stays private, which is
                recorded but not counted, as a simulation is.

        Raises:
            InputError: when a field is out of range, unit or relation are not the source's, or the queries are over
                more units than it has.
            BudgetRefused: when the budget does not allow it; nothing was recorded.
            UnderstudyError: when the queries cost more than the epsilon that is charged, by PLD, or the request key
                belongs to a different request.
        """
        request = queries.checked_request(fields)
        queries.check_cost(request)

        def work(connection: sa.Connection) -> Charge:
            source = queries.get_source(connection, request.source)
            known = queries.latest(connection, request.request_key)
            if known is not None and not accept_new:
                queries.check_same_request(known, request)
                return queries.to_charge(known, new=False)
            queries.check_fits_source(source, request)
            curve = queries.renyi_curve(source, request)
            if request.counted:
                admit(
                    source,
                    queries.costs(connection, source.name),
                    Cost(request.epsilon, request.delta, curve),
                )
            charge = Charge(
                **request.model_dump(),
                id=secrets.token_hex(12),
                attempt=1 if known is None else known.attempt + 1,
                kind="counted" if request.counted else "internal",
                status="reserved",
                key_id=keys.key_id(self._secret),
                created_at=self._now(),
                released_at=None,
                new=True,
            )
            private = {"salt": secrets.token_bytes(32), "renyi_curve": json.dumps(curve)}
            connection.execute(sa.insert(CHARGES).values(charge.model_dump(exclude={"new"}) | private))
            self._append(connection, "reserve", charge.id)
            return charge

        return self._run("reserve", work)

    def charge(self, charge_id: str) -> Charge:
        """The charge with this id.

        Raises:
            InputError: when there is none.
        """
        return self._run(
            "charge",
            lambda connection: queries.to_charge(queries.get_charge(connection, charge_id), new=False),
        )

    def charges(self, name: str | None = None) -> tuple[Charge, ...]:
        """Every charge of a source, or of all, oldest first."""
        query = sa.select(CHARGES).order_by(CHARGES.c.created_at, CHARGES.c.id)
        if name is not None:
            query = query.where(CHARGES.c.source == name)
        found = self._run("charges", lambda connection: connection.execute(query).all())
        return tuple(queries.to_charge(row, new=False) for row in found)

    def bind_environment(self, charge_id: str, fingerprint: str) -> None:
        """Ties a charge to what its bytes depend on; the first call decides.

        Args:
            charge_id: the charge.
            fingerprint: device type, library versions, thread count, micro-batch; public.

        Raises:
            InputError: when there is no such charge.
            UnderstudyError: when the charge is tied to another environment, where its noise may have been
                added to a query with other bytes: the same noise must not be added here.
        """

        def work(connection: sa.Connection) -> None:
            bound = queries.get_charge(connection, charge_id).environment
            if bound is None:
                change = sa.update(CHARGES).where(CHARGES.c.id == charge_id).values(environment=fingerprint)
                connection.execute(change)
                self._append(connection, "environment", charge_id, environment=fingerprint)
            elif bound != fingerprint:
                raise UnderstudyError(
                    f"charge {charge_id} began in the environment {bound!r}, found {fingerprint!r}: finish "
                    "it there (same device type, library versions, threads, micro-batch), or pay for a new "
                    "run with --accept-new-charge"
                )

        self._run("bind_environment", work)

    def material(self, charge_id: str, *, part: int = 0) -> KeyMaterial:
        """What the noise of a reserved charge is derived from; every call is noted as a start of its mechanism.

        Args:
            charge_id: of the charge.
            part: of a mechanism that is started in parts, such as rounds, which one; it changes no noise.

        Raises:
            InputError: when there is no such charge.
            UnderstudyError: when the charge was released or its source purged: the salt is gone for good.
        """
        from understudy.privacy.queries import queries_from_json

        def work(connection: sa.Connection) -> KeyMaterial:
            row = queries.get_charge(connection, charge_id)
            if row.status == "released" or row.salt is None:
                what = "released" if row.status == "released" else "purged"
                raise UnderstudyError(
                    f"charge {charge_id} was {what}, its noise cannot be drawn again: use what it released, "
                    "or pay for a new run with --accept-new-charge"
                )
            secret = vault.secret_of(connection, row.key_id, current=self._secret)
            started = queries.note_start(connection, charge_id, part=part, now=self._now())
            self._append(connection, "start", charge_id, **started)
            return KeyMaterial(secret, charge_id, bytes(row.salt), queries_from_json(row.queries))

        return self._run("material", work)

    def restarts(self, charge_id: str) -> int:
        """How often a part of the mechanism of a charge was started again after its first start.

        Raises:
            InputError: when there is no such charge.
        """

        def work(connection: sa.Connection) -> int:
            queries.get_charge(connection, charge_id)
            return queries.restarts(connection, charge_id)

        return self._run("restarts", work)

    def release(self, charge_id: str) -> Charge:
        """Closes a charge after its last draw: erases the salt. The same again changes nothing.

        Raises:
            InputError: when there is no such charge.
        """

        def work(connection: sa.Connection) -> Charge:
            if queries.get_charge(connection, charge_id).status == "reserved":
                change = sa.update(CHARGES).where(CHARGES.c.id == charge_id)
                values = {"status": "released", "released_at": self._now(), "salt": None}
                connection.execute(change.values(values))
                vault.drop_idle_secrets(connection)
                self._append(connection, "release", charge_id, released_at=values["released_at"])
            return queries.to_charge(queries.get_charge(connection, charge_id), new=False)

        return self._run("release", work)

    # Keys

    def hmac(self, name: str, data: bytes) -> bytes:
        """HMAC-SHA256 under a source's own key: compares private content without a digest anyone could guess.

        Raises:
            InputError: when there is no such source.
        """
        query = sa.select(SOURCES.c.wrapped_key).where(SOURCES.c.name == name)

        def work(connection: sa.Connection) -> bytes:
            queries.get_source(connection, name)
            return bytes(connection.execute(query).scalar_one())

        key = keys.unwrap(self._secret, self._run("hmac", work), name=f"source/{name}")
        return hmac.digest(key, data, "sha256")

    def keyed_hash(self, name: str, purpose: str, data: bytes) -> bytes:
        """HMAC-SHA256 of one unit of a source, 32 bytes: what is decided by it hangs on no other unit.

        The source need not be registered, so that a dry run decides as the run will. The key outlives rotation and
        purge: what is held out now is held out later.

        Args:
            name: of the source.
            purpose: one per decision.
            data: what names the unit.
        """
        parts = (name.encode(), purpose.encode(), data)
        framed = b"".join(len(part).to_bytes(8) + part for part in parts)
        return hmac.digest(keys.derive(self._root_key, "unit"), framed, "sha256")

    def request_key(self, *parts: str | bytes) -> str:
        """A keyed digest of what makes a request; the same parts give the same key, also after a rotation."""
        encoded = [b"s" + part.encode() if isinstance(part, str) else b"b" + part for part in parts]
        data = b"".join(len(part).to_bytes(8) + part for part in encoded)
        return hmac.digest(keys.derive(self._root_key, "request"), data, "sha256").hex()

    def rotate_secret(self, new: bytes) -> str:
        """Puts a new secret in the place of the current one, and gives its key id.

        New charges use it. The keys behind row hashes, `hmac` and `request_key` stay, wrapped anew. The old
        secret is kept, wrapped under the new one, only while a charge under it is unfinished.

        Raises:
            InputError: when the new secret is too short or was used before.
        """
        fresh = keys.check_secret(new)
        fresh_id = keys.key_id(fresh)

        def work(connection: sa.Connection) -> None:
            if connection.execute(sa.select(SECRETS.c.key_id).where(SECRETS.c.key_id == fresh_id)).first():
                raise InputError(f"the secret {fresh_id} was used before: make a new one")
            vault.rewrap(connection, old=self._secret, new=fresh, now=self._now())
            self._append(connection, "rotate", fresh_id)

        self._run("rotate", work)
        self._secret = fresh
        return fresh_id

    def _row_hashes(self, row_digests: Sequence[bytes], client_digests: Sequence[bytes]) -> rows.Hashes:
        """Keyed, under a key for each kind: what is not compared has none."""
        found: rows.Hashes = []
        for kind, digests in (("row", row_digests), ("client", client_digests)):
            key = keys.derive(self._root_key, f"{kind}s")
            found += [(kind, i, hmac.digest(key, digest, "sha256")) for i, digest in enumerate(digests) if digest]
        return found

    def _now(self) -> str:
        return self._clock().astimezone(UTC).isoformat(timespec="seconds")

    def _found_or_read(self, connection: sa.Connection, accept_loss: bool) -> bytes:
        if self._head is not None and not accept_loss and not vault.is_founded(connection):
            self._head.check_empty(f"the ledger {self._name} is empty")
        return vault.found_or_read_root_key(connection, self._secret, now=self._now())

    def _accept_loss(self, connection: sa.Connection) -> None:
        """Records what the head speaks of and the chain does not hold."""
        found = self._verified(connection, check_head=False)
        try:
            if self._head is not None:
                self._head.check(found)
        except EntriesLost as lost:
            entries, mac = (lost.head.entries, lost.head.mac) if lost.head else (None, None)
            left = len(found.macs)
            self._append(connection, "loss", "", at=self._now(), entries=entries, mac=mac, left=left)
            return
        raise InputError("expected a ledger that lost entries, found one that is whole: nothing is to be accepted")

    def _append(self, connection: sa.Connection, kind: chain.Kind, subject: str, **content: Any) -> None:
        chain.append(connection, self._root_key, kind, subject, **content)

    def _verified(self, connection: sa.Connection, *, check_head: bool = True) -> chain.Chain:
        found = self._untampered(lambda: chain.verify(connection, self._root_key))
        if check_head and self._head is not None:
            self._head.check(found)
        return found

    def _untampered(self, check: Callable[[], T]) -> T:
        try:
            return check()
        except chain.Tampered as error:
            raise UnderstudyError(
                f"the ledger {self._name} was changed by other means than Understudy: {error}. Nothing is charged or "
                "drawn with it: put the newest backup back"
            ) from None

    @property
    def _name(self) -> str:
        return self._engine.url.render_as_string(hide_password=True)

    def _run(self, operation: str, work: Callable[[sa.Connection], T], *, check_head: bool = True) -> T:
        """One transaction, in which the ledger still belongs to our secret and is as its chain and its head say."""

        def checked(connection: sa.Connection) -> tuple[T, chain.Tip, set[str]]:
            vault.require_current_secret(connection, self._secret)
            found = self._verified(connection, check_head=check_head)
            self._on_step(f"{operation}:begun")
            result = work(connection)
            self._on_step(f"{operation}:written")
            return result, chain.tip(connection), found.accepted

        result, tip, accepted = transact(self._engine, checked)
        self._on_step(f"{operation}:committed")
        if self._head is not None:
            self._head.advance(tip, accepted=accepted)
        return result


def accept_ledger_loss() -> Mapping[str, Any]:
    """Goes on with what is left of this user's ledger, or founds it anew, and records in it what was lost.

    Returns:
        The record: `at`, the number of `entries` that the head spoke of (None: it is gone too), how many were `left`.

    Raises:
        InputError: when nothing was lost.
        UnderstudyError: when what is left was changed by other means, which cannot be accepted.
    """
    from understudy.settings import settings

    return Ledger._open(settings(), accept_loss=True).losses()[-1]


def rotate_stored_secret() -> str:
    """Replaces the secret in the file `home/secret` and gives the new key id; a kill loses nothing.

    The new secret is on the disk before the ledger turns to it, and takes the old one's place afterwards; the
    next `Ledger.open()` finishes what was interrupted in between.

    Raises:
        InputError: when the secret comes from the environment, which this process cannot change.
    """
    from understudy.locks import locked
    from understudy.settings import settings

    now = settings()
    if now.secret is not None:
        raise InputError(
            "the secret comes from UNDERSTUDY_SECRET: rotate it with Ledger.open().rotate_secret(new), then "
            "set UNDERSTUDY_SECRET to the new one"
        )
    path = now.home / "secret"
    with locked(now.home / "secret.lock"):
        ledger = Ledger.open()
        new = keys.new_secret()
        keys.write_secret(keys.pending(path), new)
        fresh_id = ledger.rotate_secret(new)
        keys.finish_rotation(path, current=fresh_id)
    return fresh_id
