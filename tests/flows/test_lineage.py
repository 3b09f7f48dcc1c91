"""`understudy lineage` of what is recorded nowhere: private artifacts, and names that are no artifact's."""

import json

import pyarrow as pa
import pytest

from understudy.artifacts.access import write_table
from understudy.privacy.labels import private
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


@pytest.mark.parametrize("what", ["no/such/path", "no-such-file.parquet", "p58"])
def test_a_name_that_is_neither_a_file_nor_an_artifact_is_refused_as_both(what, call, home):
    code, said = call("lineage", what)
    assert (code, said.count("\n")) == (2, 1), said
    assert f"understudy: {what}: " in said
    assert "neither a file" in said
    assert "artifact" in said
