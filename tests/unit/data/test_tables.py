import gzip
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.data.columns import require
from understudy.data.readers import same_source
from understudy.data.tables import (
    CLIENT_SCHEMA,
    LABELLED_SCHEMA,
    ClientColumns,
    InstructionColumns,
    LabelledColumns,
    as_rows,
    canonical_digest,
    check_clients,
    check_instructions,
    check_labelled,
    check_texts,
    client_digests,
    declared_names,
    parse_label_names,
    read_source,
    row_digests,
)
from understudy.errors import InputError, RowError

NAMES = ("negative", "positive")
SECRET = "the patient is Zibby"


def labelled(text=("good", "bad"), label=("positive", "negative"), label_type=None):
    return pa.table({"text": pa.array(text), "label": pa.array(label, label_type)})


def write(path: Path, content: bytes | str) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


# Reading


def test_the_same_rows_from_csv_jsonl_and_parquet(tmp_path):
    rows = [{"text": 'a "quoted", line\nbreak', "label": "x"}, {"text": "", "label": "ü"}]
    csv = write(tmp_path / "a.csv", 'text,label\r\n"a ""quoted"", line\nbreak",x\r\n\r\n"",ü\r\n')
    jsonl = write(tmp_path / "a.jsonl", "\n".join(json.dumps(row) for row in rows) + "\n\n")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for spec in (csv, jsonl, str(tmp_path / "a.parquet")):
        assert read_source(spec).to_pylist() == rows, spec


def test_a_header_with_commas_may_hold_other_marks_too(tmp_path):
    spec = write(tmp_path / "a.csv", "text,label;kind\nfine,1\n")
    assert read_source(spec).to_pylist() == [{"text": "fine", "label;kind": "1"}]


def test_csv_columns_are_text_and_a_byte_order_mark_is_skipped(tmp_path):
    spec = write(tmp_path / "a.csv", b"\xef\xbb\xbftext,label\n123,0\n")
    assert read_source(spec).to_pylist() == [{"text": "123", "label": "0"}]


