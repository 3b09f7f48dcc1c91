"""What an exported Parquet file says of itself wherever it is taken, and whether that is still true of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.artifacts.manifest import CONTENT_ID
from understudy.data.digests import canonical_digest

# In the metadata: the id of what the file holds, that of what its run released, and the sha256 of its rows.
ARTIFACT = "understudy.artifact"
RELEASED = "understudy.released"
CONTENT = "understudy.content"


def with_origin(table: pa.Table, ids: Mapping[str, str]) -> pa.Table:
    """An exported table with its ids, and with a digest of the rows that they are of.

    Rows that are private get no digest: whoever is handed a part of the file could test guesses at the rest with it.
    """
    is_released = all(map(CONTENT_ID.fullmatch, ids.values()))
    digest = {CONTENT: canonical_digest(table).hex()} if is_released else {}
    return table.replace_schema_metadata({**ids, **digest})


def change_of(file: Path) -> str:
    """What is to be said of a Parquet file that names a released artifact but is not known to hold its rows, or "".

    Whoever filters a table keeps its metadata.
    """
    named = named_in(file, ARTIFACT) or named_in(file, RELEASED)
    if named is None or not CONTENT_ID.fullmatch(named):
        return ""
    try:
        is_as_written = named_in(file, CONTENT) == canonical_digest(_as_written(pq.read_table(file))).hex()
    except (OSError, pa.ArrowException):  # damaged: whoever reads it refuses it
        is_as_written = False
    if is_as_written:
        return ""
    return (
        f"{file} names artifact {named}, but its rows are not those that were written there: it was filtered "
        "or rewritten since, or an earlier version wrote it"
    )


def _as_written(table: pa.Table) -> pa.Table:
    """The same rows with their texts as plain strings: programs keep them as dictionaries or long strings too."""
    schema = table.schema
    for place, field in enumerate(schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_string(kind):
            schema = schema.set(place, field.with_type(pa.string()))
    return table.cast(schema)


def named_in(file: Path, name: str) -> str | None:
    """The id that an exported Parquet file has under a name in its metadata; None of any other file."""
    try:
        found = (pq.read_schema(file).metadata or {}).get(name.encode())
    except (OSError, pa.ArrowException):
        return None
    return None if found is None else str(found, "ascii", "replace")
