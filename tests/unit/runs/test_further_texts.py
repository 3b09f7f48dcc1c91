"""Further texts are drawn from an export with the record of its own run, or with none."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from full_disk import files_of_at_most

from understudy.errors import InputError
from understudy.methods.further import FurtherDraw
from understudy.runs import further_texts
from understudy.runs.file_origin import RELEASED
from understudy.runs.further_texts import generate_more


@pytest.fixture
def exported(tmp_path):
    """An export of preference optimisation beside the record of another run, in the run's folder."""
    (tmp_path / "export/model").mkdir(parents=True)
    (tmp_path / "internal").mkdir()
    statement = {"method": "preference-optimization", "ledger_entries": [{"id": "charge-1"}]}
    (tmp_path / "export/statement.json").write_text(json.dumps(statement))
    record = {"charge_id": "charge-2", "config": {}, "label_names": ["a", "b"]}
    (tmp_path / "internal/run.json").write_text(json.dumps(record))
    return tmp_path


def test_the_record_of_another_run_is_not_used(exported):
    with pytest.raises(InputError, match=r"internal/run\.json") as refused:
        generate_more(exported, samples=2)
    assert "--samples" in str(refused.value)
    # That of its own run is: it is read, and refused only for what it lacks.
    record = {"charge_id": "charge-1", "config": {"samples": "none"}, "label_names": ["a", "b"]}
    (exported / "internal/run.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="samples"):
        generate_more(exported, samples=2)


@pytest.mark.parametrize("config", [{"samples": "none"}, {"rounds": 1, "colour": "red"}, "text", ["rounds"], None])
def test_settings_that_are_damaged_or_of_another_version_are_refused_with_a_way_on(exported, config):
    record = {"charge_id": "charge-1", "config": config, "label_names": ["a", "b"]}
    (exported / "internal/run.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=rf"^--from {exported}\S*: .*internal/run\.json.*config.*repeat") as refused:
        generate_more(exported, samples=2)
    assert "\n" not in str(refused.value)
    assert "pydantic" not in str(refused.value)


def test_conditional_generation_refuses_damaged_settings_too(exported, monkeypatch):
    from understudy.methods.conditional_generation import more

    monkeypatch.setattr(more, "load_trained", lambda folder: None)
    draw = FurtherDraw(exported / "export", {"config": {"train": {"epochs": "x"}}}, samples=2, seed_step=1)
    with pytest.raises(InputError, match=r"internal/run\.json.*config\.train\.epochs.*repeat"):
        more.further_rows(draw)


@pytest.mark.parametrize(("number", "value"), [("samples", 0), ("samples", -3), ("samples", 10**12), ("draw", -1)])
def test_numbers_are_bounded_as_the_settings_of_a_run_are(exported, number, value):
    with pytest.raises(InputError, match=rf"--{number} {value}: .*(greater|less) than"):
        generate_more(exported, **{"samples": 2, number: value})


@pytest.mark.parametrize("name", ["more.csv", "more.jsonl", "more", "more.parquet.gz"])
def test_a_file_whose_name_says_another_format_is_refused(exported, name):
    with pytest.raises(InputError, match=rf"--out .*{name}: .*\.parquet"):
        generate_more(exported, samples=2, out=exported / name)


def test_a_folder_that_takes_no_file_is_told_before_anything_is_drawn(exported):
    """The system lets root write into it, and then says that there is no such file."""
    with pytest.raises(InputError, match=r"/proc/more\.parquet: expected .*--out"):
        generate_more(exported, samples=2, out=Path("/proc/more.parquet"))


def test_a_broken_statement_is_told_apart_from_none(exported):
    for content in ("{", "[]"):
        (exported / "export/statement.json").write_text(content)
        with pytest.raises(InputError, match=r"export/statement\.json, found .*restore it"):
            generate_more(exported, samples=2)


def test_a_statement_of_an_earlier_version_is_named(exported):
    (exported / "export/statement.json").write_text(json.dumps({"ledger_entries": []}))
    with pytest.raises(InputError, match="names no method") as refused:
        generate_more(exported, samples=2)
    assert "understudy run" in str(refused.value)


def test_a_method_that_leaves_no_model_is_named_whatever_it_released(exported):
    """With or without an epsilon: one without released nothing."""
    for kept in ({"epsilon": 3.0}, {"epsilon": None}):
        statement = {"method": "trajectory-matching", "ledger_entries": [], **kept}
        (exported / "export/statement.json").write_text(json.dumps(statement))
        with pytest.raises(InputError, match=r"trajectory-matching, .*larger --samples") as refused:
            generate_more(exported, samples=2)
        assert "release" not in str(refused.value)
        assert "trajectories" not in str(refused.value)


def test_a_folder_without_a_statement_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"statement\.json"):
        generate_more(tmp_path, samples=2)


def test_what_is_wrong_in_the_exported_model_is_said_of_the_option(exported, monkeypatch):
    """Which files a model consists of, its method alone knows; what else it refuses stays as it is."""
    for told, expected in (
        (f"{exported / 'export/model'}: expected heads.safetensors", rf"^--from {exported}: .*export/model: expected "),
        ("UNDERSTUDY_DEVICE=cuda: expected a GPU", "^UNDERSTUDY_DEVICE"),
        (f"--from {exported / 'export'}: none", f"^--from {exported / 'export'}: none$"),
    ):

        def refused(_, told=told):
            raise InputError(told)

        monkeypatch.setattr(further_texts, "load", lambda _, refused=refused: refused)
        with pytest.raises(InputError, match=expected):
            generate_more(exported, samples=2)


def test_texts_are_not_put_into_the_export_of_a_run_that_took_the_folder_over_meanwhile(exported, monkeypatch):
    """They said that they were drawn from its model."""

    def released(name: str) -> None:
        table = pa.table({"text": ["a"]}).replace_schema_metadata({RELEASED: name})
        pq.write_table(table, exported / "export/synthetic.parquet")

    def taken_over(_: FurtherDraw) -> pa.Table:
        released("another")
        return pa.table({"text": ["b"]})

    released("one")
    monkeypatch.setattr(further_texts, "load", lambda _: taken_over)
    with pytest.raises(InputError, match="taken over meanwhile"):
        generate_more(exported, samples=2)
    assert not list(exported.glob("export/synthetic-*"))


@pytest.mark.parametrize("place", ["export", "internal", "."])
def test_texts_are_not_put_into_the_folder_of_another_run(exported, monkeypatch, tmp_path, tmp_path_factory, place):
    """There they would be handed over under a statement that is not theirs."""
    monkeypatch.setattr(further_texts, "load", lambda _: lambda _: pa.table({"text": ["a"]}))
    other = tmp_path / "other"
    for name in ("export/statement.json", "internal/run.json"):
        (other / name).parent.mkdir(parents=True)
        (other / name).write_text("{}")
    with pytest.raises(InputError, match=r"more\.parquet: .*the one of a run, \S*other.*outside"):
        generate_more(exported, samples=2, out=other / place / "more.parquet")
    assert not list(other.rglob("*.parquet"))
    for allowed in (exported / "export", tmp_path_factory.mktemp("elsewhere")):
        assert generate_more(exported, samples=2, out=allowed / "more.parquet") == (allowed / "more.parquet", 1)


def test_a_full_disk_is_told_with_the_file_and_leaves_none(exported, monkeypatch):
    table = pa.table({"text": [str(number) for number in range(9000)]})
    monkeypatch.setattr(further_texts, "load", lambda _: lambda _: table)
    more = exported / "export/synthetic-2-1.parquet"
    with files_of_at_most(1000), pytest.raises(OSError, match=f"File too large: '{more}'"):
        generate_more(exported, samples=2)
    assert not [path for path in more.parent.iterdir() if "synthetic" in path.name]


def test_what_an_earlier_draw_left_when_it_was_killed_goes(exported, monkeypatch):
    """It would have been handed over with the export."""
    monkeypatch.setattr(further_texts, "load", lambda _: lambda _: pa.table({"text": ["a"]}))
    (exported / "export/.synthetic-9-1.parquet.part").write_bytes(b"PAR1")
    generate_more(exported, samples=2)
    assert sorted(path.name for path in (exported / "export").iterdir()) == [
        "model",
        "statement.json",
        "synthetic-2-1.parquet",
    ]


def test_a_file_that_appeared_while_texts_were_drawn_is_not_overwritten(exported, monkeypatch):
    more = exported / "export/synthetic-2-1.parquet"

    def drawn(_: FurtherDraw) -> pa.Table:
        more.write_bytes(b"another's")
        return pa.table({"text": ["a"]})

    monkeypatch.setattr(further_texts, "load", lambda _: drawn)
    with pytest.raises(InputError, match="exists"):
        generate_more(exported, samples=2)
    assert more.read_bytes() == b"another's"
