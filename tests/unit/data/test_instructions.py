"""Instructions with responses as rows: columns, null records, and what is no pair."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.data.samples import generate
from understudy.data.tables import InstructionColumns, check_instructions, named_labels, read_source
from understudy.errors import InputError, RowError

TURNS = [[{"role": "user", "content": "the patient is Zibby"}, {"role": "assistant", "content": "b"}]] * 2


def pairs(instruction=("a", "b"), response=("c", "d"), **more) -> pa.Table:
    return pa.table({"instruction": pa.array(instruction), "response": pa.array(response), **more})


def test_a_system_text_is_a_column_of_its_own_if_it_was_named():
    table = pairs(("a", "b", None), ("c", "d", None), system=["be brief", None, "x"])
    assert check_instructions(pairs()).table.column_names == ["instruction", "response"]
    rows = check_instructions(table, InstructionColumns(system="system"), null_records=True).table
    assert rows["system"].to_pylist() == ["be brief", "", None], "without one it is empty; a null record has none"
    none = pairs(("a", "b"), ("c", "d"), system=pa.nulls(2))
    assert check_instructions(none, InstructionColumns(system="system")).table["system"].to_pylist() == ["", ""]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pairs(("a", None), ("b", "c")), "column 'instruction', row 1: expected text, found null"),
        (pairs(("a", "b"), ("c", None)), "column 'response', row 1: expected text, found null"),
        (
            pairs(("a", "b"), (None, None)),
            "column 'response', row 0: expected text, found null; fill or remove the row",
        ),
        (pairs(("a", "b"), ("c", " \n")), "column 'response', row 1: expected text, found white space"),
        (pairs(("a", ""), ("c", "d")), "column 'instruction', row 1: expected text, found an empty text"),
        (pairs(("a", "b"), (1, 2)), "column 'response', row 0: expected text, found int64"),
    ],
)
def test_half_a_pair_is_refused_by_its_row(table, message):
    with pytest.raises(RowError, match=message):
        check_instructions(table, null_records=True)


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"messages": TURNS}),
        pa.table({"instruction": ["a", "b"], "conversations": TURNS}),
        pa.table({"instruction": TURNS, "response": ["a", "b"]}),
    ],
)
def test_conversations_are_refused_with_the_word_for_them(table):
    with pytest.raises(InputError, match=r"multi-turn data .* not supported; write each pair") as caught:
        check_instructions(table)
    assert "Zibby" not in str(caught.value)


def test_a_column_that_is_missing_is_named():
    with pytest.raises(InputError, match=r"expected one column 'answer', .*--response-column"):
        check_instructions(pairs(), InstructionColumns(response="answer"))
    kept = check_instructions(pairs(messages=TURNS)).table
    assert kept.column_names == ["instruction", "response"], "a list beside a whole pair is nobody's business"


def test_conversations_of_a_json_lines_file_are_refused(tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a"}]}\n{"messages": []}\n')
    with pytest.raises(InputError, match=r"a column of the table: .*multi-turn") as caught:
        check_instructions(read_source(str(path)))
    assert "messages" not in str(caught.value), "nobody named that column"
    with pytest.raises(InputError, match=r"column 'messages': .*multi-turn"):
        check_instructions(read_source(str(path)), InstructionColumns(instruction="messages"))


def test_what_leaves_loads_with_datasets(tmp_path):
    import datasets

    table = check_instructions(generate("instructions")).table
    with_more = table.append_column("ifd", pa.array([0.5] * table.num_rows))
    pq.write_table(named_labels(with_more, ()), tmp_path / "synthetic.parquet")
    loaded = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "synthetic.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded.column_names == ["instruction", "response"]
    assert loaded[:] == table.to_pydict()
