"""Public tables are public: a copy of private rows is refused under any name, and what chance shares is not."""

import csv
import json
import re
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.artifacts.access import path_of, write_table
from understudy.artifacts.store import ArtifactStore
from understudy.data.digests import row_digests
from understudy.errors import InputError, RowError
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.privacy import labels
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.runs.file_origin import ARTIFACT, with_origin
from understudy.runs.overrides import apply_overrides
from understudy.runs.public_tables import check_labels, check_texts
from understudy.runs.request import RunRequest
from understudy.runs.split import SplitRows
from understudy.settings import settings

STOCK = ["ok", "thank you", "good morning", "yes, please", "how are you?", "see you soon", "not at all"]
TEXTS = [f"patient zq{i}x met doctor vw{i * 7}k on ward {i % 9}" for i in range(400)]
NOTES = [f"the ferry of {6 + i % 9} o'clock was {i} minutes late at pier {i % 7}" for i in range(400)]


CLINIC = SourceRecord(name="clinic", unit="example", relation="replace_special", epsilon=8.0, delta=1e-4, n=400)


@pytest.fixture
def ledger(home):
    return Ledger.open()


def split(whole, test=None):
    table = pa.table({"text": pa.array(whole, pa.string())})
    measured = table.slice(0, 1) if test is None else pa.table({"text": test})
    return SplitRows(table, table, measured, len(whole), (), False, ())


@pytest.fixture
def refused(tmp_path, ledger):
    """What a table of these texts is refused with beside the private ones; empty where it is not."""

    def look(public, private, test=None):
        path = tmp_path / "public.parquet"
        pq.write_table(pa.table({"text": public}), path)
        try:
            check_texts({"seeds": str(path)}, split(private, test), ledger)
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
def test_a_copy_is_known_in_any_format_and_under_any_column(write, name, tmp_path, ledger):
    path = tmp_path / name
    write(path, TEXTS)
    with pytest.raises(RowError, match="expected a public table"):
        check_texts({"carriers": str(path)}, split([*TEXTS, None, ""]), ledger)
    write(path, NOTES)
    check_texts({"carriers": str(path)}, split([*TEXTS, None, ""]), ledger)


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


def test_labels_and_identifiers_are_no_private_texts(tmp_path, ledger):
    """What a table says of its rows beside their texts is not compared."""
    path = tmp_path / "public.csv"
    path.write_text("text,label\n" + "".join(f"{note},client number {i}\n" for i, note in enumerate(NOTES)))
    table = pa.table({"client_id": [f"client number {i}" for i in range(400)], "text": TEXTS})
    check_texts({"seeds": str(path)}, SplitRows(table, table, table.slice(0, 1), 400, (), False, ()), ledger)


def test_responses_are_compared_without_their_instructions(tmp_path, ledger):
    path = tmp_path / "public.csv"
    as_csv(path, NOTES)
    table = pa.table({"instruction": TEXTS, "response": NOTES})
    with pytest.raises(RowError, match="expected a public table"):
        check_texts({"seeds": str(path)}, SplitRows(table, table, table.slice(0, 1), 400, (), False, ()), ledger)


def test_rows_of_any_source_are_not_public(refused, ledger):
    ledger.register(CLINIC, row_digests(pa.table({"text": TEXTS})))
    others = [f"letter {i} of the harbour office about berth {i * 3}" for i in range(300)]
    said = refused([text.upper() for text in TEXTS[:40]], others)
    assert "found rows of source 'clinic'" in said
    assert "purge --source clinic --forget-rows" in said
    assert TEXTS[0] not in said
    assert refused([*NOTES, *TEXTS[:5]], others), "more than a hundredth of the table"
    assert not refused([*NOTES, *TEXTS[:3]], others), "a few well-known texts"
    ledger.purge("clinic", forget_rows=True)
    assert not refused(TEXTS[:40], others)


@pytest.mark.parametrize("names", [("instruction", "response"), ("answer", "question")])
def test_pairs_of_any_source_are_not_public(tmp_path, ledger, names):
    ledger.register(CLINIC, row_digests(pa.table({"instruction": TEXTS, "response": NOTES})))
    path, others = tmp_path / "public.parquet", split(["a letter about the harbour"])
    pq.write_table(pa.table(dict(zip(names, (TEXTS[:40], NOTES[:40]), strict=True))), path)
    with pytest.raises(RowError, match="found rows of source 'clinic'"):
        check_texts({"seed.pairs": str(path)}, others, ledger)
    pq.write_table(pa.table(dict(zip(names, (TEXTS[:40], NOTES[1:41]), strict=True))), path)
    check_texts({"seed.pairs": str(path)}, others, ledger)


def test_pairs_are_found_beside_a_row_that_lacks_a_text_and_behind_other_columns(tmp_path, ledger):
    """Few-shot examples are read by their instructions alone, so nobody refuses the row without a response."""
    ledger.register(CLINIC, row_digests(pa.table({"instruction": TEXTS, "response": NOTES})))
    path, others = tmp_path / "public.parquet", split(["a letter about the harbour"])
    told = {f"column {number}": [f"about {number} {i}" for i in range(41)] for number in range(7)}
    pairs = {"instruction": [*TEXTS[:40], "a public question"], "response": [*NOTES[:40], None]}
    for columns in (pairs, told | pairs):
        pq.write_table(pa.table(columns), path)
        with pytest.raises(RowError, match="found rows of source 'clinic'"):
            check_texts({"instructions.examples": str(path)}, others, ledger)


