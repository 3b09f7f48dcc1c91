"""What becomes of a unit: whether it is trained on or measured on, and where it stands among those trained on.

It hangs on that unit alone: of a row, on its slot, which is its place in the file; of a client, on its identifier. So a
unit that is removed, or replaced by the null record, moves no other, and everything public is a function of the
declared number of units (ADR 0014).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from understudy.data import tables
from understudy.data.tables import RowKind
from understudy.errors import RowError

KeyedHash = Callable[[str, bytes], bytes]

# One unit in ten is measured on, not trained on, unless --test names other rows.
HOLD_OUT_EVERY: Final = 10
# Of clients, of whom no number can be fixed, this many are expected at least, of up to half of those declared.
HELD_OUT_CLIENTS: Final = 8
NOUNS: Final[dict[RowKind, str]] = {"labelled": "row", "texts": "row", "clients": "client", "instructions": "row"}


def hold_out_note(kind: RowKind, units: int, *, has_test: bool) -> str:
    """Which units are measured on, in words; public.

    Args:
        kind: of the rows.
        units: declared number of them.
        has_test: whether --test names what is measured on, so that nothing is held out.
    """
    noun = NOUNS[kind]
    if has_test:
        return f"no {noun} is held out: utility is measured on the {noun}s of --test"
    if kind == "clients":
        return (
            f"{_client_share(units):.0%} of clients, in the mean, are held out to measure utility, not trained on: a "
            f"keyed hash of each {noun} decides about that {noun}; --test names other {noun}s instead"
        )
    return (
        f"one {noun} of every ten is held out to measure utility, not trained on: a keyed hash decides which place "
        f"of the ten; --test names other {noun}s instead"
    )


def clients_of(table: pa.Table) -> list[str]:
    """Every client once."""
    found: list[str] = pc.unique(table["client_id"]).to_pylist()
    return found


def held_out(
    whole: pa.Table,
    identifiers: list[str] | None,
    kind: RowKind,
    *,
    found: int,
    units: int,
    keyed_hash: KeyedHash,
) -> pa.Array:
    """Which rows of the file are measured on; each is decided by its slot or client alone."""
    if found < HOLD_OUT_EVERY:
        raise RowError(
            f"{found} {NOUNS[kind]}s: expected at least {HOLD_OUT_EVERY}, of which about one in ten is held out; "
            f"bring more {NOUNS[kind]}s, or name others to measure on with --test"
        )
    if identifiers is None:
        return pa.array([row_is_held_out(slot, keyed_hash) for slot in range(found)])
    out = {name for name in identifiers if client_is_held_out(name, units=units, keyed_hash=keyed_hash)}
    return pa.array([client in out for client in whole["client_id"].to_pylist()])


def row_is_held_out(slot: int, keyed_hash: KeyedHash) -> bool:
    """One slot of every ten: a function of the slot and the key, whatever the rows hold."""
    ten, place = divmod(slot, HOLD_OUT_EVERY)
    word = int.from_bytes(keyed_hash("hold-out/rows", ten.to_bytes(8))[:8])
    return place == word % HOLD_OUT_EVERY


def client_is_held_out(identifier: str, *, units: int, keyed_hash: KeyedHash) -> bool:
    """A coin of the client's own: a function of its identifier, the declared number of clients and the key."""
    word = int.from_bytes(keyed_hash("hold-out/client", _name(identifier))[:8])
    return word < _client_share(units) * 2**64


def unit_id(identifier: str, keyed_hash: KeyedHash) -> bytes:
    """What a client takes part by, 16 bytes: a keyed hash of its identifier."""
    return keyed_hash("unit-id", _name(identifier))[: tables.UNIT_ID_BYTES]


def _name(identifier: str) -> bytes:
    """One client is one look of its identifier, in this file and the next."""
    return tables.normalise(identifier).encode()


def _client_share(units: int) -> float:
    """How many of the clients are held out, in the mean: more of a few, so that hardly ever none is; public."""
    return max(1 / HOLD_OUT_EVERY, min(1 / 2, HELD_OUT_CLIENTS / units))


def slotted(whole: pa.Table, held: pa.Array, units: int) -> pa.Table:
    """One row per slot: null where it is held out, and at the end where the file has fewer rows than declared."""
    columns = []
    for column in whole.schema:
        kept = pc.if_else(held, pa.scalar(None, column.type), whole[column.name].combine_chunks())
        columns.append(pa.concat_arrays([kept, pa.nulls(units - whole.num_rows, column.type)]))
    return pa.table(columns, schema=whole.schema)


def by_id(whole: pa.Table, held: pa.Array, keyed_hash: KeyedHash) -> pa.Table:
    """The rows of the clients trained on, client by client in the order of their ids: the file's order moves nothing.

    A client's own rows keep their order.
    """
    kept = whole.filter(pc.invert(held))
    ids = {client: unit_id(client, keyed_hash) for client in clients_of(kept)}
    of_rows = [ids[client] for client in kept["client_id"].to_pylist()]
    column = pa.array(of_rows, pa.binary(tables.UNIT_ID_BYTES))
    order = sorted(range(len(of_rows)), key=of_rows.__getitem__)
    return kept.append_column(tables.UNIT_ID, column).take(pa.array(order, pa.int64())).combine_chunks()
