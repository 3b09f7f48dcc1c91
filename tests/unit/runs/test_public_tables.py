"""Public tables are public: a copy of private rows is refused under any name, and what chance shares is not."""

import csv
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.errors import InputError, RowError
from understudy.runs.public_tables import check_texts
from understudy.runs.split import SplitRows

STOCK = ["ok", "thank you", "good morning", "yes, please", "how are you?", "see you soon", "not at all"]
TEXTS = [f"patient zq{i}x met doctor vw{i * 7}k on ward {i % 9}" for i in range(400)]
NOTES = [f"the ferry of {6 + i % 9} o'clock was {i} minutes late at pier {i % 7}" for i in range(400)]


def split(whole, test=None):
    table = pa.table({"text": pa.array(whole, pa.string())})
    measured = table.slice(0, 1) if test is None else pa.table({"text": test})
    return SplitRows(table, table, measured, len(whole), (), False, ())


@pytest.fixture
def refused(tmp_path):
    """What a table of these texts is refused with beside the private ones; empty where it is not."""

    def look(public, private, test=None):
        path = tmp_path / "public.parquet"
        pq.write_table(pa.table({"text": public}), path)
        try:
            check_texts({"seeds": str(path)}, split(private, test))
        except RowError as error:
            return str(error)
        return ""

    return look


def as_csv(path, texts):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["number", "words"], *enumerate(texts)])


def as_jsonl(path, texts):
    path.write_text("".join(json.dumps({"instruction": text, "response": "fine"}) + "\n" for text in texts))


def as_categories(path, texts):
    pq.write_table(pa.table({"text": pa.array(texts).dictionary_encode(), "label": [1] * len(texts)}), path)


def as_pieces(path, texts):
    pq.write_table(pa.table({"text": pa.array(texts, pa.large_string())}), path, row_group_size=7)


def rewritten(path, texts):
    as_csv(path, [f"  {text.upper().replace(' ', '  ')} !" for text in reversed(texts)])


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (as_csv, "copy.csv"),
        (rewritten, "copy.csv"),
        (as_jsonl, "copy.jsonl"),
        (as_categories, "copy.parquet"),
        (as_pieces, "copy.parquet"),
    ],
)
def test_a_copy_is_known_in_any_format_and_under_any_column(write, name, tmp_path):
    path = tmp_path / name
    write(path, TEXTS)
    with pytest.raises(RowError, match="expected a public table"):
        check_texts({"carriers": str(path)}, split([*TEXTS, None, ""]))
    write(path, NOTES)
    check_texts({"carriers": str(path)}, split([*TEXTS, None, ""]))


def test_a_part_of_the_rows_is_refused_and_a_table_that_holds_them(refused):
    said = refused(TEXTS[:1], TEXTS)
    assert re.search(r"seeds=\S+: .* found private texts of --data or --test", said)
    assert TEXTS[0] not in said
    assert refused(TEXTS[10:20], TEXTS)
    assert refused([*NOTES, *TEXTS[:50]], TEXTS)
    assert refused([*NOTES, *TEXTS[:5]], TEXTS[:5])
    assert refused([*NOTES, *TEXTS[:2]], TEXTS[:2]), "every private text is in it"


def test_rows_to_measure_on_are_private_too(refused):
    assert refused(NOTES, TEXTS, test=NOTES[:40])


def test_a_copy_of_short_texts_is_refused(refused):
    names = [f"Mr {letters} Zibby" for letters in ("Abe", "Bob", "Cay", "Dan", "Eve", "Fay")]
    assert refused(names, names)
    assert refused([*names, "Ms Gail Ling", "Mr Hob Nob"], names)


def test_what_chance_shares_is_let_be(refused):
    assert not refused([*NOTES, *STOCK], [*TEXTS, *STOCK]), "stock phrases"
    assert not refused([*NOTES, *TEXTS[:3]], TEXTS), "a few well-known texts"
    assert not refused(["ok", "ok", "n/a"], ["ok", "n/a", *TEXTS]), "no one's in particular"
    assert not refused(["thank you", *NOTES[:3]], ["thank you", *TEXTS[:3]]), "tables of a few rows"


def test_labels_and_identifiers_are_no_private_texts(tmp_path):
    """What a table says of its rows beside their texts is not compared."""
    path = tmp_path / "public.csv"
    path.write_text("text,label\n" + "".join(f"{note},client number {i}\n" for i, note in enumerate(NOTES)))
    table = pa.table({"client_id": [f"client number {i}" for i in range(400)], "text": TEXTS})
    check_texts({"seeds": str(path)}, SplitRows(table, table, table.slice(0, 1), 400, (), False, ()))


def test_responses_are_compared_without_their_instructions(tmp_path):
    path = tmp_path / "public.csv"
    as_csv(path, NOTES)
    table = pa.table({"instruction": TEXTS, "response": NOTES})
    with pytest.raises(RowError, match="expected a public table"):
        check_texts({"seeds": str(path)}, SplitRows(table, table, table.slice(0, 1), 400, (), False, ()))


def test_a_shipped_sample_is_public_whatever_the_rows_are(tmp_path):
    from understudy.data.readers import read_source

    check_texts({"seeds": "sample:public"}, split(read_source("sample:public")["text"].to_pylist()))


def test_a_table_that_cannot_be_read_is_named_by_its_setting():
    with pytest.raises(InputError, match=r"seeds=nowhere\.csv: nowhere\.csv: .* no such file"):
        check_texts({"seeds": "nowhere.csv"}, split(TEXTS))
