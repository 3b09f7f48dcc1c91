"""The private table as a run takes it: read, checked for its kind, split into units trained on and units held out.

A table is of one of three kinds: labelled texts, bare texts, or the documents of clients. The split reads slot
numbers, never content; of clients, a slot is a client in the order of first appearance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from understudy import records
from understudy.errors import InputError
from understudy.privacy.ledger import SourceRecord
from understudy.requests import RunRequest

RowKind = Literal["labelled", "texts", "clients"]

# Slots whose index ends in 9 are measured on, not trained on, unless --test names other rows.
HOLD_OUT_EVERY = 10
NOUNS: dict[RowKind, str] = {"labelled": "row", "texts": "row", "clients": "client"}


@dataclass(frozen=True)
class Intake:
    """Checked tables of one source, private, beside what is public about them.

    Attributes:
        whole: every row of the file.
        train: rows that are trained on.
        test: rows for measuring only.
        units: rows, or clients, in `whole`.
        trained: rows, or clients, in `train`; the n of the run.
        label_names: declared labels; empty for a kind without.
        notes: what was assumed; shown to the user.
    """

    whole: pa.Table
    train: pa.Table
    test: pa.Table
    units: int
    trained: int
    label_names: tuple[str, ...]
    notes: tuple[str, ...]


def take_in(request: RunRequest, kind: RowKind, known: SourceRecord | None) -> Intake:
    """Read, check and split the table of a request.

    Raises:
        InputError: the table is not of this kind or too small; the message says how to mend it.
        RowError: one row is wrong; with its index, never its text.
    """
    table = records.read_source(request.data)
    names, notes = _label_names(request, table, known) if kind == "labelled" else ((), [])
    whole, declared = _checked(request, kind, table, names)
    slots = _slots(whole, kind)
    units = max(slots) + 1
    if request.test is not None:
        test, _ = _checked(request, kind, records.read_source(request.test), names)
        _check_spoken(test)
        note = f"utility is measured on the {NOUNS[kind]}s of --test"
        return Intake(whole, whole, test, units, units, declared, (*notes, note))
    if units < HOLD_OUT_EVERY:
        raise InputError(
            f"{units} {NOUNS[kind]}s: expected at least {HOLD_OUT_EVERY}, of which every tenth is held out; "
            f"bring more {NOUNS[kind]}s, or name others to measure on with --test"
        )
    held = pa.array([slot % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1 for slot in slots])
    note = (
        f"every tenth {NOUNS[kind]} is held out to measure utility, not trained on; "
        f"--test names other {NOUNS[kind]}s instead"
    )
    train, test = whole.filter(pc.invert(held)), whole.filter(held)
    _check_spoken(test)
    return Intake(whole, train, test, units, units - units // HOLD_OUT_EVERY, declared, (*notes, note))


def _check_spoken(test: pa.Table) -> None:
    """Refuse, before anything is charged, held-out rows that nothing could be measured on."""
    if not any(text.strip() for text in test["text"].to_pylist()):
        raise InputError(
            "rows to measure on: expected a text in at least one of them, found white space in all; "
            "name others with --test"
        )


def _checked(
    request: RunRequest, kind: RowKind, table: pa.Table, names: tuple[str, ...] | dict[str, str]
) -> tuple[pa.Table, tuple[str, ...]]:
    """The checked table and the names of its labels."""
    if kind == "clients":
        columns = records.ClientColumns(client=request.client_column, text=request.text_column)
        return records.check_clients(table, columns).table, ()
    if kind == "texts":
        return records.check_texts(table, request.text_column), ()
    labelled = records.LabelledColumns(text=request.text_column, label=request.label_column, label_names=names)
    rows = records.check_labelled(table, labelled)
    return rows.table, rows.label_names


def _slots(table: pa.Table, kind: RowKind) -> list[int]:
    """The unit that each row belongs to, counted from 0 in the order of first appearance."""
    if kind != "clients":
        return list(range(table.num_rows))
    slot_of: dict[str, int] = {}
    return [slot_of.setdefault(client, len(slot_of)) for client in table["client_id"].to_pylist()]


def _label_names(
    request: RunRequest, table: pa.Table, known: SourceRecord | None
) -> tuple[tuple[str, ...] | dict[str, str], list[str]]:
    """The declared labels: from the request, else as registered, else those in the file, thereby made public."""
    registered = known.label_names if known is not None else None
    if request.label_names is not None:
        given = tuple(dict.fromkeys(request.label_names.values()))
        if registered is not None and given != registered:
            raise InputError(
                f"--label-names {list(given)}: source {request.source!r} is registered with {list(registered)}; "
                "use those names in that order"
            )
        return request.label_names, []
    if registered is not None:
        return registered, []
    names = records.labels_found(table, request.label_column)
    return names, [f"label list taken from the file and declared public: {', '.join(names)}"]
