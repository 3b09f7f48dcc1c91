"""Instructions with responses, one pair a row; a conversation of several turns is refused by a word that says so."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from pydantic import Field

from understudy.data.columns import blank, require, strings
from understudy.errors import RowError
from understudy.frozen import Frozen

INSTRUCTION_SCHEMA = pa.schema([("instruction", pa.string()), ("response", pa.string())])
SYSTEM = pa.field("system", pa.string())
_OPTIONS = ("--instruction-column", "--response-column", "--system-column")


class InstructionColumns(Frozen):
    """Where instruction and response are."""

    instruction: str = Field(default="instruction", description="Column with the instruction.")
    response: str = Field(default="response", description="Column with the response.")
    system: str | None = Field(default=None, description="Column with a system text, where there is one.")


@dataclass(frozen=True)
class InstructionRows:
    """Checked rows: columns `instruction` and `response`, and `system` if it was named; all strings."""

    table: pa.Table = field(repr=False)


def check_instructions(
    table: pa.Table, columns: InstructionColumns | None = None, *, null_records: bool = False
) -> InstructionRows:
    """Check a table of instructions and responses.

    Args:
        table: as read.
        columns: where they are; None for a table whose columns no option names.
        null_records: take a row whose instruction and response are both null as the null record, which keeps its slot.

    Raises:
        InputError: a column is missing.
        RowError: an instruction or a response is null, empty or not a string; with the row's index. Or there is no row,
            or rows are conversations of several turns.
    """
    options = _OPTIONS if columns is not None else (None, None, None)
    columns = columns or InstructionColumns()
    pair = (columns.instruction, columns.response)
    _refuse_conversations(table, [*pair, *([columns.system] if columns.system else [])])
    for name, option in zip(pair, options[:2], strict=True):
        require(table, name, option=option)
    missing = [set(_nulls(table, name)) for name in pair]
    null_rows = missing[0] & missing[1] if null_records else set()
    arrays = [strings(table, name, null_rows=null_rows) for name in pair]
    for name, values in zip(pair, arrays, strict=True):
        _refuse_silent(values.to_pylist(), name)
    checked = pa.table(arrays, schema=INSTRUCTION_SCHEMA)
    if columns.system is None:
        return InstructionRows(checked)
    system = strings(table, columns.system, null_rows=range(table.num_rows), option=options[2]).to_pylist()
    # Without a system text is the empty one; the null record has none.
    filled = [None if row in null_rows else text or "" for row, text in enumerate(system)]
    return InstructionRows(checked.append_column(SYSTEM, pa.array(filled, pa.string())))


def _nulls(table: pa.Table, name: str) -> list[int]:
    return [row for row, valid in enumerate(table[name].is_valid().to_pylist()) if not valid]


def _refuse_silent(values: list[str | None], name: str) -> None:
    for row, value in enumerate(values):
        if value is not None and not value.strip():
            raise RowError(f"column {name!r}, row {row}: expected text, found {blank(value)}; fill or remove the row")


def _refuse_conversations(table: pa.Table, wanted: list[str]) -> None:
    """Refuse a named column of lists, or, where a named one is missing, a table that has such a column."""
    nested = [field.name for field in table.schema if _is_nested(field.type)]
    found = [name for name in wanted if name in nested]
    if found or (nested and any(name not in table.column_names for name in wanted)):
        # A column that nobody named stays unnamed: what a file calls it may be private.
        where = f"column {found[0]!r}" if found else "a column of the table"
        raise RowError(
            f"{where}: expected one instruction and one response a row, found multi-turn data (a list of "
            "turns), which is not supported; write each pair of turns you want to protect as a row of two text columns"
        )


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_struct(kind))
