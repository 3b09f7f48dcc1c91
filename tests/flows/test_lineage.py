"""`understudy lineage` of what is recorded nowhere: private artifacts, and names that are no artifact's."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from guarantees import GUARANTEE

from understudy.artifacts.access import write_table
from understudy.privacy.labels import private, released
from understudy.runs.folders import RunRecord, StatementFiles, write_results


@pytest.fixture
def record(home) -> RunRecord:
    """Of a run without an epsilon, whose output holds real rows."""
    table = pa.table({"instruction": ["a zibby row"], "response": ["b"]})
    distilled = write_table(table, kind="distilled", label=private("ward"), parents=["source:ward@c1"])
    synthetic = write_table(table, kind="synthetic", label=private("ward"), parents=[distilled])
    made = {"released": distilled, "synthetic": synthetic}
    return RunRecord(method="trajectory-matching", source="ward", charge_id="c1", label_names=(), config={}, **made)


@pytest.fixture
def out(record, tmp_path):
    """Its folder, with the export that --share-real-rows asks for."""
    told = StatementFiles({}, "in words")
    write_results(tmp_path / "out", record, lambda folder: None, statement=told, shares_real_rows=True)
    return tmp_path / "out"


@pytest.mark.parametrize("place", ["", "export", "export/synthetic.parquet"])
def test_of_a_private_run_its_record_tells_source_and_charge(place, out, record, call):
    code, said = call("lineage", out / place)
    assert code == 0, said
    assert "is private" in said
    assert "internal/run.json" in said
    assert "private(ward)" in said
    for name in (record.synthetic.id, record.released.id, "source:ward@c1"):
        assert name in said
    assert "zibby" not in said


def test_the_record_is_told_to_programs_as_a_recorded_lineage_is(out, record, call):
    code, said = call("lineage", out, "--json")
    assert code == 0, said
    root = json.loads(said[said.index("{") :])
    assert (root["id"], root["kind"]) == (record.synthetic.id, "synthetic")
    (released,) = root["parents"]
    assert (released["id"], released["parents"][0]["id"]) == (record.released.id, "source:ward@c1")


def test_a_private_artifact_away_from_its_run_is_said_to_be_recorded_nowhere(out, record, call, tmp_path):
    taken = tmp_path / "taken.parquet"
    taken.write_bytes((out / "export/synthetic.parquet").read_bytes())
    for what in (record.synthetic.id, taken):
        code, said = call("lineage", what)
        assert (code, said.count("\n")) == (2, 1), said
        assert f"artifact {record.synthetic.id}: " in said
        assert "private" in said
        assert "internal/run.json" in said


@pytest.fixture
def released_out(home, tmp_path):
    """The folder of a run that released its table, and that this tracking store has never heard of."""
    model = write_table(
        pa.table({"text": ["w"]}), kind="model", label=released(GUARANTEE), parents=["source:reviews@c1"]
    )
    synthetic = write_table(pa.table({"text": ["a"]}), kind="synthetic", label=released(GUARANTEE), parents=[model])
    made = {"released": model, "synthetic": synthetic}
    record = RunRecord(method="voted-texts", source="reviews", charge_id="c1", label_names=(), config={}, **made)
    out = tmp_path / "released"
    write_results(out, record, lambda folder: None, statement=StatementFiles({}, "in words"))
    return out, record


def test_where_the_tracking_store_is_another_the_record_of_the_run_tells_source_and_charge(released_out, call):
    out, record = released_out
    for what in (out, out / "export", out / "export/synthetic.parquet"):
        code, said = call("lineage", what)
        assert code == 0, said
        assert "source:reviews@c1" in said
        assert record.synthetic.id in said
        assert "UNDERSTUDY_MLFLOW_URI" in said


@pytest.mark.parametrize("is_changed", [False, True])
def test_of_a_file_that_was_changed_it_is_said_that_the_run_did_not_release_it(is_changed, released_out, call):
    file = released_out[0] / "export/synthetic.parquet"
    table = pq.read_table(file)
    pq.write_table(table.slice(1) if is_changed else table, file)
    code, said = call("lineage", file)
    assert (code, "source:reviews@c1" in said) == (0, True), said
    assert (f"note: {file} names artifact" in said) == is_changed


def test_an_exported_file_away_from_its_run_names_the_store_that_does_not_know_it(released_out, call, tmp_path):
    taken = tmp_path / "taken.parquet"
    taken.write_bytes((released_out[0] / "export/synthetic.parquet").read_bytes())
    code, said = call("lineage", taken)
    assert (code, said.count("\n")) == (2, 1), said
    assert "mlflow.db" in said
    assert "UNDERSTUDY_MLFLOW_URI" in said


@pytest.mark.parametrize("what", ["no/such/path", "no-such-file.parquet", "p58"])
def test_a_name_that_is_neither_a_file_nor_an_artifact_is_refused_as_both(what, call, home):
    code, said = call("lineage", what)
    assert (code, said.count("\n")) == (2, 1), said
    assert f"understudy: {what}: " in said
    assert "neither a file" in said
    assert "artifact" in said
