"""What a purge removes from users' folders: what is private of its own source, wherever a kill left it, and no more."""

import functools
import os
import shutil
import signal
import threading
from pathlib import Path

import forked
import pyarrow as pa
import pytest

from understudy.artifacts.access import write_table
from understudy.errors import InputError
from understudy.locks import locked_folder
from understudy.privacy.labels import private
from understudy.runs import removal
from understudy.runs.audits.withheld import check_no_release, withheld_export
from understudy.runs.evaluations.report import noted_report
from understudy.runs.finished_folders import forget_withheld_before, remember
from understudy.runs.folders import RUN_FILE, STATEMENT, RunRecord, StatementFiles, write_results
from understudy.runs.placement import EXPORT, INTERNAL
from understudy.runs.removal import Removed, remove_private
from understudy.settings import settings


def record_of(source: str) -> RunRecord:
    """Of a run whose table is private: it holds a row that says whose it is."""
    table = pa.table({"text": [f"a row of {source}"]})
    made = write_table(table, kind="texts", label=private(source))
    return RunRecord(method="m", source=source, charge_id="c", label_names=(), config={}, released=made, synthetic=made)


def report(folder: Path) -> None:
    (folder / "report.html").write_text("figures")


def share(out: Path, source: str, *, verdict: str = "none") -> None:
    """A run with --share-real-rows."""
    statement = StatementFiles({"source": source, "verdict": verdict}, "in words")
    write_results(out, record_of(source), report, statement=statement, shares_real_rows=True)


def finish(out: Path, source: str) -> Path:
    """A run that released what it exports."""
    share(out, source, verdict="proven under assumptions")
    return out


def keep(out: Path, source: str, fill=report) -> None:
    """A run that exports nothing."""
    write_results(out, record_of(source), fill, statement=None)


def names(out: Path) -> list[str]:
    """What lies in a folder; nothing where a purge has emptied and removed it."""
    return sorted(path.name for path in out.iterdir()) if out.exists() else []


def sources_in(out: Path) -> set[str]:
    """Whose rows lie in a folder, wherever in it."""
    sources = ("ward", "clinic")
    files = [path.read_bytes() for path in out.rglob("*.parquet")]
    return {source for source in sources if any(f"a row of {source}".encode() in file for file in files)}


def notes() -> list[Path]:
    return list((settings().private_root / "delivered").iterdir())


def die(*_, **__) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(target, *given) -> None:
    """Run a function in a process of its own, which it kills."""
    assert forked.called(target, *given) == -signal.SIGKILL


def die_after_renames(out: Path, renames: int) -> None:
    """Of folders in DIR, by this process alone."""
    made, rename = [], os.replace

    def counted(source, place):
        rename(source, place)
        if Path(place).parent == out:
            made.append(place)
            if len(made) == renames:
                die()

    os.replace = counted


def keep_and_die(out: Path, source: str, renames: int | None) -> None:
    if renames is None:
        keep(out, source, die)
    die_after_renames(out, renames)
    keep(out, source)


def share_and_die(out: Path, source: str, renames: int | None) -> None:
    if renames is None:
        shutil.copy2 = die
    else:
        die_after_renames(out, renames)
    share(out, source)


def stop_after_removals(stop, removals: int, patch: pytest.MonkeyPatch) -> None:
    """Call `stop` after so many removals of a file or a folder."""
    made = []

    def counted(remove, *given, **options):
        remove(*given, **options)
        made.append(given)
        if len(made) == removals:
            stop()

    for name in ("unlink", "rmdir"):  # of which all others are made
        patch.setattr(os, name, functools.partial(counted, getattr(os, name)))


def purge_and_die(source: str, removals: int) -> None:
    stop_after_removals(die, removals, pytest.MonkeyPatch())
    remove_private(source)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_only_folders_of_the_source_lose_what_is_private(tmp_path):
    mine, other, taken = finish(tmp_path / "mine", "ward"), finish(tmp_path / "other", "clinic"), tmp_path / "taken"
    for source in ("ward", "clinic"):
        finish(taken, source)
    assert remove_private("ward") == Removed(internal=[str(mine / INTERNAL)])
    assert names(mine) == [EXPORT], "what was released stands for itself"
    assert (names(other), names(taken)) == ([EXPORT, INTERNAL], [EXPORT, INTERNAL])
    assert remove_private("ward") == Removed()
    assert sorted(remove_private("clinic").internal) == [str(other / INTERNAL), str(taken / INTERNAL)]
    assert notes() == []


