"""Reports on rows that no source has yet."""

from understudy.runs.evaluations.unregistered import forget_rows, note_rows, sources_told, take_over
from understudy.runs.finished_folders import noted

ROWS, OTHERS = [b"one", b"two", b""], [b"three", b""]


def test_a_source_takes_over_what_was_made_of_its_rows_and_nothing_else(home, tmp_path):
    report, other = tmp_path / "report", tmp_path / "other"
    for out, rows in ((report, ROWS), (other, OTHERS)):
        out.mkdir()
        note_rows(out, rows)
    take_over("ward", [b"two", b""])
    take_over("ward", [b"two", b""])
    assert sources_told(report) == {"ward"}
    assert sources_told(other) is None
    assert [out for _, out in noted("ward")] == [report]
    take_over("clinic", [b"one"])
    assert sources_told(report) == {"ward", "clinic"}


def test_what_is_forgotten_is_not_taken_over(home, tmp_path):
    tmp_path.joinpath("report").mkdir()
    earlier, later = (note_rows(tmp_path / "report", [row]) for row in ROWS[:2])
    forget_rows(tmp_path / "report", but=later)
    take_over("ward", ROWS[:1])
    assert sources_told(tmp_path / "report") is None
    take_over("ward", ROWS[1:])
    assert sources_told(tmp_path / "report") == {"ward"}
    forget_rows(tmp_path / "report")
    assert not earlier.exists()
    assert not later.exists()


def test_a_folder_that_is_gone_keeps_no_source_from_registering(home, tmp_path):
    note_rows(tmp_path / "gone", ROWS)
    take_over("ward", ROWS)
    assert [out for _, out in noted("ward")] == [tmp_path / "gone"]
