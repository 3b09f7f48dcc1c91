"""Notes of the folders that hold what follows from private rows: one per folder and source, whole or not there."""

import stat

import pytest

from understudy.runs import finished_folders
from understudy.runs.finished_folders import is_withheld, noted, remember
from understudy.settings import settings


def notes():
    return sorted((settings().private_root / "delivered").iterdir())


def test_a_folder_is_noted_for_every_source_and_closed_to_others(tmp_path):
    for source in ("ward", "clinic", "ward"):
        remember(tmp_path / "out", source=source)
    assert [stat.S_IMODE(note.stat().st_mode) for note in notes()] == [0o600, 0o600]
    assert sorted([*noted("ward"), *noted("clinic")]) == [(note, tmp_path / "out") for note in notes()]
    assert noted("other") == []


def test_exports_that_do_not_stay_are_removed_before_a_folder_is_looked_at_otherwise(tmp_path):
    """Cut off, one does not say whose it is, and the other note of its folder would be left behind with a complaint."""
    for number in range(8):
        for withheld in ("", "a claim"):
            remember(tmp_path / f"{number}", source="ward", withheld=withheld)
    assert [is_withheld(note) for note, _ in noted("ward")] == [True] * 8 + [False] * 8


@pytest.mark.parametrize("content", ["", '{"out": "x"', '"text"', '{"source": "ward"}'])
def test_a_note_that_a_kill_left_half_written_names_no_folder(content, tmp_path):
    remember(tmp_path / "out", source="ward")
    (whole,) = notes()
    (whole.parent / "broken.json").write_text(content)
    assert noted("clinic") == []
    assert notes() == [whole]
    (whole.parent / "broken.json").write_text(content)
    assert noted("ward") == [(whole, tmp_path / "out")]


def test_a_note_is_whole_or_not_there(tmp_path, monkeypatch):
    remember(tmp_path / "out", source="ward")
    (note,) = notes()
    before = note.read_bytes()
    monkeypatch.setattr(finished_folders.Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    for source in ("ward", "clinic"):
        with pytest.raises(KeyboardInterrupt):
            remember(tmp_path / "out", source=source)
    assert [path.read_bytes() for path in notes()] == [before]