def test_a_blank_line_of_csv_is_no_row_and_one_of_empty_fields_is_a_row_of_nulls(tmp_path):
    spec = write(tmp_path / "a.csv", b"\n\ntext,label\none,0\n\n,\ntwo,1\n\n")
    rows = [("one", "0"), (None, None), ("two", "1")]
    assert [tuple(row.values()) for row in read_source(spec).to_pylist()] == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "header line with column names"),
        ("a.csv", b"\n\n", "header line with column names"),
        ("a.csv", b"text,label\n", "expected at least one row"),
        ("a.csv", b'"the patient is Zibby,label\nok,0\n', "header line: .*check the quotes"),
        ("a.csv", b'text,"the "patient is Zibby\nok,0\n', "header line: .*check the quotes"),
        ("a.csv", b'text;label\n"the patient is ""Zibby""";1\n', "expected commas .*found semicolons in the header"),
        ("a.csv", b"text\tlabel\nthe patient is Zibby\t1\n", "expected commas .*found tabs in the header"),
        ("a.csv", b"the patient is Zibby,1,1\na,b,c\n", "distinct .*found 2 for 3 columns.*header line"),
        (
            "a.csv",
            b"text,label\nok,0\n" + SECRET.encode() + b",1,2\n",
            r"row 1 \(line 3\): expected 2 fields, found 3; .*quotes",
        ),
        (
            "a.csv",
            b'text,label\n"two\nlines",0\n\n' + SECRET.encode() + b",1,2\n",
            r"row 1 \(line 5\): expected 2 fields, found 3; .*quotes",
        ),
        ("a.csv", b'text,label\nok,0\n"' + SECRET.encode() + b"\n\n", r"row 1 \(line 3\): .*check the quotes"),
        ("a.csv", b"text,label\nok,0\n" + SECRET.encode() + b"\xe4,0\n", r"invalid byte at offset 36 \(line 3\)"),
        ("a.csv", gzip.compress(b"text,label\nok,0\n", mtime=0), "found what gzip has packed; unpack it"),
        ("a.csv", b"text,label\nok\0,0\n", "NUL character in line 2; remove it"),
        (
            "a.jsonl",
            b'{"text": "ok"}\n{"text": "the patient is Zibby\n',
            r"row 1 \(line 2\): .*JSON object in each line.*pandas",
        ),
        ("a.jsonl", b'{"text": "ok"}\n\n["the patient is Zibby"]\n', r"row 1 \(line 3\): .*JSON object.*a list; write"),
        ("a.jsonl", b'{"text": "the patient is Zibby"}\n{"text": 5}\n', "row 1: column 'text' holds int"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": "\\ud800"}\n', "row 1: column 'text' .*Unicode.*remove the row"),
        ("a.jsonl", b'{"id": 1, "text": "ok"}\n{"id": 9223372036854775808}\n', "row 1: .*integer beyond 64 bits"),
        ("a.jsonl", b'{"x": [1]}\n{"x": [2]}\n{"x": ["Zibby"]}\n{"x": [3]}\n', "row 2: .*a list of mixed types"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": "Zibby", "text": "b"}\n', r"row 1 \(line 2\): .*name once.*leave one"),
        ("a.jsonl", b'{"text": "ok", "x": {"Zibby": 1, "Zibby": 2}}\n', r"row 0 \(line 1\): .*name once.*leave one"),
        ("a.jsonl", b"\n", "expected at least one row"),
        ("a.csv", f"text,label\n{SECRET},0\n".encode("utf-16"), "mark of UTF-16; .*iconv -f UTF-16"),
        ("a.csv", f"text,label\n{SECRET},0\n".encode("utf-32"), "mark of UTF-32; .*iconv -f UTF-32"),
        ("a.parquet", b"the patient is Zibby", "Parquet file, found one that is damaged or of another kind"),
        ("a.txt", b"the patient is Zibby", r"\.csv, \.jsonl, \.parquet, found '\.txt'"),
    ],
)
def test_broken_files_are_refused_without_their_text(tmp_path, name, content, message):
    spec = write(tmp_path / name, content)
    with pytest.raises(InputError, match=message) as caught:
        read_source(spec)
    assert "Zibby" not in str(caught.value)
    assert caught.value.exit_code == 2
    is_told_to_all = name in ("a.parquet", "a.txt")
    assert isinstance(caught.value, RowError) != is_told_to_all, "what rows decide, or a header line that may be one"


def test_a_table_without_rows_is_refused_for_its_rows(tmp_path):
    """Whether there is a row is not told to Prefect, which keeps the text of every other error."""
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    with pytest.raises(RowError, match="empty table"):
        read_source(str(tmp_path / "empty.parquet"))
    empty = pa.table({name: pa.array([], pa.string()) for name in ("client_id", "text", "instruction", "response")})
    for check in (check_texts, check_clients, check_instructions):
        with pytest.raises(RowError, match="empty table"):
            check(empty)


def test_a_parquet_file_with_one_name_twice_is_refused_without_the_name(tmp_path):
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=[SECRET, SECRET])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match="distinct column names, found one that comes twice") as caught:
        read_source(str(tmp_path / "a.parquet"))
    assert "Zibby" not in str(caught.value)


@pytest.mark.parametrize("spec", ["missing.csv", "no/such/dir/file.parquet", "/nowhere/at all"])
def test_missing_file(spec):
    with pytest.raises(InputError, match="no such file"):
        read_source(spec)


@pytest.mark.parametrize("spec", ["file:///srv/rows.csv", "https://example.org/rows.parquet", "S3://bucket/rows.csv"])
def test_an_address_is_told_as_one(spec):
    with pytest.raises(InputError, match=r"found an address; fetch the file"):
        read_source(spec)


def test_directory_is_not_a_file(tmp_path):
    with pytest.raises(InputError, match="found a directory"):
        read_source(str(tmp_path))


def test_unknown_sample_names_the_known_ones():
    with pytest.raises(InputError, match=r"expected one of .*sample:reviews"):
        read_source("sample:nothing")


def test_hub_id_that_cannot_be_reached():
    with pytest.raises(InputError, match=r"hub:nobody/no-such-data-set: .*Parquet"):
        read_source("hub:nobody/no-such-data-set")


# Labelled rows


