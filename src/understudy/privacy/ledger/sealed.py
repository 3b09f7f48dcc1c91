"""The ledger's tables, changed in whole transactions that find and leave them as their chain and head say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import sqlalchemy as sa

from understudy.errors import InputError, UnderstudyError
from understudy.privacy.ledger import chain, rows
from understudy.privacy.ledger import secret as keys
from understudy.privacy.ledger import stored_secrets as vault
from understudy.privacy.ledger.database import create_tables, open_engine, shown, transact
from understudy.privacy.ledger.head import EntriesLost, Head

T = TypeVar("T")


class SealedTables:
    """Tables that belong to a secret; every change is an entry of the chain, whose head is kept apart.

    Attributes:
        secret: the current one of the client zone.
        root_key: behind the chain and all keyed hashes; it outlives rotation.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: bytes,
        head: Head | None,
        accept_loss: bool,
        reread: Callable[[], bytes] | None,
        clock: Callable[[], datetime],
        on_step: Callable[[str], None],
    ) -> None:
        """Opens the tables, and makes them where there are none; the arguments are `Ledger`'s."""
        self.secret = keys.check_secret(secret)
        self._reread = reread
        self._head = head
        self._clock = clock
        self._on_step = on_step
        self._engine = open_engine(url)
        create_tables(self._engine)
        self.root_key = self._transact(lambda connection: self._found_or_read(connection, accept_loss))
        if accept_loss:
            self.run("accept_loss", self._accept_loss, check_head=False)
        self.run("open", lambda _: None)

    def run(self, operation: str, work: Callable[[sa.Connection], T], *, check_head: bool = True) -> T:
        """One transaction, in which the ledger still belongs to our secret and is as its chain and its head say."""

        def checked(connection: sa.Connection) -> tuple[T, chain.Tip, set[str]]:
            vault.require_current_secret(connection, self.secret)
            found = self._verified(connection, check_head=check_head)
            self._on_step(f"{operation}:begun")
            result = work(connection)
            self._on_step(f"{operation}:written")
            return result, chain.tip(connection), found.accepted

        result, tip, accepted = self._transact(checked)
        self._on_step(f"{operation}:committed")
        if self._head is not None:
            self._head.advance(tip, accepted=accepted)
        return result

    def _transact(self, work: Callable[[sa.Connection], T]) -> T:
        """One transaction; begun again where another process rotated the secret since it was read here."""
        while True:
            try:
                return transact(self._engine, work)
            except vault.SecretReplaced:
                fresh = self.secret if self._reread is None else self._reread()
                if fresh == self.secret:
                    raise
                self.secret = keys.check_secret(fresh)

    def append(self, connection: sa.Connection, kind: chain.Kind, subject: str, **content: Any) -> None:
        """Adds an entry to the chain, in the transaction of the change that it speaks of."""
        chain.append(connection, self.root_key, kind, subject, **content)

    def now(self) -> str:
        """The time that a new entry carries."""
        return self._clock().astimezone(UTC).isoformat(timespec="seconds")

    def check_rows(self, connection: sa.Connection) -> None:
        """Refuses rows that are not as many as the chain says."""
        self._untampered(lambda: rows.check_counts(connection))

    def verify(self) -> None:
        """Checks everything: the chain, the tables, the head, and the hashes of all rows."""
        self.run("verify", lambda connection: self._untampered(lambda: rows.check_all(connection, self.root_key)))

    def losses(self) -> tuple[Mapping[str, Any], ...]:
        """Every time that lost entries were accepted."""
        return self.run("losses", lambda connection: tuple(chain.verify(connection, self.root_key).losses))

    def _found_or_read(self, connection: sa.Connection, accept_loss: bool) -> bytes:
        if self._head is not None and not accept_loss and not vault.is_founded(connection):
            self._head.check_empty(f"the ledger {self._name} is empty")
        return self._untampered(lambda: vault.found_or_read_root_key(connection, self.secret, now=self.now()))

    def _accept_loss(self, connection: sa.Connection) -> None:
        """Records what the head speaks of and the chain does not hold."""
        found = self._verified(connection, check_head=False)
        try:
            if self._head is not None:
                self._head.check(found)
        except EntriesLost as lost:
            entries, mac = (lost.head.entries, lost.head.mac) if lost.head else (None, None)
            left = len(found.macs)
            self.append(connection, "loss", "", at=self.now(), entries=entries, mac=mac, left=left)
            return
        raise InputError("expected a ledger that lost entries, found one that is whole: nothing is to be accepted")

    def _verified(self, connection: sa.Connection, *, check_head: bool = True) -> chain.Chain:
        found = self._untampered(lambda: chain.verify(connection, self.root_key))
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
        return shown(self._engine.url)
