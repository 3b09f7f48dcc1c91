"""Four kinds of rows to units trained on and units held out: each decided by its own slot or client alone."""

import hashlib
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.data.samples import LABEL_NAMES
from understudy.errors import InputError, RowError, TaskFailed
from understudy.privacy.ledger.ledger import SourceRecord
from understudy.runs import split
from understudy.runs.request import RunRequest
from understudy.runs.units import client_is_held_out, row_is_held_out, unit_id
from understudy.tasks.engine.failures import closed_up


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


def labels_of(kind: str) -> dict:
    """What a request on rows of this kind must say of labels."""
    return {"label_names": NAMES} if kind == "labelled" else {}


def known(**given) -> SourceRecord:
    fields = {"name": "s", "unit": "example", "relation": "replace_special", "epsilon": 1, "delta": 1e-3, "n": 25}
    return SourceRecord.model_validate(fields | given)


TEXTS = [f"text {row}" for row in range(25)]


LABELS = ["b", "a"] * 12 + ["b"]
NAMES = {"a": "a", "b": "b"}


def keyed_hash(purpose: str, data: bytes, *, key: bytes = b"k") -> bytes:
    """In the place of the ledger's."""
    return hashlib.sha256(key + purpose.encode() + b"/" + data).digest()


load_and_split = partial(split.load_and_split, keyed_hash=keyed_hash)
OUT = [slot for slot in range(25) if row_is_held_out(slot, keyed_hash)]


