"""The tables that enter Understudy: their columns and their checks.

A checked table has fixed column names and Arrow types, whatever the user's file calls them. A refusal names
the row index, never the text. Labels are declared by the user, because the list of labels is public; it is
never read from the rows.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from understudy.data.columns import alike, label_values, require, strings
from understudy.data.digests import are_mostly_the_same, canonical_digest, client_digests, look, normalise, row_digests
from understudy.data.instructions import INSTRUCTION_SCHEMA, InstructionColumns, InstructionRows, check_instructions
from understudy.data.labels import (
    declared_names,
    label_indices,
    labels_found,
    parse_label_names,
    refuse_positions,
)
from understudy.data.readers import read_source
from understudy.errors import RowError
from understudy.frozen import Frozen

# What the rows of a table are: labelled texts, bare texts, the documents of clients, or instructions with responses.
RowKind = Literal["labelled", "texts", "clients", "instructions"]

__all__ = [
    "CLIENT_SCHEMA",
    "INSTRUCTION_SCHEMA",
    "LABELLED_SCHEMA",
    "SYNTHETIC_SCHEMA",
    "TEXT_SCHEMA",
    "UNIT_ID",
    "UNIT_ID_BYTES",
    "ClientColumns",
    "ClientRows",
    "InstructionColumns",
    "InstructionRows",
    "LabelledColumns",
    "LabelledRows",
    "RowKind",
    "are_mostly_the_same",
    "canonical_digest",
    "check_clients",
    "check_instructions",
    "check_labelled",
    "check_texts",
    "client_digests",
    "declared_names",
    "labels_found",
    "named_labels",
    "normalise",
    "parse_label_names",
    "read_source",
    "refuse_positions",
    "row_digests",
]

TEXT_OPTION, CLIENT_OPTION = "--text-column", "--client-column"
LABELLED_SCHEMA = pa.schema([("text", pa.string()), ("label", pa.int32())])
TEXT_SCHEMA = pa.schema([("text", pa.string())])
CLIENT_SCHEMA = pa.schema([("client_id", pa.string()), ("text", pa.string())])
# Beside a row of a client that is trained on: a keyed hash of its client alone, by which it takes part.
UNIT_ID = "unit_id"
UNIT_ID_BYTES = 16
# As programs write the whole numbers of a column in which a value was missing.
_POINTED = re.compile(r"[+-]?\d+\.0+")
# What leaves: labels by name, so that the file explains itself.
SYNTHETIC_SCHEMA = pa.schema([("text", pa.string()), ("label", pa.string())])


class LabelledColumns(Frozen):
    """Where text and label are, and the public list of labels."""

    text: str = Field(default="text", description="Column with the text.")
    label: str = Field(default="label", description="Column with the label: strings or integers.")
    label_names: tuple[str, ...] | dict[str, str] = Field(
        description="Declared labels: names in the order of their index, or value in the file -> name."
    )


class ClientColumns(Frozen):
    """Where the client's identifier and its text are."""

    client: str = Field(default="client_id", description="Column that says whose row it is.")
    text: str = Field(default="text", description="Column with the text.")


@dataclass(frozen=True)
class LabelledRows:
    """Checked rows: columns `text` (string) and `label` (int32, an index into `label_names`)."""

    table: pa.Table = field(repr=False)
    label_names: tuple[str, ...]


@dataclass(frozen=True)
class ClientRows:
    """Checked rows: columns `client_id` and `text`, both strings, in the order of the file."""

    table: pa.Table = field(repr=False)


def check_labelled(table: pa.Table, columns: LabelledColumns, *, null_records: bool = False) -> LabelledRows:
    """Check a labelled table.

    A tuple of names is matched by name in a string column; in an integer column it is matched by value when
    all names are integers, else by position. A mapping is matched by the value written in the file, in a column of
    booleans whatever its case.

    Args:
        table: as read.
        columns: where text and label are, and the declared labels.
        null_records: take a row whose text and label are both null as the null record, which keeps its slot.

    Raises:
        InputError: a column is missing, the table is empty, or fewer than two distinct labels are declared.
        RowError: a text is null or not a string, or a label is not declared; with the row's index.
    """
    names = declared_names(columns.label_names)
    values = label_values(table, columns.label)
    index_of = label_indices(columns.label_names, names, table.schema.field(columns.label).type)
    empty = {row for row, value in enumerate(values) if value is None} if null_records else set()
    texts = strings(table, columns.text, null_rows=empty, option=TEXT_OPTION)
    empty &= set(pc.indices_nonzero(texts.is_null()).to_pylist())
    labels = []
    for row, value in enumerate(values):
        index = index_of.get(value) if value is not None else None
        if index is None and row not in empty:
            raise RowError(
                f"column {columns.label!r}, row {row}: expected one of the declared labels {list(index_of)}, "
                f"found {_in_words(value, tuple(index_of))} with --label-names"
            )
        labels.append(index)
    checked = pa.table({"text": texts, "label": pa.array(labels, pa.int32())}, schema=LABELLED_SCHEMA)
    return LabelledRows(table=checked, label_names=names)


