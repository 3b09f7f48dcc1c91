"""Three kinds of rows to units trained on and units held out: by slot number, never by content."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.errors import InputError, RowError
from understudy.intake import take_in
from understudy.privacy.ledger import SourceRecord
from understudy.requests import RunRequest


@pytest.fixture
def request_of(tmp_path):
    """A request on a table, and another on the rows to measure on."""

    def make(columns: dict, *, test: dict | None = None, **given) -> RunRequest:
        paths = {}
        for name, table in {"data": columns, "test": test}.items():
            if table is not None:
                paths[name] = str(tmp_path / f"{name}.parquet")
                pq.write_table(pa.table(table), paths[name])
        return RunRequest(source="s", out="out", epsilon=1.0, **paths, **given)

    return make


def known(**given) -> SourceRecord:
    fields = {"name": "s", "unit": "example", "relation": "replace_special", "epsilon": 1, "delta": 1e-3, "n": 25}
    return SourceRecord.model_validate(fields | given)


TEXTS = [f"text {row}" for row in range(25)]


@pytest.mark.parametrize("kind", ["labelled", "texts"])
def test_every_tenth_row_is_held_out(kind, request_of):
    found = take_in(request_of({"text": TEXTS, "label": ["b", "a"] * 12 + ["b"]}), kind, None)
    assert found.test["text"].to_pylist() == ["text 9", "text 19"]
    assert found.train["text"].to_pylist() == [text for text in TEXTS if text not in ("text 9", "text 19")]
    assert found.whole["text"].to_pylist() == TEXTS
    assert (found.units, found.trained) == (25, 23)
    assert any("every tenth row is held out" in note for note in found.notes)


def test_every_tenth_client_is_held_out_with_all_rows_in_order_of_first_appearance(request_of):
    # Rows of a client do not stand together, and names do not sort as they appear.
    names = [f"c{(8 * i) % 21:02d}" for i in range(21)]
    who = [*names, *reversed(names), names[9]]
    found = take_in(
        request_of({"client_id": who, "text": [f"{w} {row}" for row, w in enumerate(who)]}), "clients", None
    )
    assert set(found.test["client_id"].to_pylist()) == {names[9], names[19]}
    assert found.test.num_rows == 5
    assert not set(found.train["client_id"].to_pylist()) & {names[9], names[19]}
    assert found.train.num_rows + found.test.num_rows == found.whole.num_rows == len(who)
    assert (found.units, found.trained) == (21, 19), "units are clients, not rows"
    assert found.label_names == ()
    assert found.notes == ("every tenth client is held out to measure utility, not trained on; "
                           "--test names other clients instead",)  # fmt: skip


def test_the_split_reads_no_content(request_of):
    one = take_in(request_of({"text": TEXTS}), "texts", None)
    other = take_in(request_of({"text": [f"{text} {text}" for text in TEXTS]}), "texts", None)
    places = [[TEXTS.index(text) for text in one.test["text"].to_pylist()]]
    places.append([int(text.split()[-1]) for text in other.test["text"].to_pylist()])
    assert places[0] == places[1] == [9, 19]


def test_with_rows_to_measure_on_all_others_are_trained_on(request_of):
    columns = {"who": [3, 4, 3], "said": ["x", "y", "z"]}
    test = {"who": [8, 9], "said": ["of one", "of another"]}
    found = take_in(request_of(columns, test=test, client_column="who", text_column="said"), "clients", None)
    assert found.train.to_pydict() == {"client_id": ["3", "4", "3"], "text": ["x", "y", "z"]}
    assert found.test.to_pydict() == {"client_id": ["8", "9"], "text": ["of one", "of another"]}
    assert (found.units, found.trained) == (2, 2)
    assert found.notes == ("utility is measured on the clients of --test",)


@pytest.mark.parametrize(("kind", "noun"), [("labelled", "row"), ("texts", "row"), ("clients", "client")])
def test_too_few_units_for_a_split_are_refused(kind, noun, request_of):
    columns = {"text": TEXTS[:18], "label": ["a", "b"] * 9, "client_id": [f"c{row // 2}" for row in range(18)]}
    if kind != "clients":
        columns = {name: values[:9] for name, values in columns.items()}
    with pytest.raises(InputError, match=f"9 {noun}s: expected at least 10"):
        take_in(request_of(columns), kind, None)


@pytest.mark.parametrize("test", [None, {"text": ["", "\t"]}])
def test_rows_without_a_word_to_measure_on_are_refused(test, request_of):
    texts = [" " if row in (9, 19) else text for row, text in enumerate(TEXTS)]
    with pytest.raises(InputError, match="rows to measure on: expected a text in at least one of them"):
        take_in(request_of({"text": texts}, test=test), "texts", None)


def test_a_blank_text_is_kept_in_its_slot(request_of):
    found = take_in(request_of({"text": ["", *TEXTS[1:]]}), "texts", None)
    assert found.train["text"].to_pylist()[0] == ""
    assert found.trained == 23


def test_labels_of_the_file_are_declared_public(request_of):
    found = take_in(request_of({"text": TEXTS, "label": ["b", "a"] * 12 + ["b"]}), "labelled", None)
    assert found.label_names == ("a", "b")
    assert found.train["label"].to_pylist()[:2] == [1, 0]
    assert found.notes[0] == "label list taken from the file and declared public: a, b"


def test_registered_labels_count_and_others_are_refused(request_of):
    columns = {"text": TEXTS, "label": ["b", "a"] * 12 + ["b"]}
    record = known(label_names=("b", "a"))
    found = take_in(request_of(columns), "labelled", record)
    assert found.label_names == ("b", "a")
    assert found.train["label"].to_pylist()[:2] == [0, 1]
    assert not any("declared public" in note for note in found.notes)
    same = take_in(request_of(columns, label_names={"b": "b", "a": "a"}), "labelled", record)
    assert same.train.equals(found.train)
    with pytest.raises(InputError, match=r"--label-names \['a', 'b'\]: source 's' is registered with \['b', 'a'\]"):
        take_in(request_of(columns, label_names={"a": "a", "b": "b"}), "labelled", record)
    with pytest.raises(RowError, match="row 0: expected one of the declared labels"):
        take_in(request_of(columns), "labelled", known(label_names=("a", "c")))


@pytest.mark.parametrize("kind", ["texts", "clients"])
def test_labels_are_for_labelled_rows_only(kind, request_of):
    columns = {"text": TEXTS, "label": [None] * 25, "client_id": list(range(25))}
    found = take_in(request_of(columns), kind, known(label_names=("a", "b")))
    assert found.label_names == ()
    assert "label" not in found.train.column_names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client_id": "C3"}, "row 25: duplicate client ids"),
        ({"text": " ", "client_id": "mute"}, "row 25: expected a text of this client"),
    ],
)
def test_clients_are_refused_before_they_are_split(change, message, request_of):
    row = {"client_id": "c3", "text": "x"} | change
    columns = {"client_id": [*(f"c{i}" for i in range(25)), row["client_id"]], "text": [*TEXTS, row["text"]]}
    with pytest.raises(RowError, match=message):
        take_in(request_of(columns), "clients", None)