@pytest.mark.parametrize("kind", ["labelled", "texts"])
def test_one_slot_of_ten_is_held_out_and_null_in_training(kind, request_of):
    found = load_and_split(request_of({"text": TEXTS, "label": LABELS}, **labels_of(kind)), kind, None)
    assert [slot // 10 for slot in OUT][:2] == [0, 1], "one of every ten"
    assert found.test["text"].to_pylist() == [TEXTS[slot] for slot in OUT]
    assert found.train["text"].to_pylist() == [None if slot in OUT else text for slot, text in enumerate(TEXTS)]
    if kind == "labelled":
        nulls = [slot for slot, label in enumerate(found.train["label"].to_pylist()) if label is None]
        assert nulls == OUT, "a slot without a text has no label either"
    assert found.whole["text"].to_pylist() == TEXTS
    assert found.units == found.train.num_rows == 25, "n is what is declared, whoever is held out"
    assert any("every ten" in note for note in found.notes)


def test_which_of_ten_slots_is_held_out_hangs_on_the_key_and_the_ten():
    places = {
        (key, ten): [slot % 10 for slot in range(10 * ten, 10 * ten + 10) if row_is_held_out(slot, hashing)]
        for key in range(40)
        for hashing in [partial(keyed_hash, key=bytes([key]))]
        for ten in range(20)
    }
    assert {len(found) for found in places.values()} == {1}
    counts = [sum(found == [place] for found in places.values()) for place in range(10)]
    assert min(counts) > 40, f"expected about 80 of each place, found {counts}"
    assert max(counts) < 130, f"expected about 80 of each place, found {counts}"


def test_missing_rows_are_null_slots_at_the_end(request_of):
    found = load_and_split(request_of({"text": TEXTS, "label": LABELS}, label_names=NAMES, units=40), "labelled", None)
    assert (found.units, found.train.num_rows, found.whole.num_rows) == (40, 40, 25)
    assert found.train.slice(25).to_pylist() == [{"text": None, "label": None}] * 15
    fewer = load_and_split(request_of({"text": TEXTS, "label": LABELS}, label_names=NAMES), "labelled", None)
    assert found.train.slice(0, 25).equals(fewer.train), "a null slot moves no other"
    assert found.test.equals(fewer.test)


@pytest.mark.parametrize("slot", [0, 12, 24])
@pytest.mark.parametrize("kind", ["labelled", "texts"])
def test_a_row_of_nulls_is_the_null_record_and_moves_no_other(kind, slot, request_of):
    texts, labels = list(TEXTS), list(LABELS)
    whole = load_and_split(request_of({"text": texts, "label": labels}, **labels_of(kind)), kind, None)
    texts[slot], labels[slot] = None, None
    found = load_and_split(request_of({"text": texts, "label": labels}, **labels_of(kind)), kind, None)
    assert (found.units, found.notes) == (whole.units, whole.notes)
    null = {"text": None} | ({"label": None} if kind == "labelled" else {})
    expected = whole.train.to_pylist()
    expected[slot] = null
    assert found.train.to_pylist() == expected
    assert found.test["text"].to_pylist() == [texts[out] for out in OUT if out != slot]


def pairs_of(texts: list[str | None]) -> dict:
    return {"ask": texts, "answer": [text and f"answer to {text}" for text in texts]}


def test_pairs_are_held_out_and_null_like_other_rows(request_of):
    columns = {"instruction_column": "ask", "response_column": "answer"}
    found = load_and_split(request_of(pairs_of(TEXTS), units=30, **columns), "instructions", None)
    assert found.train.column_names == ["instruction", "response"]
    assert found.test["instruction"].to_pylist() == [TEXTS[slot] for slot in OUT]
    nulls = [slot for slot, text in enumerate(found.train["response"].to_pylist()) if text is None]
    assert nulls == [*OUT, *range(25, 30)]
    missing = next(slot for slot in range(25) if slot not in OUT)
    changed = [None if slot == missing else text for slot, text in enumerate(TEXTS)]
    other = load_and_split(request_of(pairs_of(changed), units=30, **columns), "instructions", None)
    expected = found.train.to_pylist()
    expected[missing] = {"instruction": None, "response": None}
    assert other.train.to_pylist() == expected, "the null record moves no other"
    assert other.notes == found.notes
    same = request_of(pairs_of(TEXTS), test=pairs_of([text.upper() for text in reversed(TEXTS)]), **columns)
    with pytest.raises(InputError, match="found the rows of --data"):
        load_and_split(same, "instructions", None)


@pytest.mark.parametrize(("text", "label"), [(None, "a"), ("a text", None)])
def test_a_row_that_is_null_in_part_stays_refused(text, label, request_of):
    columns = {"text": [*TEXTS, text], "label": [*LABELS, label]}
    with pytest.raises(RowError, match=r"row 25: expected .*, found null"):
        load_and_split(request_of(columns, label_names=NAMES), "labelled", None)


def test_a_null_record_can_be_written_in_every_format(tmp_path):
    rows = [(f"text {row}", "ab"[row % 2]) for row in range(12)]
    lines = [f'{{"text": "{text}", "label": "{label}"}}' for text, label in rows]
    (tmp_path / "rows.jsonl").write_text("\n".join([*lines, '{"text": null, "label": null}']))
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *(",".join(row) for row in rows), ","]))
    for name in ("rows.jsonl", "rows.csv"):
        asked = RunRequest(data=str(tmp_path / name), source="s", out="out", epsilon=1.0, label_names=NAMES)
        found = load_and_split(asked, "labelled", None)
        assert found.units == 13, name
        assert found.train.to_pylist()[12] == {"text": None, "label": None}, name


def clients_of(names: list[str]) -> dict[str, list[str]]:
    """Two documents of each client, which do not stand together."""
    return {"client_id": [*names, *names], "text": [f"{name} wrote {half}" for half in "xy" for name in names]}


PEOPLE = [f"client {number:03d}" for number in range(300)]


@pytest.mark.parametrize("gone", [0, 150, 299])
def test_a_client_that_is_removed_moves_no_other(gone, request_of):
    whole = load_and_split(request_of(clients_of(PEOPLE), units=300), "clients", None)
    fewer = [name for name in PEOPLE if name != PEOPLE[gone]]
    found = load_and_split(request_of(clients_of(fewer), units=300), "clients", None)
    for table in ("train", "test"):
        kept = [row for row in getattr(whole, table).to_pylist() if row["client_id"] != PEOPLE[gone]]
        assert getattr(found, table).to_pylist() == kept, "the same rows, with the same ids, in the same order"
    assert (found.units, found.notes) == (whole.units, whole.notes) == (300, whole.notes)
    held = set(whole.test["client_id"].to_pylist())
    assert 10 < len(held) < 55, "about one in ten of 300"
    assert not held & set(whole.train["client_id"].to_pylist())


