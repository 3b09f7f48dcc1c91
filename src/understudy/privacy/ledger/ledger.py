"""The ledger: which privacy budgets there are, and every charge that was ever made to them.

A run is charged once, for its whole event, before it reads its first private byte. A charge is durable before
any noise is drawn, is never removed, and counts from the moment it is reserved, whether or not anything was
released. Its noise is a function of the secret, the charge's id and its salt, so a killed run resumes to the
same bytes under the same charge; releasing erases the salt, after which nobody can draw that noise again.

Nothing private is kept: rows as keyed hashes, keys wrapped under the secret, salts only until release.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Unpack

import sqlalchemy as sa

from understudy.errors import InputError, ZoneError
from understudy.privacy.ledger import charges, rows, sources
from understudy.privacy.ledger import secret as keys
from understudy.privacy.ledger import selects as queries
from understudy.privacy.ledger import stored_secrets as vault
from understudy.privacy.ledger.budget import Cost, spent
from understudy.privacy.ledger.database import CHAIN, CHARGES, SECRETS, SOURCES
from understudy.privacy.ledger.head import Head
from understudy.privacy.ledger.records import (
    RENYI_ORDERS,
    Charge,
    ChargeFields,
    ChargeRequest,
    KeyMaterial,
    SourceRecord,
)
from understudy.privacy.ledger.sealed import SealedTables

__all__ = [
    "RENYI_ORDERS",
    "Charge",
    "ChargeFields",
    "ChargeRequest",
    "KeyMaterial",
    "Ledger",
    "SourceRecord",
]


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
        reread: Callable[[], bytes] | None = None,
        clock: Callable[[], datetime] = _utc_now,
        on_step: Callable[[str], None] = _no_step,
    ) -> None:
        """Opens the ledger, and makes it when it is not there.

        Args:
            url: SQLAlchemy URL of a SQLite file or a PostgreSQL database.
            secret: the client zone's secret, at least 32 bytes.
            head: where the head of the chain is kept; without it a ledger that lost its last entries is not noticed.
            accept_loss: go on although the head speaks of entries that are gone, and record that.
            reread: gives the secret once more, where another process may have rotated it since; None where it may not.
            clock: the time that new entries carry.
            on_step: called with a name between any two steps that a crash could separate.

        Raises:
            InputError: when the URL or the secret cannot be used.
            UnderstudyError: when the ledger belongs to another secret, was changed by other means, lost entries, or
                cannot be opened.
        """
        self._tables = SealedTables(
            url, secret=secret, head=head, accept_loss=accept_loss, reread=reread, clock=clock, on_step=on_step
        )

    @classmethod
    def open(cls, *, accept_loss: bool = False) -> Ledger:
        """The ledger of this user's settings, with the secret from the environment or the file `home/secret`.

        Args:
            accept_loss: see `Ledger`.

        Raises:
            ZoneError: in the server zone, which has no business with it.
            InputError: when a setting or the secret cannot be used.
            UnderstudyError: when the ledger has a secret already and it is not to be found.
        """
        from understudy.settings import settings

        now = settings()
        if now.zone == "server":
            raise ZoneError(
                "the ledger is in the client zone; this process has UNDERSTUDY_ZONE=server; run this there, or unset "
                "UNDERSTUDY_ZONE to run both zones here"
            )
        path, given = now.home / "secret", now.secret
        head = Head(now.home / "ledger.head", required=given is None)
        if not accept_loss and (path.exists() or head.path.exists()):
            head.check_file(now.ledger_url)
        if given is not None:
            secret = given.get_secret_value().encode()
            return cls(now.ledger_url, secret=secret, head=head, accept_loss=accept_loss)
        stored = partial(vault.stored_secret, now.ledger_url, path, head=head)
        return cls(now.ledger_url, secret=stored(), head=head, accept_loss=accept_loss, reread=stored)

    def verify(self) -> None:
        """Check everything: the chain, the tables, the head, and the hashes of all rows.

        Raises:
            UnderstudyError: naming what was changed or is missing.
        """
        self._tables.verify()

    def losses(self) -> tuple[Mapping[str, Any], ...]:
        """Every time that lost entries were accepted: `at`, the `entries` that there were (None: unknown), `left`."""
        return self._tables.losses()

    # Sources

    def register(
        self, source: SourceRecord, row_digests: Sequence[bytes] = (), client_digests: Sequence[bytes] = ()
    ) -> SourceRecord:
        """Registers a source, once, and notes its rows as `register_rows`; the same again changes nothing.

        Raises:
            InputError: when the name is registered with other properties, or a row or its client (named by index)
                under another source: nothing is registered then.
        """
        record = source.model_copy(update={"registered_at": source.registered_at or self._tables.now()})
        hashes = sources.row_hashes(self._tables, row_digests, client_digests)

        def work(connection: sa.Connection) -> SourceRecord:
            found = sources.register(connection, self._tables, record)
            if hashes:
                sources.note_rows(connection, self._tables, record.name, hashes)
            return found

        return self._tables.run("register", work)

    def source(self, name: str) -> SourceRecord:
        """The source registered as `name`.

        Raises:
            InputError: when there is none.
        """
        return self._tables.run("source", lambda connection: queries.get_source(connection, name))

    def sources(self) -> tuple[SourceRecord, ...]:
        """Every source, by name."""
        query = sa.select(SOURCES.c.record).order_by(SOURCES.c.name)
        found = self._tables.run("sources", lambda connection: connection.execute(query).scalars().all())
        return tuple(SourceRecord.model_validate_json(record) for record in found)

    def spent(self, name: str) -> tuple[float, float]:
        """The (epsilon, delta) that all charges of a source add up to under its composition rule.

        Raises:
            InputError: when there is no such source.
        """
        return self._tables.run(
            "spent",
            lambda connection: spent(queries.get_source(connection, name), [*queries.costs(connection, name).values()]),
        )

    def costs(self, name: str) -> Mapping[str, Cost]:
        """Id -> cost of each counted charge of a source; none of a source that there is not."""
        return self._tables.run("costs", lambda connection: queries.costs(connection, name))

    def check_rows(self, name: str, row_digests: Sequence[bytes], client_digests: Sequence[bytes] = ()) -> None:
        """Refuses rows and clients that `register_rows` would refuse, and notes nothing; the source need not exist yet.

        Raises:
            InputError: when a row or its client (named by index) is registered under another source.
        """
        hashes = sources.row_hashes(self._tables, row_digests, client_digests)

        def work(connection: sa.Connection) -> None:
            self._tables.check_rows(connection)
            rows.known(connection, name, hashes)

        self._tables.run("check_rows", work)

    def owners_of(self, row_digests: Iterable[bytes]) -> dict[bytes, str]:
        """Digest -> source, of those rows that are registered under any."""
        asked = list(dict.fromkeys(row_digests))
        hashes = sources.row_hashes(self._tables, asked, ())

        def work(connection: sa.Connection) -> dict[bytes, str]:
            self._tables.check_rows(connection)
            return rows.owners(connection, hashes)

        noted = self._tables.run("owners_of", work)
        return {asked[index]: noted[keyed] for _, index, keyed in hashes if keyed in noted}

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
        hashes = sources.row_hashes(self._tables, row_digests, client_digests)

        def work(connection: sa.Connection) -> None:
            queries.get_source(connection, name)
            sources.note_rows(connection, self._tables, name, hashes)

        self._tables.run("register_rows", work)

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
        self._tables.run(
            "purge", lambda connection: sources.purge(connection, self._tables, name, forget_rows=forget_rows)
        )

    # Charges

    def reserve(
        self, *, instead_of: str | None = None, environment: str | None = None, **fields: Unpack[ChargeFields]
    ) -> Charge:
        """The charge of a request: the one it has already, or a new one if the budget allows it.

        When it returns, the charge is on the disk. It counts from now on, whatever becomes of the run.

        Args:
            instead_of: id of the request's charge that cannot be used any more: it is charged again (its attempt is
                one higher), unless another process has done so by now.
            environment: that a new charge is tied to at once, as by `bind_environment`; one that is found stays as it
                is.
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

        return self._tables.run(
            "reserve",
            lambda connection: charges.reserve(
                connection, self._tables, request, instead_of=instead_of, environment=environment
            ),
        )

    def charge(self, charge_id: str) -> Charge:
        """The charge with this id.

        Raises:
            InputError: when there is none.
        """
        return self._tables.run(
            "charge",
            lambda connection: queries.to_charge(queries.get_charge(connection, charge_id), new=False),
        )

    def charges(self, name: str | None = None) -> tuple[Charge, ...]:
        """Every charge of a source, or of all, oldest first."""
        # By their entries: of two charges made in one second, the times do not tell which was first.
        entry = sa.and_(CHAIN.c.subject == CHARGES.c.id, CHAIN.c.kind == "reserve")
        query = sa.select(CHARGES).outerjoin(CHAIN, entry).order_by(CHAIN.c.number)
        if name is not None:
            query = query.where(CHARGES.c.source == name)
        found = self._tables.run("charges", lambda connection: connection.execute(query).all())
        return tuple(queries.to_charge(row, new=False) for row in found)

    def bind_environment(self, charge_id: str, fingerprint: str) -> None:
        """Ties a charge to what its bytes depend on; the first call decides.

        Args:
            charge_id: the charge.
            fingerprint: device type, library versions, thread count, micro-batch, which are public; beside them may
                stand a keyed hash of rows, so it is never told.

        Raises:
            InputError: when there is no such charge.
            UnderstudyError: when the charge is tied to another environment, where its noise may have been
                added to a query with other bytes: the same noise must not be added here.
        """
        self._tables.run(
            "bind_environment",
            lambda connection: charges.bind(connection, self._tables, charge_id, fingerprint),
        )

    def material(self, charge_id: str, *, part: int = 0) -> KeyMaterial:
        """What the noise of a reserved charge is derived from; every call is noted as a start of its mechanism.

        Args:
            charge_id: of the charge.
            part: of a mechanism that is started in parts, such as rounds, which one; it changes no noise.

        Raises:
            InputError: when there is no such charge.
            UnderstudyError: when the charge was released or its source purged: the salt is gone for good.
        """
        return self._tables.run(
            "material", lambda connection: charges.start(connection, self._tables, charge_id, part=part)
        )

    def note_query(self, charge_id: str, call: str, tag: bytes) -> bytes:
        """Notes, before its noise is drawn, which query a call is made with that may be made with one query only.

        Args:
            charge_id: of a reserved charge.
            call: which of its calls.
            tag: keyed digest of the query.

        Returns:
            The tag that stands: that of the first query, whichever process asked it, on whichever machine.

        Raises:
            InputError: when there is no such charge.
            UnderstudyError: when the charge was released or its source purged.
        """

        def work(connection: sa.Connection) -> str:
            return charges.note_query(connection, self._tables, charge_id, call=call, tag=tag.hex())

        return bytes.fromhex(self._tables.run("note_query", work))

    def restarts(self, charge_id: str) -> int:
        """How often a part of the mechanism of a charge was started again after its first start.

        Raises:
            InputError: when there is no such charge.
        """

        def work(connection: sa.Connection) -> int:
            queries.get_charge(connection, charge_id)
            return queries.restarts(connection, charge_id)

        return self._tables.run("restarts", work)

    def release(self, charge_id: str) -> Charge:
        """Closes a charge after its last draw: erases the salt. The same again changes nothing.

        Raises:
            InputError: when there is no such charge.
        """
        return self._tables.run("release", lambda connection: charges.close(connection, self._tables, charge_id))

    # Keys

    def hmac(self, name: str, data: bytes) -> bytes:
        """HMAC-SHA256 under a source's own key: compares private content without a digest anyone could guess.

        Raises:
            InputError: when there is no such source.
        """
        query = sa.select(SOURCES.c.wrapped_key).where(SOURCES.c.name == name)

        def work(connection: sa.Connection) -> object:
            queries.get_source(connection, name)
            return connection.execute(query).scalar_one()

        key = keys.unwrap(self._tables.secret, self._tables.run("hmac", work), name=f"source/{name}")
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
        return hmac.digest(keys.derive(self._tables.root_key, "unit"), framed, "sha256")

    def request_key(self, *parts: str | bytes) -> str:
        """A keyed digest of what makes a request; the same parts give the same key, also after a rotation."""
        encoded = [b"s" + part.encode() if isinstance(part, str) else b"b" + part for part in parts]
        data = b"".join(len(part).to_bytes(8) + part for part in encoded)
        return hmac.digest(keys.derive(self._tables.root_key, "request"), data, "sha256").hex()

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
            vault.rewrap(connection, old=self._tables.secret, new=fresh, now=self._tables.now())
            self._tables.append(connection, "rotate", fresh_id)

        self._tables.run("rotate", work)
        self._tables.secret = fresh
        return fresh_id
