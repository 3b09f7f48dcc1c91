"""A run's two folders are put in place whole and together, and what a killed run left stands in nobody's way."""

import os
import signal
import stat
import threading
from pathlib import Path

import pytest
from full_disk import files_of_at_most

from understudy.errors import InputError
from understudy.runs.folders import check_folder
from understudy.runs.placement import put_in_place

NAMES = ("export", "internal")


def fill_with(text):
    def fill(folder: Path) -> None:
        (folder / "table").write_text(text)
        (folder / "run.json").write_text(text)

    return fill


def put(out, text):
    """The results of one run."""
    put_in_place(out, fill_with(text), fill_export=fill_with(text))


def keep(out, text):
    """Those of a run that exports nothing."""
    put_in_place(out, fill_with(text))


def standing(out):
    """Whose the folders are; None where there is none."""
    return tuple((out / name / "run.json").read_text() if (out / name).exists() else None for name in NAMES)


def names(out):
    return sorted(path.name for path in out.iterdir())


def fail(_):
    raise InputError("no")


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def stop_at_rename(number, stop):
    """Call `stop` in the place of this rename, the first being 1."""
    made, rename = [], os.replace

    def counted(source, place):
        made.append(place)
        if len(made) == number:
            stop()
        rename(source, place)

    return counted


def killed(call):
    """Run a function in a process of its own, which it kills."""
    child = os.fork()
    if child == 0:
        try:
            call()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_results_are_on_the_disk_before_they_are_put_in_place(tmp_path, monkeypatch):
    """A loss of power after the rename would leave empty files under the names of a finished run."""
    out, events = tmp_path / "out", []
    flush, rename = os.fsync, os.replace

    def flushed(descriptor):
        events.append(os.fstat(descriptor).st_ino)
        flush(descriptor)

    def renamed(source, place):
        events.append(str(place))
        rename(source, place)

    def fill(folder: Path) -> None:
        fill_with("one")(folder)
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_text("one")

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    put_in_place(out, fill, fill_export=fill)
    for name in NAMES:
        place = events.index(str(out / name))
        for path in (out / name, *(out / name).rglob("*")):
            assert path.stat().st_ino in events[:place], path
        assert out.stat().st_ino in events[place:]


def put_and_die(out, moment):
    """Killed while one of the folders is filled, or in the place of a rename."""
    if isinstance(moment, int):
        os.replace = stop_at_rename(moment, die)
        put(out, "new")
    put_in_place(
        out,
        die if moment == "internal" else fill_with("new"),
        fill_export=die if moment == "export" else fill_with("new"),
    )


# Moment of the kill -> what stands then, and what stands when the next run fails.
KILLS = {
    "export": (("old", "old"), ("old", "old")),
    "internal": (("old", "old"), ("old", "old")),
    1: (("old", "old"), ("old", "old")),
    2: ((None, "old"), ("old", "old")),
    3: ((None, None), ("old", "old")),
    4: (("new", None), ("new", None)),
}


@pytest.mark.parametrize("moment", KILLS)
def test_whenever_a_run_is_killed_what_stands_is_of_one_run(tmp_path, moment):
    """Nor does the next run mix them, whether it fails or not; it clears up."""
    put(tmp_path, "old")
    killed(lambda: put_and_die(tmp_path, moment))
    left, brought_back = KILLS[moment]
    assert standing(tmp_path) == left
    check_folder(tmp_path, exports=True)
    with pytest.raises(InputError, match="no"):
        put_in_place(tmp_path, fail, fill_export=fill_with("next"))
    assert standing(tmp_path) == brought_back
    put(tmp_path, "next")
    assert standing(tmp_path) == ("next", "next")
    assert names(tmp_path) == list(NAMES)


@pytest.mark.parametrize(("rename", "kept"), [(1, "old"), (2, None)])
def test_a_killed_run_that_exports_nothing_leaves_a_whole_folder(tmp_path, rename, kept):
    keep(tmp_path, "old")

    def keep_and_die():
        os.replace = stop_at_rename(rename, die)
        keep(tmp_path, "new")

    killed(keep_and_die)
    assert standing(tmp_path) == (None, kept)
    with pytest.raises(InputError, match="no"):
        put_in_place(tmp_path, fail)
    assert standing(tmp_path) == (None, "old")
    keep(tmp_path, "next")
    assert names(tmp_path) == ["internal"]