def test_clients_are_ordered_by_their_ids_and_not_as_the_file_has_them(request_of):
    one = load_and_split(request_of(clients_of(PEOPLE)), "clients", None)
    other = load_and_split(request_of(clients_of(PEOPLE[::-1])), "clients", None)
    assert one.train.equals(other.train)
    assert one.train.column_names == ["client_id", "text", "unit_id"]
    ids = one.train["unit_id"].to_pylist()
    assert ids == sorted(ids)
    assert ids == [unit_id(client, keyed_hash) for client in one.train["client_id"].to_pylist()]
    assert {len(found) for found in ids} == {16}
    assert len(set(ids)) == len(set(one.train["client_id"].to_pylist()))


def test_a_client_is_one_look_of_its_identifier():
    assert unit_id("Ann  Lee", keyed_hash) == unit_id("ann lee", keyed_hash) != unit_id("ann leo", keyed_hash)
    assert unit_id("\ufeffAnn\u200b Lee", keyed_hash) == unit_id("ann lee", keyed_hash)


@pytest.mark.parametrize(("units", "least", "most"), [(1000, 60, 145), (80, 60, 145), (40, 140, 265), (10, 420, 580)])
def test_of_few_declared_clients_more_are_held_out_so_that_someone_is(units, least, most):
    held = sum(client_is_held_out(f"c{i}", units=units, keyed_hash=keyed_hash) for i in range(1000))
    assert least < held < most


@pytest.mark.parametrize(("kind", "noun"), [("texts", "rows"), ("clients", "clients")])
def test_more_units_than_declared_or_registered_are_refused(kind, noun, request_of):
    columns = {"text": TEXTS, "client_id": TEXTS}
    with pytest.raises(InputError, match=f"--units 24: found 25 {noun}"):
        load_and_split(request_of(columns, units=24), kind, None)
    with pytest.raises(InputError, match=f"25 {noun}: source 's' .*24"):
        load_and_split(request_of(columns), kind, known(n=24))
    with pytest.raises(InputError, match=r"--units 26: source 's' .*25"):
        load_and_split(request_of(columns, units=26), kind, known())


@pytest.mark.parametrize("kind", ["texts", "clients"])
def test_n_is_as_declared_else_as_registered_else_counted_and_said(kind, request_of):
    columns = {"text": TEXTS, "client_id": TEXTS}
    assert load_and_split(request_of(columns, units=30), kind, None).units == 30
    assert load_and_split(request_of(columns, units=30), kind, known(n=99)).units == 30
    registered = load_and_split(request_of(columns), kind, known(n=99))
    assert registered.units == 99
    counted = load_and_split(request_of(columns), kind, None)
    assert counted.units == 25
    assert any("n=25" in note and "public" in note for note in counted.notes)
    assert not any("n=" in note for note in registered.notes)


def test_units_out_of_range_are_refused_without_a_table(request_of):
    for units in (0, -1, 10**9):
        with pytest.raises(ValueError, match="units"):
            request_of({"text": TEXTS}, units=units)


def test_with_rows_to_measure_on_all_others_are_trained_on(request_of):
    columns = {"who": [3, 4, 3], "said": ["x", "y", "z"]}
    test = {"who": [8, 9], "said": ["of one", "of another"]}
    found = load_and_split(request_of(columns, test=test, client_column="who", text_column="said"), "clients", None)
    said = {(row["client_id"], row["text"]) for row in found.train.to_pylist()}
    assert said == {("3", "x"), ("4", "y"), ("3", "z")}
    assert found.test.to_pydict() == {"client_id": ["8", "9"], "text": ["of one", "of another"]}
    assert found.units == 2
    assert "--test" in found.notes[-1]