@pytest.mark.parametrize(
    ("labels", "kind", "declared"),
    [
        (["positive", "negative"], pa.string(), NAMES),
        (["positive", "negative"], pa.large_string(), NAMES),
        (["1", "0"], pa.string(), {"0": "negative", "1": "positive"}),
        ([1, 0], pa.int64(), {"0": "negative", "1": "positive"}),
        ([1, 0], pa.int8(), NAMES),
        ([True, False], pa.bool_(), {"false": "negative", "true": "positive"}),
        ([True, False], pa.bool_(), {"False": "negative", "TRUE": "positive"}),
    ],
)
def test_labels_become_indices_of_the_declared_names(labels, kind, declared):
    rows = check_labelled(labelled(label=labels, label_type=kind), LabelledColumns(label_names=declared))
    assert rows.label_names == NAMES
    assert rows.table.to_pydict() == {"text": ["good", "bad"], "label": [1, 0]}
    assert rows.table.schema.types == [pa.string(), pa.int32()]


def test_integer_names_are_values_not_positions():
    rows = check_labelled(labelled(label=[5, 1]), LabelledColumns(label_names=("1", "5")))
    assert rows.table["label"].to_pylist() == [1, 0]


def test_dictionary_columns_and_other_names():
    table = pa.table(
        {"body": pa.array(["a", "b"]).dictionary_encode(), "class": pa.array(["x", "y"]).dictionary_encode()}
    )
    rows = check_labelled(table, LabelledColumns(text="body", label="class", label_names=("x", "y")))
    assert rows.table.to_pydict() == {"text": ["a", "b"], "label": [0, 1]}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (labelled().drop_columns("text"), "expected one column 'text', found none .* 1 column; .*--text-column$"),
        (labelled().rename_columns([SECRET, "label"]), "expected one column 'text', found none .* 2 columns"),
        (labelled().rename_columns(["text", SECRET]), "expected one column 'label', .*--label-column"),
        (labelled().slice(0, 0), "expected at least one row"),
        (labelled(text=["ok", None]), "column 'text', row 1: expected text, found null"),
        (labelled(text=[1, 2]), "column 'text', row 0: expected text, found int64"),
        (labelled(text=[None, 2.5]), "column 'text', row 1: expected text, found double"),
        (labelled(text=[b"ok", b"x"]), "column 'text', row 0: expected text, found binary"),
        (labelled(label=["positive", SECRET]), r"column 'label', row 1: .*\['negative', 'positive'\].*--label-names"),
        (labelled(label=["positive", None]), "column 'label', row 1: .*found null"),
        (
            labelled(label=["positive", "0.0"]),
            r"row 1: .*found a number with a decimal point, .*whole numbers",
        ),
        (labelled(label=[0, 7]), r"column 'label', row 1: .*\['0', '1'\].*--label-names"),
        (labelled(label=[0.0, 1.0]), r"column 'label': expected .*, found double; convert .* whole numbers"),
    ],
)
def test_bad_rows_are_named_by_index(table, message):
    with pytest.raises(InputError, match=message) as caught:
        check_labelled(table, LabelledColumns(label_names=NAMES))
    assert "Zibby" not in str(caught.value)


def test_bad_bytes_inside_a_parquet_text_column(tmp_path):
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"fine", b"\xff\xfe"], pa.binary()).buffers())
    pq.write_table(pa.table({"text": broken, "label": ["positive", "negative"]}), tmp_path / "a.parquet")
    with pytest.raises(RowError, match=r"column 'text', row 1: .*UTF-8.*offset 0"):
        check_labelled(read_source(str(tmp_path / "a.parquet")), LabelledColumns(label_names=NAMES))


@pytest.mark.parametrize("names", [(), ("only",), ("same", "same"), ("a", " "), {"0": "x", "1": "x"}])
def test_fewer_than_two_distinct_labels_are_refused(names):
    with pytest.raises(InputError, match=r"two distinct names.*--label-names") as refused:
        check_labelled(labelled(), LabelledColumns(label_names=names))
    assert ("one of them empty;" in str(refused.value)) is (" " in names)


