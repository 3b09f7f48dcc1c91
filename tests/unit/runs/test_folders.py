"""Results are put in place whole, and what a killed delivery leaves stands in nobody's way."""

import multiprocessing
import os
import shutil
import signal
import stat
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from full_disk import files_of_at_most

from understudy.errors import InputError
from understudy.runs.folders import artifact_in, check_folder, replace_folder


def fill_with(text):
    def fill(folder: Path) -> None:
        (folder / "report.html").write_text(text)
        (folder / "run.json").write_text(text)

    return fill


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def die_half_way(folder: Path) -> None:
    (folder / "report.html").write_text("half")
    die()


def deliver_and_die(target: Path, renames: int | None) -> None:
    """Killed while the folder is filled, or after so many renames."""
    if renames is None:
        replace_folder(target, die_half_way)
    made, rename = [], os.replace

    def counted(source, place):
        rename(source, place)
        made.append(place)
        if len(made) == renames:
            die()

    os.replace = counted  # of this process alone
    replace_folder(target, fill_with("new"))


def test_a_full_disk_is_told_with_the_folder_and_leaves_the_old_results(tmp_path):
    target = tmp_path / "out" / "export"
    replace_folder(target, fill_with("old"))
    with files_of_at_most(2**20), pytest.raises(OSError, match=f"File too large: '{target}'"):
        replace_folder(target, fill_with("x" * 2**22))
    assert (target / "report.html").read_text() == "old"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("renames", [None, 1, 2])
def test_a_killed_delivery_leaves_a_whole_folder_and_the_next_one_clears_up(tmp_path, renames):
    target = tmp_path / "out" / "internal"
    replace_folder(target, fill_with("old"))
    child = multiprocessing.get_context("spawn").Process(target=deliver_and_die, args=(target, renames))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    left = sorted(folder.name for folder in target.parent.iterdir())
    assert (
        left
        == {
            None: [".internal.new", "internal"],
            1: [".internal.new", ".internal.old"],
            2: [".internal.old", "internal"],
        }[renames]
    )
    check_folder(target.parent, exports=True)
    replace_folder(target, fill_with("next"))
    assert [folder.name for folder in target.parent.iterdir()] == ["internal"]
    assert {file.name: file.read_text() for file in target.iterdir()} == {"report.html": "next", "run.json": "next"}


def test_a_delivery_that_fails_leaves_the_old_folder(tmp_path):
    target = tmp_path / "internal"
    replace_folder(target, fill_with("old"))

    def fail(_: Path) -> None:
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        replace_folder(target, fail)
    assert [folder.name for folder in tmp_path.iterdir()] == ["internal"]
    assert (target / "report.html").read_text() == "old"


def test_an_old_folder_that_a_crash_put_aside_comes_back_before_anything_else_is_tried(tmp_path):
    target, temporary = tmp_path / "internal", tmp_path / ".internal.old"
    replace_folder(temporary, fill_with("old"))

    def fail(_: Path) -> None:
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        replace_folder(target, fail)
    assert (target / "report.html").read_text() == "old"


def test_two_deliveries_to_one_place_take_turns(tmp_path):
    target, entered, go_on = tmp_path / "internal", threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        entered.set()
        assert go_on.wait(30)
        fill_with("first")(folder)

    first = threading.Thread(target=replace_folder, args=(target, slow))
    first.start()
    assert entered.wait(30)
    second = threading.Thread(target=replace_folder, args=(target, fill_with("second")))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    go_on.set()
    first.join()
    second.join()
    assert (target / "report.html").read_text() == "second"
    assert [folder.name for folder in tmp_path.iterdir()] == ["internal"]


def test_a_folder_with_anything_else_is_refused(tmp_path):
    (tmp_path / ".internal.mine").mkdir()
    with pytest.raises(InputError, match=r"\.internal\.mine"):
        check_folder(tmp_path, exports=True)


def test_a_run_without_an_export_does_not_stand_beside_an_earlier_one(tmp_path):
    for name in ("export", "internal"):
        replace_folder(tmp_path / name, fill_with(name))
    check_folder(tmp_path, exports=True)
    with pytest.raises(InputError, match=r"choose another folder"):
        check_folder(tmp_path, exports=False)
    shutil.rmtree(tmp_path / "export")
    check_folder(tmp_path, exports=False)


def modes(folder: Path) -> dict[str, int]:
    """Name -> permissions of a folder and everything in it."""
    return {
        path.relative_to(folder.parent).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in (folder, *sorted(folder.rglob("*")))
    }


def fill_deep(folder: Path) -> None:
    fill_with("deep")(folder)
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_text("w")


CLOSED = {
    "internal": 0o700,
    "internal/model": 0o700,
    "internal/model/weights": 0o600,
    "internal/report.html": 0o600,
    "internal/run.json": 0o600,
}


def test_a_closed_folder_opens_nothing_to_other_users(tmp_path):
    replace_folder(tmp_path / "internal", fill_deep)
    assert modes(tmp_path / "internal") == CLOSED
    replace_folder(tmp_path / "export", fill_deep, closed=False)
    assert modes(tmp_path / "export")["export"] == 0o755


def test_a_folder_that_was_open_is_replaced_by_a_closed_one(tmp_path):
    replace_folder(tmp_path / "internal", fill_deep, closed=False)
    replace_folder(tmp_path / "internal", fill_deep)
    assert modes(tmp_path / "internal") == CLOSED


def test_a_folder_is_closed_while_it_is_filled(tmp_path):
    seen = []
    replace_folder(tmp_path / "internal", lambda folder: seen.append(folder.stat().st_mode & 0o777), closed=False)
    assert seen == [0o700]


@pytest.mark.parametrize("there", [None, "text", "table"])
def test_a_place_that_names_no_artifact_is_refused(tmp_path, there):
    place = tmp_path / "some.parquet"
    if there == "text":
        place.write_text("no table")
    elif there == "table":
        pq.write_table(pa.table({"text": ["a"]}), place)
    with pytest.raises(InputError, match=r"some\.parquet: expected the --out folder"):
        artifact_in(place)
