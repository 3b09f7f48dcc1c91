"""The head of the ledger's chain, kept apart from the database: it tells when the end was cut off.

The head is the number of entries and the last one's HMAC, in a file beside the secret. It is written after the
transaction that it speaks of is on the disk, and read inside the next one, so it names an entry that the chain must
hold. A kill in between leaves it behind, never ahead; the next operation brings it up. It is announced, with no
entries, before a secret is made: a secret without a head had a ledger once.

Nothing here can tell when database and head are put back together from an older backup.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from understudy.durable import write_atomically
from understudy.errors import UnderstudyError
from understudy.locks import locked
from understudy.owner_only import remedy
from understudy.privacy.ledger.chain import Chain, Tip
from understudy.privacy.ledger.database import parse_url


class EntriesLost(UnderstudyError):
    """The ledger holds less than its head says that it held.

    Attributes:
        head: what the head says; None when it is gone itself.
    """

    def __init__(self, found: str, head: Tip | None) -> None:
        super().__init__(
            f"{found}: charges that were made may be missing, and their budget would be spent again. Put the newest "
            "backup back (ledger, `ledger.head` and `secret` of one UNDERSTUDY_HOME belong together). If there is "
            "none, `understudy ledger accept-loss` goes on with what is left and records for ever that entries are "
            "missing: give no source a budget then from which you have not taken off what was spent"
        )
        self.head = head


@dataclass(frozen=True)
class Head:
    """The file that keeps a head.

    Attributes:
        path: of the file.
        required: whether a ledger without it is refused. It is where the secret is a file beside it; a secret of the
            environment may stand in a home that is new.
    """

    path: Path
    required: bool

    def read(self) -> Tip | None:
        """What the file says, None when there is none.

        Raises:
            UnderstudyError: when it cannot be read or holds something else.
        """
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            return Tip(int(found["entries"]), str(found["mac"]))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnderstudyError(
                f"the ledger's head {self.path} cannot be read: {error.strerror}; {remedy(self.path)}"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise UnderstudyError(
                f"expected the number of entries and an HMAC in {self.path}, found something else: restore it from a "
                "backup, or remove it and run `understudy ledger accept-loss`"
            ) from None

    def announce(self) -> None:
        """Say that a ledger is about to be founded, unless a head is there."""
        with locked(self._lock):
            if self.read() is None:
                self._write(Tip(0, ""))

    def check_file(self, url: str) -> None:
        """Refuse a SQLite ledger that was deleted, before an empty one is made in its place.

        Raises:
            EntriesLost: when the head speaks of entries, or is gone as well beside a secret.
        """
        parsed = parse_url(url)
        if parsed.get_backend_name() != "sqlite" or not parsed.database or Path(parsed.database).exists():
            return
        self.check_empty(f"the ledger {parsed.database} is gone")

    def check_empty(self, found: str) -> None:
        """Refuse to found a ledger where there was one.

        Args:
            found: what the error begins with.

        Raises:
            EntriesLost: when the head speaks of entries, or is gone where it is required.
        """
        stored = self.read()
        if stored is None and self.required:
            raise EntriesLost(f"{found}, and so is its head {self.path}, beside a secret that had them", None)
        if stored is not None and stored.entries:
            raise EntriesLost(f"{found}, its head {self.path} speaks of {stored.entries} entries", stored)

    def check(self, chain: Chain) -> None:
        """Refuse a chain that does not hold the head. Call it inside the transaction that read the chain.

        Raises:
            EntriesLost: when it was cut short or belongs to another ledger, or a required head is gone.
        """
        stored = self.read()
        if stored is None:
            if self.required:
                raise EntriesLost(f"the ledger's head {self.path} is gone", None)
        elif stored.entries and stored.mac not in chain.accepted:
            if stored.entries > len(chain.macs):
                found = f"the ledger has {len(chain.macs)} entries, its head {self.path} speaks of {stored.entries}"
                raise EntriesLost(found, stored)
            if chain.macs[stored.entries - 1].hex() != stored.mac:
                raise EntriesLost(f"the ledger is not the one that its head {self.path} speaks of", stored)

    def advance(self, tip: Tip, *, accepted: set[str]) -> None:
        """Note how far the chain goes, once that is on the disk; never steps back, but from an accepted loss."""
        if self.read() == tip:
            return
        with locked(self._lock):
            stored = self.read()
            if stored is None or stored.entries < tip.entries or stored.mac in accepted:
                self._write(tip)

    @property
    def _lock(self) -> Path:
        return self.path.with_name(f"{self.path.name}.lock")

    def _write(self, tip: Tip) -> None:
        write_atomically(self.path, json.dumps({"entries": tip.entries, "mac": tip.mac}).encode())