@pytest.mark.parametrize(("kind", "noun"), [("labelled", "row"), ("texts", "row"), ("clients", "client")])
def test_too_few_units_for_a_split_are_refused(kind, noun, request_of):
    columns = {"text": TEXTS[:18], "label": ["a", "b"] * 9, "client_id": [f"c{row // 2}" for row in range(18)]}
    if kind != "clients":
        columns = {name: values[:9] for name, values in columns.items()}
    with pytest.raises(InputError, match=f"9 {noun}s: expected at least 10"):
        load_and_split(request_of(columns, **labels_of(kind)), kind, None)


@pytest.mark.parametrize("test", [None, {"text": ["", "\t"]}])
def test_rows_without_a_word_to_measure_on_are_refused(test, request_of):
    texts = [" " if row in OUT else text for row, text in enumerate(TEXTS)]
    with pytest.raises(InputError, match="rows to measure on: "):
        load_and_split(request_of({"text": texts}, test=test), "texts", None)


@pytest.mark.parametrize("held", [True, False])
def test_a_file_of_null_records_on_one_side_is_refused(held, request_of):
    texts = [None if (row in OUT) is held else text for row, text in enumerate(TEXTS)]
    with pytest.raises(InputError, match="rows to measure on" if held else "row to train on.*--test"):
        load_and_split(request_of({"text": texts}), "texts", None)


def test_a_blank_text_is_kept_in_its_slot(request_of):
    slot = next(slot for slot in range(25) if slot not in OUT)
    found = load_and_split(request_of({"text": [*TEXTS[:slot], "", *TEXTS[slot + 1 :]]}), "texts", None)
    assert found.train["text"].to_pylist()[slot] == ""
    assert found.units == 25


def test_labels_are_not_read_from_the_rows_unless_that_is_asked_for(request_of):
    columns = {"text": TEXTS, "label": ["b", "a"] * 12 + ["zibby"]}
    with pytest.raises(InputError, match="--label-names VALUE=NAME,") as refused:
        load_and_split(request_of(columns), "labelled", None)
    assert "zibby" not in str(refused.value)
    assert "--labels-from-data" in str(refused.value)
    found = load_and_split(request_of(columns, labels_from_data=True), "labelled", None)
    assert found.label_names == ("a", "b", "zibby")
    assert found.labels_from_data
    assert found.notes[0] == split.LABELS_DISCLOSED


def test_labels_that_are_declared_are_not_a_disclosure(request_of):
    columns = {"text": TEXTS, "label": LABELS}
    assert not load_and_split(request_of(columns, label_names=NAMES), "labelled", None).labels_from_data
    registered = load_and_split(request_of(columns, labels_from_data=True), "labelled", known(label_names=("a", "b")))
    assert not registered.labels_from_data
    with pytest.raises(InputError, match=r"--labels-from-data: .*found --label-names; leave --labels-from-data out"):
        load_and_split(request_of(columns, label_names=NAMES, labels_from_data=True), "labelled", None)


@pytest.mark.parametrize("kind", ["texts", "clients", "instructions"])
@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"label_names": NAMES}, "--label-names"),
        ({"label_names": {}}, "--label-names"),
        ({"labels_from_data": True}, "--labels-from-data"),
    ],
)
def test_labels_that_no_one_reads_are_refused_before_anything_is_read(given, option, kind, tmp_path):
    asked = RunRequest(source="s", out="out", epsilon=1.0, data=str(tmp_path / "nowhere.parquet"), **given)
    with pytest.raises(InputError, match=f"^{option}: .*without labels; leave {option} out, or choose a method"):
        load_and_split(asked, kind, None)


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("labelled", {"text", "label"}),
        ("texts", {"text"}),
        ("clients", {"text", "client"}),
        ("instructions", {"instruction", "response", "system"}),
    ],
)
def test_a_column_that_no_one_reads_is_refused(kind, own, tmp_path):
    for name in ("text", "label", "client", "instruction", "response", "system"):
        asked = RunRequest(
            source="s", out="out", epsilon=1.0, data=str(tmp_path / "nowhere.parquet"), **{f"{name}_column": "other"}
        )
        # The table, which is not there, is read only where the option belongs.
        expected = "nowhere.parquet" if name in own else f"^--{name}-column: .*leave --{name}-column out"
        with pytest.raises(InputError, match=expected):
            load_and_split(asked, kind, None)


