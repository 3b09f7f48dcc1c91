"""What a purge removes from users' folders: the internal figures of its own source, and nothing else."""

import json
import stat
from pathlib import Path

import pytest

from understudy.runs import finished_folders
from understudy.runs.finished_folders import remember, remove_internal
from understudy.runs.folders import INTERNAL, RUN_FILE
from understudy.settings import settings


def finish(out: Path, source: str) -> Path:
    remember(out, source=source)
    (out / INTERNAL).mkdir(parents=True, exist_ok=True)
    (out / INTERNAL / RUN_FILE).write_text(json.dumps({"source": source}))
    (out / "export").mkdir(exist_ok=True)
    return out


def test_only_folders_of_the_source_lose_their_internal_figures(tmp_path):
    mine, other = finish(tmp_path / "mine", "ward"), finish(tmp_path / "other", "clinic")
    taken_over = finish(tmp_path / "taken", "ward")
    (taken_over / INTERNAL / RUN_FILE).write_text(json.dumps({"source": "clinic"}))
    moved = finish(tmp_path / "moved", "ward")
    moved.rename(tmp_path / "elsewhere")
    remember(tmp_path / "never", source="ward")
    assert remove_internal("ward") == [str(mine)]
    assert [path.name for path in mine.iterdir()] == ["export"]
    assert (other / INTERNAL / RUN_FILE).exists()
    assert (taken_over / INTERNAL / RUN_FILE).exists()
    assert remove_internal("ward") == []
    assert remove_internal("clinic") == [str(other)]


def test_a_folder_is_noted_for_every_source_and_closed_to_others(tmp_path):
    out = finish(tmp_path / "out", "ward")
    finish(out, "clinic")
    finish(out, "clinic")
    notes = list((settings().private_root / "delivered").iterdir())
    assert [stat.S_IMODE(note.stat().st_mode) for note in notes] == [0o600, 0o600]
    assert remove_internal("ward") == []
    assert remove_internal("clinic") == [str(out)]


@pytest.mark.parametrize("order", [("ward", "clinic"), ("clinic", "ward")])
def test_a_run_that_died_before_it_replaced_anothers_figures_does_not_hide_them(tmp_path, order):
    out = finish(tmp_path / "out", "ward")
    remember(out, source="clinic")
    assert [remove_internal(source) for source in order] == [[str(out)] if who == "ward" else [] for who in order]
    assert not (out / INTERNAL).exists()


@pytest.mark.parametrize("content", ["", '{"out": "x"', '"text"', '{"source": "ward"}'])
def test_a_note_that_a_kill_left_half_written_stops_no_purge(content, tmp_path):
    mine = finish(tmp_path / "mine", "ward")
    broken = settings().private_root / "delivered" / "broken.json"
    broken.write_text(content)
    assert remove_internal("clinic") == []
    assert not broken.exists()
    broken.write_text(content)
    assert remove_internal("ward") == [str(mine)]


def test_a_note_is_whole_or_not_there(tmp_path, monkeypatch):
    finish(tmp_path / "out", "ward")
    (note,) = (settings().private_root / "delivered").iterdir()
    before = note.read_bytes()
    monkeypatch.setattr(finished_folders.Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        remember(tmp_path / "out", source="clinic")
    assert note.read_bytes() == before
