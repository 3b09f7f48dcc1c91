"""`understudy.synthesize`: which tables it takes, and that no row stands in what Prefect, a log or an error shows."""

import dataclasses
import json
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from full_disk import files_of_at_most
from guarantees import GUARANTEE

import understudy
from understudy.artifacts.access import write_table
from understudy.errors import InputError, UnderstudyError, UnreadVariable
from understudy.privacy.labels import private, released
from understudy.runs.folders import RunRecord, StatementFiles, write_results
from understudy.runs.handed_tables import as_files
from understudy.runs.request import RunRequest
from understudy.settings import prepare_environment, settings

CANARY = "zq0x"  # stands in the first private row


@dataclasses.dataclass(frozen=True)
class Streaming:
    """A table of another library: all that it has is an Arrow stream, with string views, as that of polars."""

    table: pa.Table

    def __arrow_c_stream__(self, requested_schema=None):
        views = [field.with_type(pa.string_view()) for field in self.table.schema]
        return self.table.cast(pa.schema(views)).__arrow_c_stream__(requested_schema)


@dataclasses.dataclass(frozen=True)
class Interchanging:
    """An older table: all that it has is the data frame interchange protocol."""

    table: pa.Table

    def __dataframe__(self, nan_as_null=False, allow_copy=True):
        return self.table.__dataframe__(nan_as_null, allow_copy)


TABLES = {
    "pyarrow": lambda table: table,
    "pandas": lambda table: table.to_pandas(),
    "pandas of objects": lambda table: table.to_pandas().astype(object),
    "datasets": lambda table: datasets.Dataset.from_dict(table.to_pydict()),
    "datasets in another order": lambda table: datasets.Dataset.from_dict(table[::-1].to_pydict()).select(
        range(table.num_rows - 1, -1, -1)
    ),
    "Arrow stream": Streaming,
    "record batches": lambda table: table.to_reader(),
    "interchange": Interchanging,
}
REFUSED = {
    "list of texts": lambda table: table["text"].to_pylist(),
    "list of rows": lambda table: table.to_pylist(),
    "dict of columns": lambda table: table.to_pydict(),
    "bytes": lambda table: table["text"][0].as_py().encode(),
    "column": lambda table: table["text"],
    "pandas column": lambda table: table.to_pandas()["text"],
    "mixed pandas column": lambda table: pd.DataFrame({"text": [*table["text"].to_pylist(), 3]}),
    "data set of splits": lambda table: datasets.DatasetDict({"train": datasets.Dataset.from_dict(table.to_pydict())}),
    "generator": lambda table: (text for text in table["text"].to_pylist()),
    "text": lambda table: table["text"][0].as_py(),
    "text with a dot": lambda table: f"Dr. Lee. {table['text'][0].as_py()}",
    "texts in lines": lambda table: "\n".join(table["text"].to_pylist()),
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_of_table_is_the_same_table(kind, private_rows):
    null = pa.concat_tables([private_rows, pa.table({"text": [None], "label": [None]}, schema=private_rows.schema)])
    with as_files({"data": TABLES[kind](null), "test": None}) as files:
        assert files["test"] is None
        found = pq.read_table(files["data"])
        inside = files["data"].startswith(str(settings().temporary_root))
    assert found.select(["text", "label"]).cast(private_rows.schema).equals(null)
    assert inside, "rows stay under the private root"
    assert not list(settings().temporary_root.glob("inbox-*")), "and only for the time of the run"


def paths_of(data, test=None) -> dict[str, str | None]:
    with as_files({"data": data, "test": test}) as files:
        return dict(files)


def test_the_same_table_has_the_same_path_so_that_a_repeated_call_is_the_same_run(private_rows, in_home, tmp_path):
    first = paths_of(private_rows.to_pandas())
    assert paths_of(private_rows.to_pandas()) == first
    assert paths_of(private_rows.slice(1)) != first
    both = paths_of(private_rows, private_rows.slice(1))
    assert Path(both["data"]).parent == Path(both["test"]).parent
    assert paths_of(private_rows, private_rows.slice(2))["test"] != both["test"]
    assert paths_of("sample:reviews") == {"data": "sample:reviews", "test": None}
    with in_home(tmp_path / "other"):
        other = paths_of(private_rows.to_pandas())
    assert Path(other["data"]).parent.name != Path(first["data"]).parent.name, "the name is keyed: no digest of rows"


def test_calls_with_one_table_share_its_file_until_the_last_has_ended(private_rows):
    with as_files({"data": private_rows}) as outer:
        with as_files({"data": private_rows}) as inner:
            assert inner == outer
        assert pq.read_table(outer["data"]).equals(private_rows), "the other call is still at work"
    assert not list(settings().temporary_root.glob("inbox-*"))


def test_calls_at_once_do_not_disturb_each_other(private_rows):
    def call(_) -> bool:
        with as_files({"data": private_rows}) as files:
            return pq.read_table(files["data"]).equals(private_rows)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(80)))
    assert not list(settings().temporary_root.glob("inbox-*"))