@pytest.mark.parametrize("rename", [1, 2, 3])
def test_a_rename_that_fails_leaves_the_old_folders(tmp_path, monkeypatch, rename):
    put(tmp_path, "old")

    def refuse():
        raise PermissionError(13, "Permission denied", "internal")

    monkeypatch.setattr(os, "replace", stop_at_rename(rename, refuse))
    with pytest.raises(PermissionError):
        put(tmp_path, "new")
    assert standing(tmp_path) == ("old", "old")
    assert names(tmp_path) == list(NAMES)


def test_an_old_export_that_was_put_aside_does_not_come_back_beside_a_newer_report(tmp_path):
    """A kill came after the last rename, and the user has removed the export since."""
    put(tmp_path / "earlier", "old")
    keep(tmp_path / "out", "new")
    (tmp_path / "earlier" / "export").rename(tmp_path / "out" / ".export.old")
    keep(tmp_path / "out", "next")
    assert standing(tmp_path / "out") == (None, "next")
    assert names(tmp_path / "out") == ["internal"]


def test_a_full_disk_is_told_with_the_folder_and_leaves_the_old_results(tmp_path):
    out = tmp_path / "out"
    put(out, "old")
    for name in NAMES:
        fills = {"export": fill_with("new"), "internal": fill_with("new"), name: fill_with("x" * 2**22)}
        with files_of_at_most(2**20), pytest.raises(OSError, match=f"File too large: '{out / name}'"):
            put_in_place(out, fills["internal"], fill_export=fills["export"])
        assert standing(out) == ("old", "old")
        assert names(out) == list(NAMES)


def started(call):
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def waiting(text):
    """A fill that waits in the middle: the fill, and the two events that tell that it waits and let it go on."""
    entered, go_on = threading.Event(), threading.Event()

    def fill(folder: Path) -> None:
        entered.set()
        assert go_on.wait(30)
        fill_with(text)(folder)

    return fill, entered, go_on


def test_of_two_runs_into_one_folder_one_leaves_both_of_its_own(tmp_path):
    """And what it does last with them, it does before the other one touches them."""
    fill, entered, go_on = waiting("first")
    seen = []
    first = started(
        lambda: put_in_place(
            tmp_path, fill, fill_export=fill_with("first"), placed=lambda: seen.append(standing(tmp_path))
        )
    )
    assert entered.wait(30)
    second = started(lambda: put(tmp_path, "second"))
    second.join(0.1)
    assert second.is_alive()
    go_on.set()
    first.join()
    second.join()
    assert seen == [("first", "first")]
    assert standing(tmp_path) == ("second", "second")
    assert names(tmp_path) == list(NAMES)


def test_a_run_that_exports_nothing_refuses_an_export_that_came_since_it_was_checked(tmp_path):
    check_folder(tmp_path, exports=False)
    put(tmp_path, "other")
    with pytest.raises(InputError, match="choose another folder"):
        keep(tmp_path, "mine")
    assert standing(tmp_path) == ("other", "other")
    assert names(tmp_path) == list(NAMES)


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


def test_internal_opens_nothing_to_other_users_even_in_the_place_of_an_open_one(tmp_path):
    (tmp_path / "internal").mkdir(mode=0o755)
    fill_deep(tmp_path / "internal")
    put_in_place(tmp_path, fill_deep, fill_export=fill_deep)
    assert modes(tmp_path / "internal") == {
        "internal": 0o700,
        "internal/model": 0o700,
        "internal/model/weights": 0o600,
        "internal/run.json": 0o600,
        "internal/table": 0o600,
    }
    assert modes(tmp_path / "export")["export"] == 0o755


def test_a_folder_is_closed_while_it_is_filled(tmp_path):
    seen = []

    def look(folder: Path) -> None:
        seen.append(stat.S_IMODE(folder.stat().st_mode))

    put_in_place(tmp_path, look, fill_export=look)
    assert seen == [0o700, 0o700]
