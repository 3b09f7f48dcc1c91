"""What an exported file says of itself, after other programs have changed its rows."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.runs.file_origin import ARTIFACT, CONTENT, RELEASED, change_of, named_in, with_origin

TABLE = pa.table({"text": ["one", "two", "three"], "label": ["a", "b", "a"]})
PUBLIC, PRIVATE = "f" * 64, "0" * 32


@pytest.fixture
def file(tmp_path):
    return tmp_path / "rows.parquet"


def recoded(table: pa.Table, *types: pa.DataType) -> pa.Table:
    """The same rows in other types, as other programs keep them."""
    fields = [field.with_type(kind) for field, kind in zip(table.schema, types, strict=True)]
    return pa.table(
        [column.combine_chunks().cast(kind) for column, kind in zip(table.columns, types, strict=True)],
        schema=pa.schema(fields, metadata=table.schema.metadata),
    )


@pytest.mark.parametrize("name", [ARTIFACT, RELEASED])
@pytest.mark.parametrize(
    ("change", "is_told"),
    [
        (lambda table: table, False),
        (lambda table: pa.concat_tables([table.slice(0, 1), table.slice(1)]), False),
        (lambda table: recoded(table, pa.large_string(), pa.dictionary(pa.int32(), pa.string())), False),
        (lambda table: recoded(table, pa.string_view(), pa.dictionary(pa.int8(), pa.large_string())), False),
        (lambda table: recoded(table.slice(1), pa.large_string(), pa.large_string()), True),
        (lambda table: table.slice(1), True),
        (lambda table: table.take([1, 0, 2]), True),
        (lambda table: table.select(["text"]), True),
        (lambda table: table.append_column("score", pa.array([1, 2, 3])), True),
        (lambda table: table.set_column(0, "text", pa.array(["one", "two", "four"])), True),
    ],
)
def test_rows_that_were_changed_are_told(file, name, change, is_told):
    pq.write_table(change(with_origin(TABLE, {name: PUBLIC})), file, compression="zstd")
    told = change_of(file)
    assert named_in(file, name) == PUBLIC, "Arrow keeps what the file says of itself"
    assert (PUBLIC in told, str(file) in told) == (is_told, is_told)


def test_a_file_without_a_digest_is_not_taken_at_its_word(file):
    pq.write_table(TABLE.replace_schema_metadata({ARTIFACT: PUBLIC}), file)
    assert "earlier version" in change_of(file)


def test_private_rows_get_no_digest(file):
    """Whoever is handed some of them could test guesses at the others."""
    pq.write_table(with_origin(TABLE, {ARTIFACT: PRIVATE, RELEASED: PRIVATE}), file)
    assert named_in(file, ARTIFACT) == PRIVATE
    assert named_in(file, CONTENT) is None
    assert change_of(file) == ""


@pytest.mark.parametrize("content", [None, b"no table"])
def test_of_a_file_that_names_nothing_nothing_is_told(file, content):
    if content is None:
        pq.write_table(TABLE, file)
    else:
        file.write_bytes(content)
    assert change_of(file) == ""