def test_a_column_named_as_by_default_is_no_choice(request_of):
    asked = request_of({"text": TEXTS}, label_column="label", client_column="client_id")
    assert load_and_split(asked, "texts", None).units == 25


@pytest.mark.parametrize("name", ["reviews", "clinic"])
def test_a_sample_declares_its_labels_on_its_card(name, request_of):
    asked = request_of({"text": TEXTS}).model_copy(update={"data": f"sample:{name}"})
    found = load_and_split(asked, "labelled", None)
    assert found.label_names == LABEL_NAMES[name]
    assert not found.labels_from_data


NEW = [f"never seen {number}" for number in range(30)]


@pytest.mark.parametrize(
    "test", [TEXTS, TEXTS[::-1], TEXTS[:10], TEXTS + NEW, TEXTS[:13] + NEW[:10], [text.upper() for text in TEXTS[5:]]]
)
@pytest.mark.parametrize("kind", ["texts", "clients"])
def test_rows_to_measure_on_are_not_those_trained_on_nor_part_of_them_nor_hold_them(kind, test, request_of):
    with pytest.raises(InputError, match=r"--test: .*trained on"):
        load_and_split(
            request_of({"text": TEXTS, "client_id": TEXTS}, test={"text": test, "client_id": test}), kind, None
        )


@pytest.mark.parametrize("kind", ["texts", "clients"])
def test_rows_to_measure_on_may_share_a_few_texts(kind, request_of):
    test = TEXTS[:12] + NEW
    found = load_and_split(
        request_of({"text": TEXTS, "client_id": TEXTS}, test={"text": test, "client_id": test}), kind, None
    )
    assert found.test.num_rows == 42


def test_other_rows_that_say_the_same_as_many_rows_may_be_measured_on(request_of):
    """Answers of a word: that the one table's stand in the other does not make them the same rows."""
    answers = ["yes", "no", "maybe", "it depends", "never"]
    asked = request_of({"text": answers * 8 + TEXTS[:4]}, test={"text": answers[:4] * 2 + ["once"]})
    assert load_and_split(asked, "texts", None).test.num_rows == 9
    with pytest.raises(InputError, match=r"--test: .*trained on"):
        load_and_split(request_of({"text": answers * 8}, test={"text": answers[::-1] * 8}), "texts", None)


def test_other_rows_of_a_letter_each_may_be_measured_on(request_of):
    found = load_and_split(request_of({"text": ["y", "n"] * 12}, test={"text": ["m", "y"]}), "texts", None)
    assert found.test["text"].to_pylist() == ["m", "y"]


def test_one_file_is_not_both_however_it_is_written(request_of, tmp_path):
    asked = request_of({"text": TEXTS})
    (tmp_path / "link.parquet").symlink_to(tmp_path / "data.parquet")
    for test in (asked.data, f"{tmp_path}/../{tmp_path.name}/data.parquet", str(tmp_path / "link.parquet")):
        with pytest.raises(InputError, match="rows of --data"):
            load_and_split(asked.model_copy(update={"test": test}), "texts", None)


def test_registered_labels_count_and_others_are_refused(request_of):
    columns = {"text": TEXTS, "label": LABELS}
    record = known(label_names=("b", "a"))
    found = load_and_split(request_of(columns), "labelled", record)
    assert found.label_names == ("b", "a")
    assert found.whole["label"].to_pylist()[:2] == [0, 1]
    assert not any("label list" in note for note in found.notes)
    same = load_and_split(request_of(columns, label_names={"b": "b", "a": "a"}), "labelled", record)
    assert same.train.equals(found.train)
    with pytest.raises(InputError, match=r"--label-names \['a', 'b'\]: source 's' .*\['b', 'a'\]"):
        load_and_split(request_of(columns, label_names={"a": "a", "b": "b"}), "labelled", record)
    with pytest.raises(RowError, match=r"row 0: .*\['a', 'c'\]"):
        load_and_split(request_of(columns), "labelled", known(label_names=("a", "c")))