def test_a_first_run_that_was_killed_leaves_nothing_after_a_purge(tmp_path):
    out = tmp_path / "out"
    killed(keep_and_die, out, "ward", None)
    assert (names(out), sources_in(out)) == ([".internal.new"], {"ward"})
    assert remove_private("ward") == Removed(internal=[str(out / ".internal.new")])
    assert names(out) == []
    assert notes() == []


@pytest.mark.parametrize("order", [("ward", "clinic"), ("clinic", "ward")])
@pytest.mark.parametrize("renames", [None, 1, 2])
def test_a_run_killed_in_the_place_of_anothers_hides_neither_from_its_purge(tmp_path, renames, order):
    out = tmp_path / "out"
    keep(out, "ward")
    killed(keep_and_die, out, "clinic", renames)
    assert sources_in(out) == {"ward", "clinic"}
    first, second = order
    assert len(remove_private(first).internal) == 1
    assert sources_in(out) == {second}
    assert len(remove_private(second).internal) == 1
    assert names(out) == []
    assert notes() == []


@pytest.mark.parametrize("renames", [None, 1, 3])
def test_an_export_of_real_rows_goes_and_what_a_kill_left_of_one(tmp_path, renames):
    out = tmp_path / "out"
    share(out, "ward")
    killed(share_and_die, out, "ward", renames)
    assert len(names(out)) == (3 if renames is None else 4)
    assert len(remove_private("ward").exports) == 2
    assert names(out) == []
    assert notes() == []


@pytest.mark.parametrize("place", ["export", ".export.new", ".export.old"])
@pytest.mark.parametrize(("source", "verdict"), [("clinic", "none"), ("ward", "heuristic")])
def test_an_export_of_another_source_and_a_released_one_stay(tmp_path, place, source, verdict):
    remember(tmp_path, source="ward")
    share(tmp_path, source, verdict=verdict)
    shutil.rmtree(tmp_path / INTERNAL)
    (tmp_path / EXPORT).rename(tmp_path / place)
    assert remove_private("ward") == Removed()
    assert STATEMENT in names(tmp_path / place)


@pytest.mark.parametrize("place", [".internal.new", ".internal.old", ".export.new", ".export.old"])
@pytest.mark.parametrize("said", [None, "", '{"source": "wa'])
def test_a_part_of_a_folder_that_says_nothing_goes_where_a_run_of_the_source_was(tmp_path, place, said):
    for out in (tmp_path / "noted", tmp_path / "not"):
        (out / place).mkdir(parents=True)
        (out / place / "synthetic.parquet").write_text("a row")
        if said is not None:
            (out / place / (RUN_FILE if "internal" in place else STATEMENT)).write_text(said)
    remember(tmp_path / "noted", source="ward")
    assert remove_private("ward").left == []
    assert names(tmp_path / "noted") == []
    assert "synthetic.parquet" in names(tmp_path / "not" / place)