def _in_words(value: str | None, declared: tuple[str, ...]) -> str:
    """What an undeclared label is, never the value itself, and what to do."""
    if value is not None and _POINTED.fullmatch(value):
        return "a number with a decimal point, such as 1.0; write whole numbers, or declare labels as they are written"
    if value is not None and any(alike(value, one) for one in declared):
        return "one of them but for case or white space; write all rows alike, or declare it as well"
    return f"{'null' if value is None else 'another one'}; correct the row, or declare all labels"


def check_texts(
    table: pa.Table, column: str = "text", *, null_records: bool = False, option: str | None = None
) -> pa.Table:
    """Check a table of texts; the result has the one column `text`.

    Args:
        table: as read.
        column: where the text is.
        null_records: take a null text as the null record, which keeps its slot.
        option: that names the column on the command line, if there is one.

    Raises:
        InputError: the column is missing or the table is empty.
        RowError: a text is null or not a string; with the row's index.
    """
    null_rows = set(range(table.num_rows)) if null_records else set()
    return pa.table({"text": strings(table, column, null_rows=null_rows, option=option)}, schema=TEXT_SCHEMA)


def check_clients(table: pa.Table, columns: ClientColumns | None = None) -> ClientRows:
    """Check a table of clients' texts; integer identifiers become strings.

    A client is one identifier, so one person's rows must not stand under two: each would be protected as a client of
    its own. Identifiers that look the same are therefore refused, not merged.

    Raises:
        InputError: a column is missing, or the table is empty.
        RowError: an identifier or a text is null or of a wrong type, two identifiers differ only in case, white space,
            Unicode form, signs that look the same or characters that nobody sees, or a client has no text but white
            space; with the row's index. Or there are fewer than two clients.
    """
    columns = columns or ClientColumns()
    require(table, columns.client, option=CLIENT_OPTION)
    field = table.schema.field(columns.client)
    if pa.types.is_integer(field.type):
        table = table.set_column(
            table.schema.get_field_index(columns.client),
            columns.client,
            table[columns.client].cast(pa.string()),
        )
    clients = strings(table, columns.client, option=CLIENT_OPTION)
    texts = strings(table, columns.text, option=TEXT_OPTION)
    if len(clients.unique()) < 2:
        raise RowError(f"column {columns.client!r}: expected at least two clients, found one")
    _refuse_lookalikes(clients.to_pylist(), columns.client)
    _refuse_silent(clients.to_pylist(), texts.to_pylist(), columns.text)
    return ClientRows(table=pa.table({"client_id": clients, "text": texts}, schema=CLIENT_SCHEMA))


def _refuse_lookalikes(clients: Sequence[str], column: str) -> None:
    """Identifiers of one look are one identifier; the row named is the first of the second one."""
    looks: dict[str, tuple[str, int]] = {}
    for row, client in enumerate(clients):
        first, first_row = looks.setdefault(look(client), (client, row))
        if first != client:
            raise RowError(
                f"column {column!r}, row {row}: duplicate client ids: expected the identifier of row {first_row} or "
                "another, found one that differs from it only in case, white space, Unicode form, the kind of dash or "
                "quotation mark, letters of another script that look the same, or characters that nobody sees; a "
                "client under two identifiers would count twice, so write each client's in one way"
            )


def _refuse_silent(clients: Sequence[str], texts: Sequence[str], column: str) -> None:
    """Every client has a text; the row named is the client's first."""
    speaking = {client for client, text in zip(clients, texts, strict=True) if text.strip()}
    for row, client in enumerate(clients):
        if client not in speaking:
            raise RowError(
                f"column {column!r}, row {row}: expected a text of this client, found all its rows empty or white "
                "space; fill or remove them"
            )


def named_labels(table: pa.Table, label_names: tuple[str, ...]) -> pa.Table:
    """The synthetic table as it leaves: labels, where there are any, by name, so that the file explains itself."""
    if "instruction" in table.column_names:
        return table.select(INSTRUCTION_SCHEMA.names)
    if not label_names:
        return pa.table({"text": table["text"]}, schema=TEXT_SCHEMA)
    names = [label_names[index] for index in table["label"].to_pylist()]
    return pa.table({"text": table["text"], "label": pa.array(names, pa.string())}, schema=SYNTHETIC_SCHEMA)


def as_rows(synthetic: pa.Table, *, like: pa.Table, names: Sequence[str]) -> pa.Table:
    """Synthetic texts in the columns of a checked table; what they lack is an empty text.

    Args:
        synthetic: labels by name, or by index.
        like: the checked table.
        names: every label.
    """
    columns = {}
    for name in like.schema.names:
        values = synthetic[name].to_pylist() if name in synthetic.column_names else [""] * synthetic.num_rows
        if name == "label":
            values = [value if isinstance(value, int) else names.index(value) for value in values]
        columns[name] = values
    return pa.table(columns, schema=like.schema)
