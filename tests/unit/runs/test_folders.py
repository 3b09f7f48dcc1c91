"""Which folders a run takes, and what the one it has filled says of itself."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.errors import InputError
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


@pytest.mark.parametrize("there", [None, "text", "table"])
def test_a_place_that_names_no_artifact_is_refused(tmp_path, there):
    place = tmp_path / "some.parquet"
    if there == "text":
        place.write_text("no table")
    elif there == "table":
        pq.write_table(pa.table({"text": ["a"]}), place)
    with pytest.raises(InputError, match=r"some\.parquet: expected the --out folder"):
        artifact_in(place)
