"""Which rows and clients belong to which source, as keyed hashes, inside one of the ledger's transactions.

An entry of the chain records for each source how many hashes there are and the sum of a second keyed hash of each, so
that none can be removed or exchanged unnoticed. The number is compared whenever rows are looked up, the sum, which
takes longer, in a check of everything.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa

from understudy.errors import RowError
from understudy.privacy.ledger import secret as keys
from understudy.privacy.ledger.chain import Tampered
from understudy.privacy.ledger.database import CHAIN, ROWS

# What it is of ("row" or "client"), the row's index, the keyed hash.
Hashes = list[tuple[str, int, bytes]]

# Below the number of parameters that either database takes in one statement.
_AT_ONCE: Final = 10_000


def owners(connection: sa.Connection, hashes: Hashes) -> dict[bytes, str]:
    """The source under which each of these keyed hashes is noted, for those that are."""
    found: dict[bytes, str] = {}
    for begin in range(0, len(hashes), _AT_ONCE):
        part = [keyed for _, _, keyed in hashes[begin : begin + _AT_ONCE]]
        query = f"SELECT keyed_hash, source FROM {ROWS.name} WHERE keyed_hash IN ({_marks(connection, len(part))})"
        found.update((bytes(keyed), owner) for keyed, owner in connection.exec_driver_sql(query, tuple(part)))
    return found


def known(connection: sa.Connection, name: str, hashes: Hashes) -> set[bytes]:
    """Which of these keyed hashes are noted already, all of them under the source `name`.

    Raises:
        RowError: naming the first row that belongs to another source, or whose client does.
    """
    noted = owners(connection, hashes)
    for kind, index, found in hashes:
        owner = noted.get(found, name)
        if owner != name and kind == "row":
            raise RowError(
                f"row {index} of source={name!r} is registered under {owner!r} already, or differs from one that is in "
                f"punctuation, case or white space only: use --source {owner}, whose budget counts for it, or leave "
                "the row out"
            )
        if owner != name:
            raise RowError(
                f"row {index} of source={name!r} is of a client registered under {owner!r} already: use --source "
                f"{owner}, whose budget counts for this client, or leave its rows out. If they are different clients "
                "of one number, give them identifiers that tell them apart"
            )
    return set(noted)


def note(connection: sa.Connection, name: str, hashes: Hashes) -> int:
    """Notes that these keyed hashes belong to a source, and gives how many are new.

    Raises:
        RowError: as `known`.
    """
    # In order of the primary key, which spares the database most of its page splits.
    new = sorted({found for _, _, found in hashes} - known(connection, name, hashes))
    if new:
        insert = f"INSERT INTO {ROWS.name} (keyed_hash, source) VALUES ({_marks(connection, 2)})"
        connection.exec_driver_sql(insert, [(row, name) for row in new])
    return len(new)


def recount(connection: sa.Connection, root_key: bytes, name: str) -> dict[str, Any]:
    """The number of a source's hashes and the sum of their second hashes, as the chain records them."""
    query = sa.select(ROWS.c.keyed_hash).where(ROWS.c.source == name)
    return _summed(connection.execute(query).scalars(), keys.derive(root_key, "rows in the chain"))


def check_counts(connection: sa.Connection) -> None:
    """Compare the number of hashes with what the chain records, after the chain was checked.

    Raises:
        Tampered: naming the source.
    """
    query = sa.select(ROWS.c.source, sa.func.count()).group_by(ROWS.c.source)
    found = dict(connection.execute(query).tuples().all())
    told = _recorded(connection)
    for name in sorted(set(found) | set(told), key=str):  # SQLite keeps whatever is written into a column
        if found.get(name, 0) != told.get(name, {"count": 0})["count"]:
            raise Tampered(f"the rows of the source {name!r} are not all that were noted")


def check_all(connection: sa.Connection, root_key: bytes) -> None:
    """Compare every hash with what the chain records, after the chain was checked.

    Raises:
        Tampered: naming the source.
    """
    check_counts(connection)
    for name, told in _recorded(connection).items():
        if recount(connection, root_key, name) != told:
            raise Tampered(f"the rows of the source {name!r} are not those that were noted")


def _recorded(connection: sa.Connection) -> dict[str, dict[str, Any]]:
    """Source -> what its last entry records."""
    query = sa.select(CHAIN.c.subject, CHAIN.c.content).where(CHAIN.c.kind == "rows").order_by(CHAIN.c.number)
    return {name: json.loads(content) for name, content in connection.execute(query)}


def _summed(hashes: Iterable[bytes], key: bytes) -> dict[str, Any]:
    # The summands are unknown without the key, so no other set of hashes with the same sum can be looked for.
    count = total = 0
    for found in hashes:
        count += 1
        # What was written by hand has any form, and counts as another hash.
        keyed = found if isinstance(found, bytes) else b""
        total += int.from_bytes(hmac.digest(key, keyed, "sha256"))
    return {"count": count, "sum": f"{total % 2**256:064x}"}


def _marks(connection: sa.Connection, count: int) -> str:
    """Placeholders in the driver's own style: for many rows SQLAlchemy's would take most of the time."""
    return ",".join(["?" if connection.dialect.paramstyle == "qmark" else "%s"] * count)