@pytest.mark.parametrize("letter", ["\x01", "\n", "\x7f", "\x85", "\ud800", "\ufffe", "\uffff"])
def test_label_names_with_characters_that_no_figure_can_hold_are_refused(letter):
    """The report's figures are XML, and were written after the charge."""
    with pytest.raises(InputError, match=r"control character in name 2 of 2.*--label-names") as caught:
        check_labelled(labelled(), LabelledColumns(label_names=("a", f"b{letter}c")))
    assert letter not in str(caught.value)
    assert declared_names({"x": "für mich", "y": "好 🙂"}) == ("für mich", "好 🙂")


def test_values_that_differ_in_case_are_one_boolean():
    rows = labelled(label=[True, False], label_type=pa.bool_())
    with pytest.raises(InputError, match="upper and in lower case"):
        check_labelled(rows, LabelledColumns(label_names={"True": "a", "true": "b", "false": "c"}))


@pytest.mark.parametrize("text", ["0=negative,positive", "0=negative,0=positive"])
def test_mixed_label_lists_are_refused(text):
    with pytest.raises(InputError, match=f"--label-names {text}: .*VALUE=NAME"):
        parse_label_names(text)


def test_label_lists_may_be_json():
    assert parse_label_names(' ["news, sport", "a=b"]') == ("news, sport", "a=b")
    assert parse_label_names('{"1,5": "news, sport", "2": "{x}"}') == {"1,5": "news, sport", "2": "{x}"}


@pytest.mark.parametrize(
    "text",
    [
        "[a],[b]",
        "{",
        pytest.param("[" * 5_000, id="deep"),
        '["a", 1]',
        '{"0": 1}',
        '{"0": "a", "0": "b"}',
        '[{"0": "a"}]',
    ],
)
def test_what_begins_as_json_and_is_no_list_of_labels_is_refused(text):
    with pytest.raises(InputError, match=re.escape(f"--label-names {text}: ") + ".*JSON.*such as '{.*}'"):
        parse_label_names(text)


# Clients and instructions


def test_clients_keep_their_order_and_integers_become_strings():
    table = pa.table({"who": [7, 3, 7], "what": ["a", "b", "c"]})
    rows = check_clients(table, ClientColumns(client="who", text="what"))
    assert rows.table.to_pydict() == {"client_id": ["7", "3", "7"], "text": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"client_id": ["a", "a"], "text": ["x", "y"]}, "column 'client_id': .*two clients"),
        ({"client_id": ["a", None], "text": ["x", "y"]}, "column 'client_id', row 1: expected text, found null"),
        ({"client_id": [1, None], "text": ["x", "y"]}, "column 'client_id', row 1: expected text, found null"),
        ({"client_id": ["a", "b"], "text": ["x", None]}, "column 'text', row 1"),
        ({"client_id": [1.5, 2.5], "text": ["x", "y"]}, "column 'client_id', row 0: expected text, found double"),
        ({"text": ["x", "y"]}, "expected one column 'client_id', .*--client-column"),
    ],
)
def test_bad_clients(columns, message):
    with pytest.raises(InputError, match=message):
        check_clients(pa.table(columns))


LOOKALIKES = [
    ("b", "B"),
    ("b", "b "),
    ("b", "\u3000b"),
    ("a b", "a  b"),
    ("fin", "\ufb01n"),
    ("e\u0301", "\xe9"),
    ("ß", "SS"),
    # What nobody sees: byte order marks, spaces and joiners without a width, soft hyphens, selectors, controls.
    ("b", "\ufeffb"),
    ("ab", "a\u200bb"),
    ("ab", "a\xadb"),
    ("ab", "a\u200d\u2060b\u200e"),
    ("b", "b\ufe0f\U000e0101"),
    ("b", "\x00b\x7f"),
    ("\xe9", "e\u200b\u0301"),
    ("", "\u3164"),
    # What a spreadsheet or a telephone writes for a hyphen, an apostrophe and a quotation mark.
    ("anna-lee", "anna\u2010lee"),
    ("anna-lee", "Anna\u2013Lee"),
    ("a-1", "a\u22121"),
    ("O'Brien", "O\u2019Brien"),
    ("O'Brien", "O\xb4Brien"),
    ('"7"', "\u201e7\u201c"),
    ("a/b", "a\u2044b"),
    # Letters of a Cyrillic and of a Greek keyboard.
    ("C-12", "\u0421-12"),
    ("B12", "\u041212"),
    ("TOM", "\u03a4\u039f\u039c"),
]


