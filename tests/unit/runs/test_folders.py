"""Which folders a run takes, and what the one it has filled says of itself."""

import resource
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.artifacts.access import write_table
from understudy.durable import is_of_disk
from understudy.errors import InputError, UnderstudyError
from understudy.privacy.labels import private
from understudy.runs import folders
from understudy.runs.evaluations.report import check_evaluated_folder, check_report_folder
from understudy.runs.file_origin import ARTIFACT
from understudy.runs.folders import RunRecord, StatementFiles, artifact_in, check_folder, write_results


def test_a_folder_with_anything_else_is_refused(tmp_path):
    (tmp_path / ".internal.mine").mkdir()
    with pytest.raises(InputError, match=r"\.internal\.mine"):
        check_folder(tmp_path, exports=True)


def test_a_run_without_an_export_does_not_stand_beside_an_earlier_one(tmp_path):
    for name in ("export", "internal"):
        (tmp_path / name).mkdir()
    check_folder(tmp_path, exports=True)
    with pytest.raises(InputError, match=r"choose another folder"):
        check_folder(tmp_path, exports=False)
    (tmp_path / "export").rmdir()
    check_folder(tmp_path, exports=False)


def test_a_folder_that_cannot_be_written_is_refused_unless_results_stand_there(tmp_path, monkeypatch):
    """Those may be the very run's that is asked for, which then only reads them."""

    def refused(out):
        raise InputError(f"--out {out}: not writable")

    monkeypatch.setattr(folders, "try_folder", refused)
    with pytest.raises(InputError, match="not writable"):
        check_folder(tmp_path, exports=True)
    (tmp_path / "internal").mkdir()
    (tmp_path / "internal" / "run.json").write_text("{}")
    check_folder(tmp_path, exports=True)


@pytest.mark.parametrize("place", ["/proc/out", "file/out"])
def test_where_nothing_can_be_made_neither_a_run_nor_a_report_begins(tmp_path, place):
    (tmp_path / "file").write_text("a file where a folder should be")
    with pytest.raises(InputError, match=r"--out .*choose another place"):
        check_folder(tmp_path / place, exports=True)
    with pytest.raises(InputError, match=r"--out .*choose another place"):
        check_report_folder(tmp_path / place, noun="an earlier audit", is_run=set().__contains__, is_such=Path.is_dir)


def test_a_private_table_is_not_exported_even_with_a_statement(tmp_path):
    made = write_table(pa.table({"text": ["a row"]}), kind="texts", label=private("ward"))
    record = RunRecord(
        method="m", source="ward", charge_id="c", label_names=(), config={}, released=made, synthetic=made
    )
    with pytest.raises(UnderstudyError, match=r"private\(ward\): only public and released ones are exported"):
        write_results(tmp_path / "out", record, lambda folder: None, statement=StatementFiles({}, "in words"))
    assert not (tmp_path / "out").exists()


def test_the_folder_of_a_purged_run_is_known_by_the_export_that_is_left(tmp_path):
    (tmp_path / "export").mkdir()
    pq.write_table(
        pa.table({"text": ["a"]}).replace_schema_metadata({ARTIFACT: "f" * 64}),
        tmp_path / "export" / "synthetic.parquet",
    )
    assert artifact_in(tmp_path) == artifact_in(tmp_path / "export") == "f" * 64


@pytest.fixture(params=["a copy of a purged run", "a run of another user"])
def unread(request, tmp_path, monkeypatch):
    """A run's folder of which only the export can be used."""
    (tmp_path / "internal").mkdir()
    (tmp_path / "internal" / "run.json").write_text("{}")
    if request.param == "a run of another user":

        def is_file(path: Path) -> bool:  # the superuser, who runs tests in containers, may read everything
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Path, "is_file", is_file)
    return tmp_path


def test_where_the_record_of_a_run_cannot_be_used_its_export_names_the_artifact(unread):
    (unread / "export").mkdir()
    table = pa.table({"text": ["a"]}).replace_schema_metadata({ARTIFACT: "f" * 64})
    pq.write_table(table, unread / "export" / "synthetic.parquet")
    assert artifact_in(unread) == "f" * 64


