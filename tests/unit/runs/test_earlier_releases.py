"""What a run takes for public and was itself released is known by a statement beside it or by its manifest."""

import json

import pytest

from understudy.artifacts.access import path_of, write_json
from understudy.privacy.inherited import EarlierRelease
from understudy.privacy.labels import Guarantee, private, released
from understudy.runs.earlier_releases import earlier_releases, note_of


def guarantee(charge, epsilon=2.0):
    promised = {"unit": "example", "relation": "replace_special", "delta": 1e-6, "accountant": "PLD"}
    return Guarantee(source="clinic", charge_id=charge, epsilon=epsilon, **promised)


def write_statement(folder, own, inherited=()):
    facts = own.model_dump() | {"ledger_entries": [{"id": own.charge_id}]}
    (folder / "model").mkdir(parents=True)
    (folder / "synthetic.parquet").touch()
    (folder / "statement.json").write_text(json.dumps(facts | {"inherited": [one.model_dump() for one in inherited]}))


@pytest.mark.parametrize("name", ["model", "synthetic.parquet"])
def test_an_export_is_known_by_its_statement_with_what_it_builds_on(tmp_path, name):
    first = EarlierRelease(setting="model", name="model", guarantees=(guarantee("first"),))
    write_statement(tmp_path / "export", guarantee("second", 3.0), inherited=[first])
    place = str(tmp_path / "export" / name)
    promised = (guarantee("second", 3.0), guarantee("first"))
    assert earlier_releases({"model": "tiny-llama", "seeds": place}) == (
        EarlierRelease(setting="seeds", name=name, guarantees=promised),
    )


def test_what_was_declared_disjoint_is_said_before_the_charge(tmp_path):
    write_statement(tmp_path / "export", guarantee("first"))
    named = {"model": str(tmp_path / "export" / "model")}
    (apart,) = earlier_releases(named, disjoint={"clinic": {"first", "second"}, "school": set()})
    assert (apart.disjoint, apart.adds) == (("clinic",), False)
    assert "so the promises do not add" in note_of(apart)
    (together,) = earlier_releases(named, disjoint={"school": {"first"}})
    assert (together.disjoint, together.adds) == ((), True)
    assert "the sum of both" in note_of(together)


def test_a_source_of_the_same_name_in_another_ledger_is_not_the_disjoint_one(tmp_path):
    write_statement(tmp_path / "ours", guarantee("first"))
    write_statement(tmp_path / "theirs", guarantee("of another ledger"))
    named = {"model": str(tmp_path / "ours" / "model"), "seeds": str(tmp_path / "theirs" / "model")}
    found = earlier_releases(named, disjoint={"clinic": {"first"}})
    assert [(one.disjoint, one.adds) for one in found] == [((), True), ((), True)], "the statement goes by names"
    del named["seeds"]
    assert [one.adds for one in earlier_releases(named, disjoint={"clinic": {"first"}})] == [False]


def test_an_artifact_is_known_by_its_manifest(home):
    ref = write_json({"a": 1}, kind="facts", label=released(guarantee("own")))
    (found,) = earlier_releases({"model": str(path_of(ref))})
    assert found.guarantees == (guarantee("own"),)
    secret = write_json({"a": 1}, kind="facts", label=private("clinic"))
    assert earlier_releases({"model": str(path_of(secret))}) == (), "which is refused elsewhere"


ODD = guarantee("odd").model_dump() | {"epsilon": -1, "ledger_entries": [{"id": "odd"}]}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ledger_entries": []}', json.dumps(ODD)])
def test_a_file_of_that_name_that_is_no_statement_says_nothing(tmp_path, text):
    (tmp_path / "model").mkdir()
    (tmp_path / "statement.json").write_text(text)
    (tmp_path / "manifest.json").write_text(text)
    assert earlier_releases({"model": str(tmp_path / "model")}) == ()