def test_short_pairs_are_counted_among_the_pairs_of_two_columns(tmp_path, ledger):
    """And not among those of all columns, of which they would be few."""
    asked, said = [f"is {i} odd" for i in range(60)], [f"ask {i * 7}" for i in range(60)]
    known = pa.table({"instruction": asked, "response": said})
    ledger.register(CLINIC.model_copy(update={"n": 1000}), row_digests(known))
    path = tmp_path / "public.parquet"
    pq.write_table(known.slice(0, 40).append_column("topic", pa.array(["odds"] * 40)), path)
    with pytest.raises(RowError, match="found rows of source 'clinic'"):
        check_texts({"seed.pairs": str(path)}, split(["a letter about the harbour"]), ledger)


def test_a_shipped_sample_is_public_whatever_the_rows_are(ledger):
    from understudy.data.readers import read_source

    check_texts({"seeds": "sample:public"}, split(read_source("sample:public")["text"].to_pylist()), ledger)


def test_a_table_that_cannot_be_read_is_named_by_its_setting(ledger):
    with pytest.raises(InputError, match=r"seeds=nowhere\.csv: nowhere\.csv: .* no such file"):
        check_texts({"seeds": "nowhere.csv"}, split(TEXTS), ledger)


@pytest.fixture
def model_of():
    """The folder of a model that a run left, under its label."""

    def make(label):
        kind = "private" if label.kind == "private" else "exchange"
        store = ArtifactStore(settings().private_root / "artifacts" if kind == "private" else settings().exchange, kind)
        with store.write(kind="model", label=label) as draft:
            (draft.path / "filter").mkdir()
            for folder in (draft.path, draft.path / "filter"):
                (folder / "config.json").write_text("{}")
        return path_of(draft.ref)

    return make


def look(*overrides, data="rows.parquet", named=None):
    request = RunRequest(data=str(data), source="ward", out="out", epsilon=1)
    check_labels(apply_overrides(KnowledgeDistillationConfig(), [*overrides]), named or {}, request)


def test_a_model_without_noise_is_no_public_model(model_of, tmp_path):
    """What is trained on it would be exported with a promise that does not cover what the model has learnt of rows."""
    private, public = model_of(labels.private("ward")), model_of(labels.public())
    (tmp_path / "link").symlink_to(private)
    (tmp_path / "copy").mkdir()
    for file in ("config.json", "manifest.json"):
        (tmp_path / "copy" / file).write_bytes((private / file).read_bytes())
    for folder in (private, private / "filter", tmp_path / "link", tmp_path / "copy"):
        for setting in ("model", "professional.model"):
            with pytest.raises(InputError, match=rf"^{setting}={re.escape(str(folder))}: .*without noise"):
                look(f"{setting}={folder}")
    look(f"model={public}", f"professional.model={public}")
    (tmp_path / "copy" / "manifest.json").write_text('{"label": {"kind": "private"}, "of": "a user"}')
    look("model=tiny-llama", f"professional.model={tmp_path / 'copy'}")


def test_what_lies_in_an_export_without_a_promise_is_not_public(tmp_path):
    """A run with --share-real-rows: what it hands over holds real rows, also where the file has no id in it."""
    folder = tmp_path / "export" / "distilled"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"text": NOTES}), folder / "table.parquet")
    statement = {"verdict": "none", "ledger_entries": [{"id": "c"}], "released": ["the distilled p0"]}
    place = str(folder / "table.parquet")
    for verdict in ("none", "proven under assumptions"):
        (tmp_path / "export/statement.json").write_text(json.dumps(statement | {"verdict": verdict}))
        with pytest.raises(InputError, match="without noise") if verdict == "none" else nullcontext():
            look(named={"seed.pairs": place})
        with pytest.raises(InputError, match=r"--data.*without noise") if verdict == "none" else nullcontext():
            look(data=place)


def test_what_lies_in_an_export_whose_statement_was_cut_off_is_not_public(tmp_path):
    (tmp_path / "export/distilled").mkdir(parents=True)
    for name in ("distilled/table.parquet", "synthetic.parquet"):
        pq.write_table(pa.table({"text": NOTES}), tmp_path / "export" / name)
    (tmp_path / "export/statement.json").write_text('{"verdict": "no')
    place = str(tmp_path / "export/distilled/table.parquet")
    for named in ({"named": {"seed.pairs": place}}, {"data": place}):
        with pytest.raises(InputError, match="expected the privacy statement"):
            look(**named)


def test_a_table_without_noise_is_neither_public_nor_the_rows_of_a_source(tmp_path):
    """A copy of private rows is known by its texts; texts that a model without noise wrote are known by their file."""
    ref = write_table(pa.table({"text": NOTES}), kind="synthetic", label=labels.private("ward"))
    stored, left, exported = path_of(ref) / "table.parquet", tmp_path / "left.parquet", tmp_path / "exported.parquet"
    for file, name in ((left, ref.id), (exported, "f" * 64)):
        pq.write_table(with_origin(pa.table({"text": NOTES}), {ARTIFACT: name}), file)
    for file in (stored, left):
        with pytest.raises(InputError, match=r"^carriers=.*without noise"):
            look(named={"carriers": str(file)})
        with pytest.raises(InputError, match=r"^instructions\.examples=.*without noise"):
            look(f"instructions.examples={file}")
        with pytest.raises(InputError, match=r"^--data .*without noise"):
            look(data=file)
    look(
        f"instructions.examples={exported}", data=exported, named={"carriers": "sample:public", "seeds": "nowhere.csv"}
    )