def test_where_nothing_of_a_run_can_be_used_that_is_said(unread):
    with pytest.raises(InputError, match=f"^{unread}.*"):
        artifact_in(unread)


@pytest.mark.parametrize("there", [None, "text", "table"])
def test_a_place_that_names_no_artifact_is_refused(tmp_path, there):
    place = tmp_path / "some.parquet"
    if there == "text":
        place.write_text("no table")
    elif there == "table":
        pq.write_table(pa.table({"text": ["a"]}), place)
    with pytest.raises(InputError, match=r"some\.parquet: expected the --out folder"):
        artifact_in(place)


@pytest.mark.parametrize("place", ["", "internal", "export", "export/evaluated", "evaluated"])
@pytest.mark.parametrize("mark", ["internal/run.json", "export/statement.json"])
def test_what_a_run_left_has_no_room_for_a_report_on_real_rows(tmp_path, mark, place):
    """In export/ it would be handed over, in internal/ it would replace the run's own, beside them nothing is taken."""
    run = tmp_path / "run"
    (run / mark).parent.mkdir(parents=True)
    (run / mark).write_text("{}")
    with pytest.raises(InputError, match=rf"--out {run / place}: .*the one of a run, {run}, .*choose one outside"):
        check_evaluated_folder(run / place)
    if place:
        for refused in (
            lambda: check_folder(run / place, exports=True),
            lambda: check_report_folder(run / place, noun="an audit", is_run=set().__contains__, is_such=Path.is_dir),
        ):
            with pytest.raises(InputError, match=r"choose one outside of it"):
                refused()
    check_folder(run, exports=True)
    check_evaluated_folder(tmp_path / "evaluated")
    assert not (tmp_path / "evaluated").exists()


def test_an_export_that_was_handed_over_has_no_room_for_one_either(tmp_path):
    for name in ("statement.json", "synthetic.parquet"):
        check_evaluated_folder(tmp_path)  # a user's own file of that name is no sign of a run
        (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match=r"choose one outside of it"):
        check_evaluated_folder(tmp_path)


@pytest.mark.parametrize(
    ("there", "takes"),
    [
        ({"report.json": '{"title": "Evaluation of a synthetic table"}', "report.html": ""}, True),
        ({"report.html": "left by a purge that was killed", "sources.json": '{"sources": ["ward"]}'}, True),
        ({"report.html": "a page of the user's"}, False),
        ({"report.json": '{"title": "Audit of bag-of-words"}', "sources.json": '{"sources": ["ward"]}'}, False),
        ({"report.json": "of the user's"}, False),
        ({"notes.txt": "of the user's"}, True),
    ],
)
def test_a_report_of_an_evaluation_replaces_its_like_alone(tmp_path, there, takes):
    for name, text in there.items():
        (tmp_path / name).write_text(text)
    if takes:
        check_evaluated_folder(tmp_path)
    else:
        with pytest.raises(InputError, match=r"an earlier evaluation, found .*choose another folder"):
            check_evaluated_folder(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == there


def test_a_released_model_that_no_longer_fits_on_the_disk_is_told_as_such(tmp_path):
    source, target = tmp_path / "release", tmp_path / "export"
    (source / "tokenizer").mkdir(parents=True)
    (source / "tokenizer" / "vocabulary").write_bytes(bytes(100_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match="vocabulary") as full:
            folders._copy_folder(source, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert is_of_disk(full.value)


def test_a_released_folder_is_exported_without_its_manifest(tmp_path):
    source, target = tmp_path / "release", tmp_path / "export"
    (source / "tokenizer").mkdir(parents=True)
    for name in ("manifest.json", "weights", "tokenizer/manifest.json"):
        (source / name).write_text(name)
    folders._copy_folder(source, target)
    found = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}
    assert found == {name: name for name in ("weights", "tokenizer/manifest.json")}
