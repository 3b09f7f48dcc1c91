"""Which folders a run takes, and what the one it has filled says of itself."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.errors import InputError
from understudy.runs import folders
from understudy.runs.evaluations.report import check_report_folder
from understudy.runs.folders import artifact_in, check_folder


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


@pytest.mark.parametrize("there", [None, "text", "table"])
def test_a_place_that_names_no_artifact_is_refused(tmp_path, there):
    place = tmp_path / "some.parquet"
    if there == "text":
        place.write_text("no table")
    elif there == "table":
        pq.write_table(pa.table({"text": ["a"]}), place)
    with pytest.raises(InputError, match=r"some\.parquet: expected the --out folder"):
        artifact_in(place)
