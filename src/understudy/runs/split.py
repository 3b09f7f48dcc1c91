"""The private table as a run takes it: read, checked for its kind, split into units trained on and units held out.

A table is of one of four kinds: labelled texts, bare texts, instructions with responses, or the documents of clients.
What becomes of a unit hangs on that unit alone (`units`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from understudy.data import tables
from understudy.data.columns import text_columns
from understudy.data.readers import same_source
from understudy.data.samples import declared_labels
from understudy.data.tables import RowKind
from understudy.errors import InputError, RowError
from understudy.privacy.ledger.ledger import SourceRecord
from understudy.runs.request import RunRequest
from understudy.runs.units import HOLD_OUT_EVERY, NOUNS, KeyedHash, by_id, clients_of, held_out, hold_out_note, slotted

Names = tuple[str, ...] | dict[str, str]

# Every option that names a column, and what each kind of rows reads: any other would be ignored.
COLUMNS: Final[dict[RowKind, frozenset[str]]] = {
    "labelled": frozenset({"text_column", "label_column"}),
    "texts": frozenset({"text_column"}),
    "clients": frozenset({"text_column", "client_column"}),
    "instructions": frozenset({"instruction_column", "response_column", "system_column"}),
}
_READ: Final[dict[RowKind, str]] = {
    "labelled": "texts with labels",
    "texts": "texts without labels",
    "clients": "the texts of clients, without labels",
    "instructions": "instructions with responses, without labels",
}
LABELS_DISCLOSED: Final = (
    "the label list was read from the private rows (--labels-from-data) and is published: a label that a single row "
    "has is published with it, which no epsilon covers"
)


@dataclass(frozen=True)
class SplitRows:
    """Checked tables of one source, private, beside what is public about them.

    Attributes:
        whole: every row of the file.
        train: rows that are trained on. Of rows, one per slot, null where there is none, or one that is held out. Of
            clients, their rows with `unit_id`, a keyed hash of the client, in the order of these hashes.
        test: rows for measuring only.
        units: n of the run: the declared number of rows or clients; public.
        label_names: declared labels; empty for a kind without.
        labels_from_data: whether these were read from the rows.
        notes: what was assumed; shown to the user.
    """

    whole: pa.Table = field(repr=False)
    train: pa.Table = field(repr=False)
    test: pa.Table = field(repr=False)
    units: int
    label_names: tuple[str, ...]
    labels_from_data: bool
    notes: tuple[str, ...]


def load_and_split(
    request: RunRequest, kind: RowKind, known: SourceRecord | None, *, keyed_hash: KeyedHash
) -> SplitRows:
    """Read, check and split the table of a request.

    Args:
        request: what was asked.
        kind: of the rows.
        known: the source as registered, None on its first use.
        keyed_hash: (purpose, data) -> at least 16 bytes, under a key of the source: `Ledger.keyed_hash`.

    Raises:
        InputError: the table is not of this kind, or an option is for another; the message says how to fix it.
        RowError: one row is wrong, or they are too few, or more than declared; with an index or number, never a text.
    """
    _check_options(request, kind)
    table = tables.read_source(request.data)
    names, notes = _label_names(request, table, known) if kind == "labelled" else ((), [])
    whole, label_names = _checked(request, kind, table, names, null_records=True)
    identifiers = clients_of(whole) if kind == "clients" else None
    found = whole.num_rows if identifiers is None else len(identifiers)
    units, counted = declared_units(request, kind, known, found=found)
    if request.test is not None:
        test = _rows_to_measure_on(request, kind, whole, names)
        held = pa.array([False] * whole.num_rows)
    else:
        held = held_out(whole, identifiers, kind, found=found, units=units, keyed_hash=keyed_hash)
        test = _present(whole.filter(held))
    _check_not_empty(test)
    train = slotted(whole, held, units) if identifiers is None else by_id(whole, held, keyed_hash)
    _check_trained(train, kind)
    return SplitRows(
        whole=whole,
        train=train,
        test=test,
        units=units,
        label_names=label_names,
        labels_from_data=kind == "labelled" and _reads_labels(request, known),
        notes=(*notes, *counted, hold_out_note(kind, units, has_test=request.test is not None)),
    )


def _check_options(request: RunRequest, kind: RowKind) -> None:
    """Refuse what the user says of rows of another kind: it would be ignored, and the run charged all the same."""
    read = f"this method, or this variant of it, reads {_READ[kind]}"
    if kind != "labelled":
        for option, is_given in (
            ("--label-names", request.label_names is not None),
            ("--labels-from-data", request.labels_from_data),
        ):
            if is_given:
                raise InputError(
                    f"{option}: expected a method that reads labels, but {read}; leave {option} out, or choose a "
                    "method or a variant that reads labels"
                )
    if request.label_names is not None and request.labels_from_data:
        raise InputError(
            "--labels-from-data: expected no declared labels beside it, found --label-names; leave --labels-from-data "
            "out to use the declared list, or --label-names to publish the list that the rows have"
        )
    for name in sorted(frozenset().union(*COLUMNS.values()) - COLUMNS[kind]):
        if getattr(request, name) != RunRequest.model_fields[name].default:
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{option}: expected an option for the rows that are read, but {read}; leave {option} out, or "
                "choose a method or a variant that reads this column"
            )


def declared_units(
    request: RunRequest, kind: RowKind, known: SourceRecord | None, *, found: int
) -> tuple[int, list[str]]:
    """The declared number of units and what was assumed: --units, else as registered, else as many as there are.

    Raises:
        InputError: more units are declared than registered.
        RowError: there are more than declared.
    """
    noun = NOUNS[kind]
    if known is not None and found > known.n:
        raise RowError(
            f"{found} {noun}s: source {known.name!r} is registered with at most {known.n}, which delta and every "
            f"figure of its charges rest on; bring no more than {known.n}, or register the larger table under another "
            "name before its first run, with as many units as it may ever have"
        )
    if request.units is None:
        if known is not None:
            return known.n, []
        return found, [
            f"n={found} {noun}s were counted and are declared public, as an upper bound for every later run; --units "
            "declares a number without counting"
        ]
    if known is not None and request.units > known.n:
        raise InputError(
            f"--units {request.units}: source {known.name!r} is registered with at most {known.n}; leave --units out"
        )
    if found > request.units:
        raise RowError(
            f"--units {request.units}: found {found} {noun}s; declare an upper bound of what the file can ever hold"
        )
    return request.units, []


def _rows_to_measure_on(request: RunRequest, kind: RowKind, whole: pa.Table, names: Names) -> pa.Table:
    """The table of --test, which must not be that of --data, nor hold it, nor be a part of it.

    What was trained on would pass for never seen, and hide what is kept by heart.
    """
    assert request.test is not None
    refusal = (
        "--test: expected rows that nothing is trained on, found the rows of --data or most of them; name others, or "
        f"leave --test out to hold out about one {NOUNS[kind]} in {HOLD_OUT_EVERY}"
    )
    if same_source(request.data, request.test):
        raise InputError(refusal)
    test, _ = _checked(request, kind, tables.read_source(request.test), names, null_records=False)
    if tables.are_mostly_the_same(test, whole):
        raise RowError(refusal)
    return test


def _check_not_empty(test: pa.Table) -> None:
    """Refuse, before anything is charged, held-out rows that nothing could be measured on."""
    if not any(text.strip() for text in test[text_columns(test)[0]].to_pylist()):
        raise RowError(
            "rows to measure on: expected a text in at least one of them, found no row, or all of them empty or white "
            "space; name others with --test"
        )


def _check_trained(train: pa.Table, kind: RowKind) -> None:
    """Refuse, before anything is charged, a table of which nothing is left to train on."""
    if train[text_columns(train)[0]].null_count == train.num_rows:
        raise RowError(
            f"expected a {NOUNS[kind]} to train on, found none that is not held out; bring more, or name others to "
            "measure on with --test"
        )


def _checked(
    request: RunRequest, kind: RowKind, table: pa.Table, names: Names, *, null_records: bool
) -> tuple[pa.Table, tuple[str, ...]]:
    """The checked table and the names of its labels."""
    if kind == "clients":
        columns = tables.ClientColumns(client=request.client_column, text=request.text_column)
        return tables.check_clients(table, columns).table, ()
    if kind == "texts":
        return tables.check_texts(table, request.text_column, null_records=null_records, option=tables.TEXT_OPTION), ()
    if kind == "instructions":
        pairs = tables.InstructionColumns(
            instruction=request.instruction_column, response=request.response_column, system=request.system_column
        )
        return tables.check_instructions(table, pairs, null_records=null_records).table, ()
    if isinstance(names, tuple) and names != declared_labels(request.data):
        # Which value a name belongs to is known of a mapping, and of the card of a shipped sample.
        tables.refuse_positions(table, request.label_column, names)
    labelled = tables.LabelledColumns(text=request.text_column, label=request.label_column, label_names=names)
    rows = tables.check_labelled(table, labelled, null_records=null_records)
    return rows.table, rows.label_names


def _present(table: pa.Table) -> pa.Table:
    """The table without its null records."""
    return table.filter(table[text_columns(table)[0]].is_valid())


def _reads_labels(request: RunRequest, known: SourceRecord | None) -> bool:
    declared = request.label_names is not None or (known is not None and known.label_names is not None)
    return request.labels_from_data and not declared and declared_labels(request.data) is None


def _label_names(request: RunRequest, table: pa.Table, known: SourceRecord | None) -> tuple[Names, list[str]]:
    """The declared labels: from the request, else as registered, else those on the card of a shipped sample.

    They are public, so they are never read from the rows, unless the user asks for that in so many words.
    """
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
    on_card = declared_labels(request.data)
    if on_card is not None:
        return on_card, []
    if not request.labels_from_data:
        raise InputError(
            "--label-names is missing: the list of labels is published, so it is declared, not read from private rows; "
            f"give --label-names VALUE=NAME,... with every value of column {request.label_column!r}, for example "
            "--label-names 0=negative,1=positive (--labels-from-data reads the list from the rows and publishes it: "
            "a label that only one row has is published too)"
        )
    found = tables.labels_found(table, request.label_column)
    try:
        tables.declared_names(found)
    except InputError as error:  # nothing is published of rows that are refused
        raise RowError(str(error)) from None
    return found, [LABELS_DISCLOSED]