@pytest.mark.parametrize("found", [["a"], [f"label {number}" for number in range(101)], ["a", "b\n"]])
def test_a_label_list_that_is_read_from_rows_is_refused_for_these_rows(found, request_of):
    """It is published, but not of rows that are refused: of these Prefect is told nothing."""
    labels = (found * 101)[:101]
    columns = {"text": [f"text {number}" for number in range(101)], "label": labels}
    with pytest.raises(RowError, match=r"distinct names|different values|control character"):
        load_and_split(request_of(columns, labels_from_data=True), "labelled", None)


@pytest.mark.parametrize("kind", ["texts", "clients"])
def test_labels_are_for_labelled_rows_only(kind, request_of):
    columns = {"text": TEXTS, "label": [None] * 25, "client_id": list(range(25))}
    found = load_and_split(request_of(columns), kind, known(label_names=("a", "b")))
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
        load_and_split(request_of(columns), "clients", None)


@pytest.mark.parametrize(("labels", "names"), [([0, 1], ("positive", "negative")), ([False, True], ("yes", "no"))])
def test_registered_names_alone_do_not_say_which_number_has_which(labels, names, request_of):
    """The first run had 1=positive,0=negative; a second one without the mapping swapped them."""
    columns = {"text": TEXTS, "label": (labels * 13)[:25]}
    with pytest.raises(InputError, match=r"--label-names VALUE=NAME,.*order") as refused:
        load_and_split(request_of(columns), "labelled", known(label_names=names))
    assert not isinstance(refused.value, RowError), "nothing was read from the rows"
    mapping = {str(value): name for value, name in zip(labels[::-1], names, strict=True)}
    found = load_and_split(request_of(columns, label_names=mapping), "labelled", known(label_names=names))
    assert found.whole["label"].to_pylist()[:2] == [1, 0]


def test_rows_to_measure_on_are_not_labelled_by_position_either(request_of):
    columns, other = {"text": TEXTS, "label": LABELS}, {"text": ["x", "y"], "label": [0, 1]}
    for from_data, record in ((True, None), (False, known(label_names=("b", "a")))):
        asked = request_of(columns, test=other, labels_from_data=from_data)
        with pytest.raises(InputError, match="--label-names VALUE=NAME,"):
            load_and_split(asked, "labelled", record)


@pytest.mark.parametrize(
    ("labels", "names", "indices"),
    [([1, 5], ("5", "1"), [1, 0]), ([False, True], ("true", "false"), [1, 0]), ([7, 8], None, [0, 1])],
)
def test_names_that_are_the_values_of_the_column_are_enough(labels, names, indices, request_of):
    columns = {"text": TEXTS, "label": (labels * 13)[:25]}
    record = known(label_names=names) if names else None
    found = load_and_split(request_of(columns, labels_from_data=names is None), "labelled", record)
    assert found.whole["label"].to_pylist()[:2] == indices


@pytest.mark.parametrize(
    ("columns", "test", "kind"),
    [
        ({"client_id": ["a"] * 12, "text": TEXTS[:12]}, None, "clients"),
        ({"text": pa.nulls(12, pa.string())}, None, "texts"),
        ({"text": TEXTS}, {"text": ["", " "]}, "texts"),
        ({"text": TEXTS}, {"text": TEXTS[::-1]}, "texts"),
        ({"text": pa.nulls(12, pa.string())}, {"text": TEXTS}, "texts"),
    ],
    ids=["one client", "nothing held out", "nothing to measure on", "the same rows", "nothing to train on"],
)
def test_what_the_rows_decide_is_for_the_terminal_alone(columns, test, kind, request_of):
    """A flow that reads the rows by itself tells Prefect no more than that something is wrong with them."""
    asked = request_of(columns, test=test, units=40)
    with pytest.raises(InputError, match=r"--test|found one") as told:
        load_and_split(asked, kind, None)
    with pytest.raises(TaskFailed) as kept:
        closed_up("validate", lambda: load_and_split(asked, kind, None))
    assert str(told.value) not in str(kept.value)
    assert not any(words in str(kept.value) for words in ("--test", "found", "split.py", "tables.py"))
