"""The report of an evaluation says whose rows it is made of, and a purge of that source removes it."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from understudy.data.digests import row_digests
from understudy.data.tables import LabelledRows
from understudy.errors import InputError
from understudy.evaluation.metrics import Metrics
from understudy.evaluation.tables import ComparedTables
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.runs.audits import report as audits
from understudy.runs.comparisons import report as comparisons
from understudy.runs.evaluations import report as evaluated
from understudy.runs.evaluations.report import report_on_tables
from understudy.runs.finished_folders import noted
from understudy.runs.removal import Removed, remove_private
from understudy.settings import settings

WHOLE = ["report.html", "report.json", "sources.json"]


@pytest.fixture(autouse=True)
def not_measured(monkeypatch):
    """What the figures are does not matter here."""
    monkeypatch.setattr(evaluated, "measure_tables", lambda *_, **__: Metrics())


def rows(word: str) -> LabelledRows:
    table = pa.table({"text": [f"{word} one text", f"{word} another text"], "label": pa.array([0, 1], pa.int32())})
    return LabelledRows(table, ("no", "yes"))


def register(*sources: str) -> None:
    """Each with the rows of its name, as a run does."""
    ledger = Ledger.open()
    for name in sources:
        unit = {"unit": "example", "relation": "replace_special"}
        ledger.register(SourceRecord(name=name, epsilon=8, delta=1e-4, n=2, **unit))
        ledger.register_rows(name, row_digests(rows(name).table.select(["text"])))


def report(out: Path, real: str, test: str) -> None:
    report_on_tables(ComparedTables(rows("made"), rows(real), rows(test)), out)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_report_of_two_sources_goes_with_either(tmp_path):
    register("ward", "clinic", "other")
    for source in ("ward", "clinic"):
        report(tmp_path / "out", "ward", "clinic")
        assert remove_private("other") == Removed()
        assert names(tmp_path / "out") == WHOLE
        assert remove_private(source) == Removed(reports=[str(tmp_path / "out")])
        assert names(tmp_path / "out") == []
        assert remove_private("ward") == remove_private("clinic") == Removed()
    assert list((settings().private_root / "delivered").iterdir()) == []


def test_one_known_row_says_whose_a_table_is(tmp_path):
    out = tmp_path / "out"
    register("ward")
    mixed = LabelledRows(pa.concat_tables([rows("new").table, rows("ward").table.slice(1)]), ("no", "yes"))
    report_on_tables(ComparedTables(rows("made"), rows("new"), mixed), out)
    assert json.loads((out / "sources.json").read_text()) == {"sources": ["ward"]}
    assert (out / "sources.json").stat().st_mode & 0o077 == 0


def test_rows_of_no_source_leave_no_note_and_make_no_ledger(home, tmp_path):
    report(tmp_path / "out", "ward", "clinic")
    assert names(tmp_path / "out") == ["report.html", "report.json"]
    assert not (home / "ledger.db").exists()
    register("other")
    report(tmp_path / "out", "ward", "clinic")
    assert names(tmp_path / "out") == ["report.html", "report.json"]


def test_a_report_in_the_place_of_anothers_stays(tmp_path):
    out = tmp_path / "out"
    register("ward", "clinic")
    report(out, "ward", "ward")
    report(out, "clinic", "clinic")
    assert remove_private("ward") == Removed()
    assert names(out) == WHOLE
    report(out, "new", "new")
    assert remove_private("clinic") == Removed()
    assert names(out) == WHOLE, "and says that it is nobody's"


def test_a_report_that_was_not_finished_hides_none_of_its_sources(tmp_path, monkeypatch):
    """Stopped before the new page is in its place: the old one is there, and figures of the new rows."""
    out = tmp_path / "out"
    register("ward", "clinic")
    report(out, "ward", "ward")
    replace = os.replace

    def stop_at_the_page(source, place):
        if Path(place).name == "report.html":
            raise KeyboardInterrupt
        replace(source, place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop_at_the_page)
        with pytest.raises(KeyboardInterrupt):
            report(out, "clinic", "clinic")
    (out / ".report.html.0123").write_text("a draft that a kill left")
    for source in ("clinic", "ward"):
        assert json.loads((out / "sources.json").read_text()) == {"sources": ["clinic", "ward"]}
        assert remove_private(source) == Removed(reports=[str(out)])
        assert names(out) == []
        report(out, "clinic", "ward")


def test_what_does_not_say_whose_it_is_and_a_link_are_told_and_stay(tmp_path):
    register("ward")
    out, page = tmp_path / "out", tmp_path / "page.html"
    report(out, "ward", "ward")
    (out / "report.html").rename(page)
    (out / "report.html").symlink_to(page)
    (left,) = remove_private("ward").left
    assert left.startswith(f"{out / 'report.html'}: a link")
    (out / "sources.json").unlink()
    (left,) = remove_private("ward").left
    assert left.startswith(f"{out / 'report.html'}: no sources.json")
    assert page.is_file()
    (out / "report.html").unlink()
    assert remove_private("ward") == Removed()


@pytest.mark.parametrize("what", ["audit", "comparison"])
def test_a_report_is_noted_before_its_figures_are_read(what, home, tmp_path, monkeypatch):
    """A purge in between would find no note of it, remove what it was read from, and say that all is gone."""

    def read(*_):
        assert [out for _, out in noted("ward")] == [tmp_path / "out"]
        raise InputError("the figures are gone")

    run = SimpleNamespace(out=str(tmp_path / "out"), source="ward", method="m", model_name="n", report_facts={}, n=1)
    monkeypatch.setattr(comparisons, "_measured", read)
    monkeypatch.setattr(audits, "_promise", lambda plan: {})
    cell = SimpleNamespace(name="c", group="g", seed=0)
    write = {
        "audit": lambda: audits.write_audit(tmp_path / "out", run, read, claim=None),
        "comparison": lambda: comparisons.report_on_runs(SimpleNamespace(run=run), [cell], {}, []),
    }
    with pytest.raises(InputError, match="gone"):
        write[what]()