@pytest.mark.parametrize("pair", LOOKALIKES)
def test_identifiers_that_differ_in_their_look_only_are_refused_not_merged(pair):
    """A client under two identifiers would be protected as two."""
    rows = {"client_id": ["other", pair[0], pair[0], pair[1]], "text": ["w", "x", "y", SECRET]}
    with pytest.raises(RowError, match=r"row 3: duplicate client ids: .*row 1") as caught:
        check_clients(pa.table(rows))
    assert "Zibby" not in str(caught.value)
    assert not any(repr(name) in str(caught.value) for name in pair)


def test_lookalikes_are_named_by_the_users_own_column():
    table = pa.table({"who": ["a", "A"], "what": ["x", "y"]})
    with pytest.raises(RowError, match="column 'who', row 1: duplicate client ids"):
        check_clients(table, ClientColumns(client="who", text="what"))


@pytest.mark.parametrize(
    "names",
    [["a", "b"], ["a1", "a 1"], ["1", "01"], ["Zoë", "Zoe"], ["", "x"], ["a-1", "a1"], ["a-b", "a_b"], ["да", "нет"]],
)
def test_identifiers_of_another_look_are_other_clients(names):
    rows = check_clients(pa.table({"client_id": names, "text": ["x", "y"]}))
    assert rows.table["client_id"].to_pylist() == names


def test_a_client_without_a_word_is_refused_and_one_with_a_blank_row_is_not():
    rows = {"client_id": ["a", "b", "a", "b"], "text": ["", " \n", "fine", "\t\u2003"]}
    with pytest.raises(RowError, match=r"column 'text', row 1: .*empty or white space"):
        check_clients(pa.table(rows))
    rows["text"][3] = "fine too"
    assert check_clients(pa.table(rows)).table["text"].to_pylist() == rows["text"], "blank rows stay"


def test_instructions():
    table = pa.table({"q": ["a"], "a": ["b"], "extra": [1]})
    rows = check_instructions(table, InstructionColumns(instruction="q", response="a"))
    assert rows.table.to_pydict() == {"instruction": ["a"], "response": ["b"]}
    with pytest.raises(RowError, match="column 'response', row 0"):
        check_instructions(pa.table({"instruction": ["a"], "response": pa.array([None], pa.string())}))


# Digests


def test_row_digests_see_through_trivial_edits_but_not_through_words():
    same = ["A  good\tfilm", "a good film", "ａ good film"]
    same += ["a good film.", "A good film!!", "a góod film", "a good_\u200bfilm"]
    digests = row_digests(labelled(text=[*same, "a good films"], label=["x"] * 8))
    assert len(set(digests[:-1])) == 1
    assert digests[-1] != digests[0]
    assert {len(digest) for digest in digests} == {32}


def test_rows_that_are_no_ones_in_particular_get_no_digest():
    shared = ["", "!!!", " n/a ", "Yes.", "ok 4", "🙂🙂🙂🙂🙂"]
    assert row_digests(pa.table({"text": shared})) == [b""] * 6
    assert row_digests(pa.table({"instruction": ["ab", "abc"], "response": ["cd", "de"]}))[0] == b""
    assert [len(digest) for digest in row_digests(pa.table({"text": ["да!", "Нет.", "東", "東京"]}))] == [0, 32, 0, 32]


def test_client_digests_see_through_trivial_edits_but_not_through_names():
    table = pa.table({"client_id": ["Client 1", "client-1.", "CLIENT_１", "client 2", "--", "-"], "text": ["a"] * 6})
    digests = client_digests(table)
    assert len(set(digests[:3])) == 1
    assert len(set(digests)) == 4
    assert client_digests(pa.table({"text": ["a"]})) == []


def test_row_digests_ignore_label_and_client_but_not_where_the_text_stands():
    assert row_digests(labelled(label=["x", "y"])) == row_digests(labelled(label=["y", "x"]))
    one = pa.table({"instruction": ["alpha beta"], "response": ["gamma"]})
    other = pa.table({"instruction": ["alpha"], "response": ["beta gamma"]})
    assert row_digests(one) != row_digests(other)


