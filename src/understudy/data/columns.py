"""Columns of a user's table as text: what is no text is refused by its row's number, never by its content."""

from collections.abc import Container

import pyarrow as pa

from understudy.errors import InputError, RowError

# Beside a table as it was read: where in its file the names of columns stand, in words. Not for Parquet.
NAMES_STAND = b"understudy.names-stand"
# There, of a file whose rows hold the names: which there are, and how many, says something of single rows.
IN_EACH_ROW = "each line of a JSONL file holds the names beside its values"


def text_columns(table: pa.Table) -> list[str]:
    """The columns that hold what a person wrote; a row that lacks the first of them is the null record."""
    return ["instruction", "response"] if "instruction" in table.column_names else ["text"]


def label_values(table: pa.Table, name: str) -> list[str | None]:
    """The values of a column of labels, as text."""
    require(table, name, option="--label-column")
    kind = table.schema.field(name).type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return [None if value is None else str(value).lower() for value in table[name].to_pylist()]
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        raise RowError(
            f"column {name!r}: expected labels that are text, whole numbers or booleans, found {kind}; convert the "
            "column to whole numbers or to strings"
        )
    return decoded(table, name, option="--label-column")


def blank(text: str) -> str:
    """What a text without a word is called."""
    return "white space" if text else "an empty text"


def strings(table: pa.Table, name: str, *, null_rows: Container[int] = (), option: str | None = None) -> pa.Array:
    """A column of strings; null only in `null_rows`."""
    values = decoded(table, name, option=option)
    for row, value in enumerate(values):
        if value is None and row not in null_rows:
            raise RowError(f"column {name!r}, row {row}: expected text, found null; fill or remove the row")
    return pa.array(values, pa.string())


def decoded(table: pa.Table, name: str, *, option: str | None = None) -> list[str | None]:
    """The values of a string column; a bad byte is a `RowError`."""
    require(table, name, option=option)
    column = table[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_null(kind):  # as a reader types a column without a value
        return [None] * table.num_rows
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        row = next((i for i, value in enumerate(column.to_pylist()) if value is not None), 0)
        found = str(kind).partition("<")[0]  # a nested type can be as long as the row
        raise RowError(f"column {name!r}, row {row}: expected text, found {found}; convert the column to strings")
    values: list[str | None] = []
    for row, raw in enumerate(column.cast(pa.large_binary()).to_pylist()):
        try:
            values.append(None if raw is None else raw.decode())
        except UnicodeDecodeError as error:
            raise RowError(
                f"column {name!r}, row {row}: expected UTF-8, found an invalid byte at offset {error.start}"
            ) from None
    return values


def alike(name: str, other: str) -> bool:
    """Whether two names differ in case or in the white space around them alone."""
    return name.strip().casefold() == other.strip().casefold()


def require(table: pa.Table, name: str, *, option: str | None = None) -> None:
    """Refuse a table without rows, or without exactly one column of this name.

    The message names no column that was found: in a file without a header they are the words of a row. Where each row
    has its own, it does not say how many there are either.

    Args:
        table: as read.
        name: of the column.
        option: that names the column on the command line, if there is one.

    Raises:
        InputError: there is no such column, or there are several.
        RowError: there is no row, or one has a column of nearly that name, where each row has its own.
    """
    if table.num_rows == 0:
        raise RowError("expected at least one row, found an empty table")
    place = (table.schema.metadata or {}).get(NAMES_STAND, b"").decode()
    found = table.column_names.count(name)
    if found != 1:
        if not found and any(alike(name, column) for column in table.column_names):
            raise (RowError if place == IN_EACH_ROW else InputError)(
                f"expected one column {name!r}, found one whose name differs in case or white space alone; "
                + (f"give its name with {option} as the file has it" if option else "rename it")
            )
        remedy = f"name another with {option}" if option else "rename one"
        hint = f"; {place}" if place else ""
        raise InputError(
            f"expected one column {name!r}, found {found or 'none'} of that name{among_columns(table)}; {remedy}{hint}"
        )


def among_columns(table: pa.Table) -> str:
    """How many columns there are, in words for behind a name; nothing where each row has its own."""
    if (table.schema.metadata or {}).get(NAMES_STAND, b"").decode() == IN_EACH_ROW:
        return ""
    count = len(table.column_names)
    return f" among {count} column{'' if count == 1 else 's'}"