def test_what_a_killed_call_left_is_taken_over_and_removed(private_rows):
    left = Path(paths_of(private_rows)["data"])
    left.parent.mkdir(mode=0o700)
    left.write_bytes(b"half a file")
    with as_files({"data": private_rows}) as files:
        assert files["data"] == str(left)
        assert pq.read_table(left).equals(private_rows)
    assert not list(settings().temporary_root.glob("inbox-*"))


def test_a_folder_made_anew_after_gc_is_not_removed_by_the_earlier_call(private_rows):
    with as_files({"data": private_rows}) as files:
        shutil.rmtree(Path(files["data"]).parent)
        later = as_files({"data": private_rows})
        assert later.__enter__() == files
    assert pq.read_table(files["data"]).equals(private_rows)
    later.__exit__(None, None, None)
    assert not list(settings().temporary_root.glob("inbox-*"))


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("place", ["data", "test"])
def test_anything_else_is_refused_and_not_shown(kind, place, private_rows, tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    given = {"data": private_rows, "test": None} | {place: REFUSED[kind](private_rows)}
    with pytest.raises(InputError) as refused:
        understudy.synthesize(
            **given, source="ward", epsilon=3, out=tmp_path / "out", label_names={"bad": "bad", "good": "good"}
        )
    printed = capfd.readouterr()
    for said in (repr(refused.value), repr(refused.value.__context__), caplog.text, printed.out, printed.err):
        assert CANARY not in said
        assert "patient" not in said
    assert not (tmp_path / "out").exists()
    assert not list(settings().temporary_root.glob("inbox-*"))


@pytest.mark.parametrize("out", [None, 3, ""])
def test_what_is_no_folder_is_not_taken_for_the_name_of_one(out, private_rows, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    calls = (
        lambda: understudy.synthesize(private_rows, source="ward", epsilon=3, out=out),
        lambda: understudy.evaluate(private_rows, real=private_rows, test=private_rows, out=out),
    )
    for call in calls:
        with pytest.raises(InputError, match="--out: "):
            call()
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("budget", [8.0, (8,), {"epsilon": 8, "delta": 0.01}, "8,0.01"])
def test_a_budget_is_two_numbers(budget, private_rows, tmp_path):
    with pytest.raises(InputError, match=r"--budget: expected two numbers.*\(epsilon, delta\)"):
        understudy.synthesize(private_rows, source="ward", epsilon=3, out=tmp_path / "out", budget=budget)


def test_a_refusal_names_the_type(private_rows, tmp_path):
    with pytest.raises(InputError, match=r"data: .*datasets\.Dataset.*builtins\.list"):
        understudy.synthesize(private_rows.to_pylist(), source="ward", epsilon=3, out=tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        (
            "a column",
            lambda table: table.to_pandas()["text"],
            r"pandas.*table.*found pandas\S*Series.*make such a table",
        ),
        ("splits", REFUSED["data set of splits"], r"found datasets\S*DatasetDict; make such a table"),
        (
            "mixed types",
            REFUSED["mixed pandas column"],
            "found a pandas.*one that it cannot; give each column one type",
        ),
        (
            "a name twice",
            lambda table: table.to_pandas().iloc[:, [0, 1, 0]],
            "distinct.*found 2 for 3.*each column once",
        ),
        (
            "a name twice in Arrow",
            lambda table: table.append_column("text", table["text"]),
            "distinct.*name each column once",
        ),
        ("no row", lambda table: table.to_pandas().iloc[:0], "^data: expected at least one row, found an empty table$"),
    ],
)
def test_a_refusal_says_what_is_wrong_with_a_table_and_names_no_file(kind, given, told, private_rows, tmp_path):
    with pytest.raises(InputError, match=told) as refused:
        understudy.synthesize(given(private_rows), source="ward", epsilon=3, out=tmp_path / "out")
    assert "inbox" not in str(refused.value), kind


@pytest.mark.parametrize(
    "begun",
    [
        lambda out: understudy.synthesize("none.csv", source="ward", epsilon=3, out=out),
        lambda out: understudy.audit("none.csv", source="ward", epsilon=3, out=out),
        lambda out: understudy.compare("none.csv", source="ward", methods=["letters"], epsilons=[3], out=out),
        lambda out: understudy.evaluate("none.csv", real="none.csv", test="other.csv", out=out),
    ],
)
def test_a_caller_is_warned_of_variables_that_nothing_reads_as_a_command_notes_them(begun, tmp_path, monkeypatch):
    monkeypatch.delenv("UNDERSTUDY_MLFLOW_URI", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:swordfish@there:5000")
    monkeypatch.setenv("UNDERSTUDY_HOMEE", str(tmp_path))
    with pytest.warns(UnreadVariable) as warned, pytest.raises(InputError):
        begun(tmp_path / "out")
    homee, tracking = (str(one.message) for one in warned)
    assert "UNDERSTUDY_HOMEE: " in homee
    assert "MLFLOW_TRACKING_URI=http://there:5000 is not read" in tracking
    assert {one.filename for one in warned} == {__file__}, "it names the line of the caller"


def test_no_row_of_a_pandas_table_stands_in_what_a_run_says_or_prefect_keeps(
    private_rows, request_of, home, tmp_path, prefect_server, find_leaks, caplog, capfd, monkeypatch
):
    from understudy.flows import run_name

    prepare_environment()
    caplog.set_level(logging.DEBUG)
    handed = []
    run = run_name.run_named
    monkeypatch.setattr(run_name, "run_named", lambda flow, request: handed.append(request) or run(flow, request))
    asked = request_of()
    result = understudy.synthesize(
        private_rows.to_pandas(),
        source="ward",
        epsilon=3,
        out=tmp_path / "out",
        budget=(8, 0.01),
        model=asked.model,
        samples=12,
        overrides=asked.overrides,
        label_names=asked.label_names,
    )
    assert result.synthetic.num_rows == 12
    (request,) = handed
    assert isinstance(request, RunRequest)
    assert CANARY not in repr(request)
    printed = capfd.readouterr()
    said = {"log": caplog.text, "printed": printed.out + printed.err, "request": repr(request)}
    assert find_leaks(private_rows, home=home, export=tmp_path / "out/export", said=said) == []


def test_the_results_of_another_run_that_took_the_folder_over_are_not_given(private_rows, tmp_path, monkeypatch):
    """Whoever asked for one epsilon was handed the texts of another."""
    made = write_table(private_rows, kind="texts", label=private("ward"))
    record = RunRecord(
        method="m", source="ward", charge_id="c", label_names=(), config={}, released=made, synthetic=made
    )

    def report(folder: Path) -> None:
        figures = {"statement": {}, "metrics": {}, "intervals": {}, "missing": [], "declared": []}
        (folder / "report.json").write_text(json.dumps(figures))

    write_results(tmp_path, record, report, statement=None)
    asked = {"source": "ward", "epsilon": 3, "out": tmp_path, "label_names": {"bad": "bad", "good": "good"}}
    ended = SimpleNamespace(synthetic=made.id)
    for name in ("understudy.runs.validation.validate", "understudy.runs.registration.register"):
        monkeypatch.setattr(name, lambda *_: SimpleNamespace(method="m"))
    monkeypatch.setattr("understudy.api.load", lambda _: lambda *_: ended)
    assert understudy.synthesize(private_rows, **asked).synthetic["text"] == private_rows["text"]
    ended.synthetic = "of this run"
    with pytest.raises(UnderstudyError, match="took the folder over"):
        understudy.synthesize(private_rows, **asked)


@pytest.fixture
def finished(tmp_path, in_home) -> Path:
    """The folder of a run that released its table."""
    made = write_table(pa.table({"text": ["a"]}), kind="texts", label=released(GUARANTEE))
    record = RunRecord(
        method="m", source="ward", charge_id="c", label_names=(), config={}, released=made, synthetic=made
    )

    def report(folder: Path) -> None:
        figures = {"statement": {}, "metrics": {}, "intervals": {}, "missing": [], "declared": []}
        (folder / "report.json").write_text(json.dumps(figures))

    write_results(tmp_path / "run", record, report, statement=StatementFiles({}, "in words"))
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("export/synthetic.parquet", None),
        ("export/synthetic.parquet", "x"),
        ("internal/report.json", None),
        ("internal/report.json", "{"),
        ("internal/report.json", "{}"),
        ("internal/report.json", '{"statement": {}, "metrics": 3}'),
    ],
)
def test_of_a_run_whose_files_were_taken_away_the_missing_one_is_named(name, content, finished, tmp_path):
    assert understudy.load_result(finished).synthetic.num_rows == 1
    file = finished / name
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(InputError, match=rf"{name}: expected .* found (none|one that is damaged).*repeat the run"):
        understudy.load_result(finished)


def test_a_full_disk_is_not_told_as_a_table_of_the_wrong_kind(private_rows):
    with files_of_at_most(1000), pytest.raises(OSError, match=r"File too large: '.*data\.parquet'") as told:
        paths_of(pa.concat_tables([private_rows] * 20))
    assert CANARY not in str(told.value)
    assert not list(settings().temporary_root.glob("inbox-*"))


def test_any_synthetic_table_is_measured_from_python(private_rows, tmp_path, prefect_server):
    """The figures are those of the command, and nothing is charged."""
    import understudy
    from understudy.privacy.ledger.ledger import Ledger

    half = private_rows.num_rows // 2
    real, test = private_rows.slice(0, half), private_rows.slice(half)
    metrics = understudy.evaluate(private_rows.slice(0, 20), real=real, test=test, out=tmp_path / "report")
    assert 0 <= metrics.values["utility.synthetic.accuracy"] <= 1
    report = json.loads((tmp_path / "report/report.json").read_text())
    assert report["metrics"] == metrics.values
    assert Ledger.open().charges() == ()
    with pytest.raises(InputError, match="--test"):
        understudy.evaluate(private_rows.slice(0, 20), real=real, test=test.drop_columns(["label"]), out=tmp_path / "x")