@pytest.mark.parametrize("name", [INTERNAL, EXPORT])
def test_a_folder_that_may_be_the_users_own_is_told_and_stays(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.tex").write_text("mine")
    remember(tmp_path, source="ward")
    for _ in range(2):
        (left,) = remove_private("ward").left
        assert left.startswith(f"{tmp_path / name}: ")
    assert names(tmp_path / name) == ["thesis.tex"]
    shutil.rmtree(tmp_path / name)
    assert remove_private("ward") == Removed()
    assert notes() == []


def test_no_link_is_followed(tmp_path):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    share(out, "ward")
    (out / INTERNAL).rename(elsewhere)
    (out / INTERNAL).symlink_to(elsewhere)
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    (out / EXPORT / "linked").symlink_to(tmp_path)
    told = remove_private("ward")
    assert told.exports == [str(out / EXPORT)]
    (left,) = told.left
    assert left.startswith(f"{out / INTERNAL}: a link")
    assert RUN_FILE in names(elsewhere)
    assert kept.read_text() == "mine"
    assert names(out) == [INTERNAL]
    assert len(notes()) == 1


def test_a_folder_that_was_moved_is_told_until_it_is_back(tmp_path):
    out, elsewhere = finish(tmp_path / "out", "ward"), tmp_path / "elsewhere"
    out.rename(elsewhere)
    for _ in range(2):
        (left,) = remove_private("ward").left
        assert left.startswith(f"{out}: ")
        assert INTERNAL in names(elsewhere)
    elsewhere.rename(out)
    assert remove_private("ward") == Removed(internal=[str(out / INTERNAL)])
    assert notes() == []


def test_what_cannot_be_removed_is_told_and_keeps_no_other_folder(tmp_path, monkeypatch):
    first, second = finish(tmp_path / "a", "ward"), finish(tmp_path / "b", "ward")
    remove = shutil.rmtree

    def refuse(path, *given, **options):
        if Path(path) == first / INTERNAL:
            raise PermissionError(13, "Permission denied", str(path))
        remove(path, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(removal.shutil, "rmtree", refuse)
        told = remove_private("ward")
    assert told == Removed(internal=[str(second / INTERNAL)], left=[f"{first / INTERNAL}: Permission denied"])
    assert remove_private("ward") == Removed(internal=[str(first / INTERNAL)])


def test_a_purge_that_was_killed_is_finished_by_the_next(tmp_path):
    out = tmp_path / "out"
    share(out, "ward")
    killed(purge_and_die, "ward", 2)
    assert names(out / INTERNAL) == [RUN_FILE]
    assert len(remove_private("ward").exports) == 1
    assert names(out) == []
    assert notes() == []


def test_a_purge_that_was_interrupted_after_any_step_is_finished_by_the_next(tmp_path):
    for removals in range(1, 20):
        out = tmp_path / str(removals)
        share(out, "ward")
        with pytest.MonkeyPatch.context() as patch:
            stop_after_removals(interrupt, removals, patch)
            try:
                remove_private("ward")
            except KeyboardInterrupt:
                pass
            else:
                break
        assert remove_private("ward").left == []
        assert names(out) == []
        assert notes() == []
    assert removals == 13, "four of internal/, seven of export/, the note, the folder"


def test_a_purge_waits_for_the_run_that_fills_a_folder(tmp_path):
    entered, go_on, told = threading.Event(), threading.Event(), []

    def slow(folder: Path) -> None:
        entered.set()
        assert go_on.wait(30)
        report(folder)

    run = threading.Thread(target=keep, args=(tmp_path / "out", "ward", slow))
    run.start()
    assert entered.wait(30)
    purge = threading.Thread(target=lambda: told.append(remove_private("ward")))
    purge.start()
    purge.join(0.2)
    assert purge.is_alive()
    go_on.set()
    run.join()
    purge.join()
    assert told == [Removed(internal=[str(tmp_path / "out" / INTERNAL)])]


def test_a_folder_that_a_purge_empties_goes_and_no_other_one(tmp_path, monkeypatch):
    """Those of an audit too, which lie in each other; not one where another source's run may put something yet."""
    for name in ("audit/claim", "audit/null-control", "kept", "others", "here"):
        keep(tmp_path / name, "ward")
    with noted_report(tmp_path / "audit", {"ward"}):
        report(tmp_path / "audit")
    (tmp_path / "kept/notes.txt").write_text("of the user")
    remember(tmp_path / "others", source="clinic")
    monkeypatch.chdir(tmp_path / "here")
    assert remove_private("ward").left == []
    assert names(tmp_path) == ["here", "kept", "others", "understudy-home"]
    assert names(tmp_path / "kept") == ["notes.txt"]
    assert remove_private("clinic").left == []


def test_a_run_that_waited_for_a_folder_which_a_purge_removed_makes_it_anew(tmp_path):
    out = finish(tmp_path / "out", "ward")
    run = threading.Thread(target=keep, args=(tmp_path / "other", "clinic"))
    (tmp_path / "other").mkdir()
    with locked_folder(tmp_path / "other"):
        run.start()
        run.join(0.2)
        assert run.is_alive()
        (tmp_path / "other").rmdir()
    run.join(30)
    assert not run.is_alive()
    assert names(tmp_path / "other") == [INTERNAL]
    with locked_folder(out), pytest.raises(FileNotFoundError), locked_folder(tmp_path / "gone"):
        pytest.fail("it was made")


@pytest.mark.parametrize("is_noted", [False, True])
def test_a_report_that_was_read_from_what_is_being_removed_goes_too(is_noted, tmp_path, monkeypatch):
    """A comparison has read the figures of its runs when a purge removes them, and writes its own afterwards."""
    keep(tmp_path / "run", "ward")
    if is_noted:
        tmp_path.joinpath("compared").mkdir()
        remember(tmp_path / "compared", source="ward")
    clear, written = removal._clear, []

    def and_write(out, source, done):
        if out.name == "run" and not written:
            if is_noted:
                remember(tmp_path / "compared", source="ward")
            with noted_report(tmp_path / "compared", {"ward"}):
                written.append((tmp_path / "compared" / "report.json").write_text("figures"))
        return clear(out, source, done)

    listed = removal.noted
    # The folder of the comparison, if it is known already, is cleared before that of its run.
    monkeypatch.setattr(removal, "noted", lambda source: sorted(listed(source), key=lambda found: found[1].name))
    monkeypatch.setattr(removal, "_clear", and_write)
    assert remove_private("ward").internal == [str(tmp_path / "run" / INTERNAL)]
    assert written
    assert not (tmp_path / "compared").exists()
    assert listed("ward") == []


@pytest.mark.parametrize("whole", [True, False])
def test_an_export_that_an_audit_withholds_goes_whatever_a_kill_left_of_it(whole, home, tmp_path):
    """Its statement promises, as that of a released one does, which stays; or its removal was killed halfway."""

    def cut_off():
        with withheld_export(tmp_path / "claim", source="ward", run="claim"):
            finish(tmp_path / "claim", "ward")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_off()
    if not whole:
        (tmp_path / "claim" / EXPORT / STATEMENT).unlink()
    finish(tmp_path / "run", "ward")
    assert (tmp_path / "claim" / EXPORT).exists()
    assert remove_private("clinic") == Removed()
    removed = remove_private("ward")
    assert removed.left == []
    assert removed.exports == [str(tmp_path / "claim" / EXPORT)]
    assert names(tmp_path / "claim") == []
    assert names(tmp_path / "run") == [EXPORT]
    assert notes() == []


@pytest.mark.parametrize("source", ["ward", "clinic"])
def test_what_a_later_run_released_where_an_audit_was_killed_stays(source, home, tmp_path):
    """Of whichever source; that of the audit's own run is gone with its folder, and does not stay while it is there."""
    claim, other = tmp_path / "claim", tmp_path / "other"

    def cut_off(out):
        with withheld_export(out, source="ward", run="claim"):
            finish(out, "ward")
            forget_withheld_before(out, run="claim")
            raise KeyboardInterrupt

    for out in (claim, other):
        with pytest.raises(KeyboardInterrupt):
            cut_off(out)
    finish(claim, source)
    forget_withheld_before(claim, run="a later one")
    assert remove_private("ward").exports == [str(other / EXPORT)]
    assert (claim / EXPORT / STATEMENT).exists()


def test_an_audit_is_refused_where_a_run_has_released_what_it_would_remove(home, tmp_path):
    def cut_off():
        with withheld_export(tmp_path / "claim", source="ward", run="claim"):
            check_no_release(tmp_path / "claim")
            finish(tmp_path / "claim", "ward")
            raise KeyboardInterrupt

    check_no_release(tmp_path / "claim")
    with pytest.raises(KeyboardInterrupt):
        cut_off()
    check_no_release(tmp_path / "claim")
    forget_withheld_before(tmp_path / "claim", run="a later one")
    with pytest.raises(InputError, match=r"expected no export/ in claim/"):
        check_no_release(tmp_path / "claim")


def test_what_an_audit_withholds_is_gone_when_its_run_has_ended(home, tmp_path):
    for _ in range(2):
        with withheld_export(tmp_path / "claim", source="ward", run="claim"):
            finish(tmp_path / "claim", "ward")
        assert names(tmp_path / "claim") == [INTERNAL]
        assert len(notes()) == 1
    # A later run of its own in this folder releases what it exports.
    finish(tmp_path / "claim", "ward")
    assert remove_private("ward").exports == []
    assert names(tmp_path / "claim") == [EXPORT]