@given(st.lists(st.one_of(st.none(), st.text(max_size=5)), min_size=1, max_size=8), st.integers(0, 7))
def test_canonical_digest_is_of_the_rows_not_of_the_chunks(values, cut):
    whole = pa.table({"text": pa.array(values, pa.string())})
    pieces = pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])
    assert canonical_digest(whole) == canonical_digest(pieces)
    changed = pa.table({"text": pa.array([*values[:-1], (values[-1] or "") + "x"], pa.string())})
    assert canonical_digest(whole) != canonical_digest(changed)


def test_canonical_digest_is_unambiguous():
    tables = [
        pa.table({"a": ["x", "y"]}),
        pa.table({"b": ["x", "y"]}),
        pa.table({"a": ["y", "x"]}),
        pa.table({"a": ["xy", ""]}),
        pa.table({"a": pa.array(["xy", None])}),
        pa.table({"a": ["x"], "b": ["y"]}),
        pa.table({"a": [1, 2]}),
        pa.table({"a": pa.array([1, 2], pa.int32())}),
        pa.table({"a": ["1", "2"]}),
    ]
    assert len({canonical_digest(table) for table in tables}) == len(tables)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("hub:owner/name", "hub:owner/name#train", True),
        ("hub:owner/name#test", "hub:owner/name", False),
        ("hub:owner/name", "hub:owner/other", False),
        ("hub:owner/name", "owner/name", False),
        ("sample:ferry", "sample:ferry", True),
    ],
)
def test_two_names_of_one_table_are_seen_as_one(one, other, same):
    assert same_source(one, other) == same_source(other, one) == same


def test_two_ways_to_one_file_are_one_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("text\na\n")
    (tmp_path / "link.csv").symlink_to(tmp_path / "rows.csv")
    (tmp_path / "copy.csv").write_text("text\na\n")
    assert same_source("rows.csv", str(tmp_path / "link.csv"))
    assert not same_source("rows.csv", "copy.csv")


@pytest.mark.parametrize("labels", [["positive", "negative"], [1, 0]])
def test_synthetic_texts_are_read_like_rows(labels):
    checked = pa.table({"text": [], "label": []}, schema=LABELLED_SCHEMA)
    found = as_rows(pa.table({"text": ["a", "b"], "label": labels}), like=checked, names=NAMES)
    assert found.schema == LABELLED_SCHEMA
    assert found.to_pylist() == [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
    of_nobody = as_rows(
        pa.table({"text": ["a"]}), like=pa.table({"client_id": [], "text": []}, CLIENT_SCHEMA), names=()
    )
    assert of_nobody.to_pylist() == [{"client_id": "", "text": "a"}]


@pytest.mark.parametrize("written", ["Text", "text ", " TEXT"])
def test_a_column_whose_name_differs_in_case_or_white_space_alone_is_told_so(written):
    table = pa.table({written: ["a zibby row"], "label": ["positive"]})
    with pytest.raises(InputError, match=r"'text', found one whose name differs in case or white space.*--text-column"):
        check_labelled(table, LabelledColumns(label_names=NAMES))


@pytest.mark.parametrize("written", ["Positive", "positive ", " POSITIVE"])
def test_a_label_that_differs_in_case_or_white_space_alone_is_told_so(written):
    table = pa.table({"text": ["a zibby row"], "label": [written]})
    with pytest.raises(RowError, match=r"row 0: .*'positive'.*but for case or white space; .*--label-names") as refused:
        check_labelled(table, LabelledColumns(label_names=NAMES))
    assert written not in str(refused.value)


@pytest.mark.parametrize("option", ["--label-column", None])
def test_a_missing_column_is_told_alike_whatever_else_a_single_row_of_jsonl_has(option, tmp_path):
    """Prefect keeps what is said of a column; which names there are is the rows' own there, and for the terminal."""

    def refused(row, kind=InputError):
        rows = [{"text": "a"}, {"text": "b"} | row, {"text": "c"}]
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(InputError) as caught:
            require(read_source(str(tmp_path / "rows.jsonl")), "label", option=option)
        assert type(caught.value) is kind
        return str(caught.value)

    assert refused({}) == refused({"diagnosis": "x"}) == refused({"a": 1, "b": 2})
    assert "in case or white space alone" in refused({" Label": "x"}, RowError)
