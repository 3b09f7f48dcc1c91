"""What a run takes for public and was itself released is known by a statement beside it or by its manifest."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.artifacts.access import path_of, write_json
from understudy.errors import InputError
from understudy.privacy.inherited import EarlierRelease
from understudy.privacy.labels import Guarantee, private, public, released
from understudy.runs.earlier_releases import earlier_releases, note_of
from understudy.runs.file_origin import ARTIFACT, RELEASED, with_origin


def guarantee(charge, epsilon=2.0):
    promised = {"unit": "example", "relation": "replace_special", "delta": 1e-6, "accountant": "PLD"}
    return Guarantee(source="clinic", charge_id=charge, epsilon=epsilon, **promised)


def write_statement(folder, own, inherited=(), verdict="proven under assumptions"):
    facts = own.model_dump() | {
        "ledger_entries": [{"id": own.charge_id}],
        "released": [f"the model {'f' * 64}", "any texts"],
    }
    facts |= {"verdict": verdict}
    (folder / "model").mkdir(parents=True)
    (folder / "synthetic.parquet").touch()
    (folder / "statement.json").write_text(json.dumps(facts | {"inherited": [one.model_dump() for one in inherited]}))


@pytest.mark.parametrize("name", ["model", "model/filter", "synthetic.parquet"])
def test_an_export_is_known_by_its_statement_with_what_it_builds_on(tmp_path, name):
    first = EarlierRelease(setting="model", name="model", guarantees=(guarantee("first"),))
    write_statement(tmp_path / "export", guarantee("second", 3.0), inherited=[first])
    (tmp_path / "export/model/filter").mkdir()
    (tmp_path / "statement.json").write_text("{}")
    place = str(tmp_path / "export" / name)
    promised = (guarantee("second", 3.0), guarantee("first"))
    (found,) = earlier_releases({"model": "tiny-llama", "seeds": place})
    assert (found.setting, found.guarantees) == ("seeds", promised)
    assert found.name == name.rpartition("/")[2]


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


def test_an_artifact_whose_manifest_does_not_say_what_it_builds_on_is_refused(home, tmp_path):
    """Its run may have built on another release, whose promise adds to it."""
    ref = write_json({"a": 1}, kind="facts", label=released(guarantee("own")))
    with pytest.raises(InputError, match=r"^seeds=.*charge own released.*name it in export/"):
        earlier_releases({"seeds": str(path_of(ref))})
    with pytest.raises(InputError, match=r"^model=.*charge own released"):
        earlier_releases({"model": str(path_of(ref) / "value.json")})
    secret = write_json({"a": 1}, kind="facts", label=private("clinic"))
    assert earlier_releases({"model": str(path_of(secret))}) == (), "which is refused elsewhere"
    plain = write_json({"a": 1}, kind="facts", label=public())
    assert earlier_releases({"model": str(path_of(plain))}) == ()


def test_an_artifact_beside_its_statement_is_known_by_it(home, tmp_path):
    ref = write_json({"a": 1}, kind="facts", label=released(guarantee("own")))
    write_statement(tmp_path / "export", guarantee("own"), inherited=[])
    shutil.copytree(path_of(ref), tmp_path / "export" / "model", dirs_exist_ok=True)
    (found,) = earlier_releases({"model": str(tmp_path / "export" / "model")})
    assert found.guarantees == (guarantee("own"),)


ODD = guarantee("odd").model_dump() | {"epsilon": -1, "ledger_entries": [{"id": "odd"}]}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ledger_entries": []}', json.dumps(ODD)])
def test_a_file_of_that_name_that_is_no_statement_says_nothing(tmp_path, text):
    (tmp_path / "model").mkdir()
    (tmp_path / "statement.json").write_text(text)
    (tmp_path / "manifest.json").write_text(text)
    assert earlier_releases({"model": str(tmp_path / "model")}) == ()


def test_a_statement_that_was_changed_is_refused_and_not_passed_over(tmp_path):
    write_statement(tmp_path / "export", guarantee("own"))
    file = tmp_path / "export" / "statement.json"
    facts = json.loads(file.read_text())
    for changed in (facts | {"epsilon": -1}, facts | {"inherited": [{"of": "a later version"}]}):
        file.write_text(json.dumps(changed))
        with pytest.raises(InputError, match=r"^model=.*statement\.json.*restore it"):
            earlier_releases({"model": str(tmp_path / "export" / "model")})


@pytest.mark.parametrize(
    "changed",
    [{"epsilon": 0.5}, {"delta": 1e-9}, {"source": "school"}, {"unit": "client"}, {"relation": "add_or_remove_one"}],
)
def test_a_statement_that_promises_better_than_the_ledgers_charge_is_refused(tmp_path, changed):
    """The sum with it would be stated too small, or for other rows."""
    own, of_another_ledger = guarantee("own", 1.99999), guarantee("theirs")
    stated = guarantee("own", 2.0)
    inherited = [EarlierRelease(setting="model", name="model", guarantees=(stated,))]
    for folder, first, builds_on in (("direct", stated, ()), ("through", of_another_ledger, inherited)):
        write_statement(tmp_path / folder, first, inherited=builds_on)
        named, file = {"model": str(tmp_path / folder / "model")}, tmp_path / folder / "statement.json"
        assert earlier_releases(named, charged={"own": own}) == earlier_releases(named), "rounded up"
        facts = json.loads(file.read_text())
        facts |= {} if builds_on else changed
        for one in facts["inherited"]:
            one["guarantees"][0] |= changed
        file.write_text(json.dumps(facts))
        with pytest.raises(InputError, match=r"^model=.*was changed: charge own has epsilon=1\.99999.*restore it"):
            earlier_releases(named, charged={"own": own})


@pytest.mark.parametrize("left", ["", '{"source": "cli', "{}", "[]", None])
@pytest.mark.parametrize("name", ["model", "synthetic.parquet"])
def test_an_export_whose_statement_cannot_be_read_is_refused(tmp_path, left, name):
    """As a copy that was cut off leaves it, or somebody who removed one file of two."""
    export = tmp_path / "export"
    write_statement(export, guarantee("own"))
    (export / "statement.md").write_text("in words")
    (export / "statement.json").unlink() if left is None else (export / "statement.json").write_text(left)
    with pytest.raises(InputError, match=r"statement of the export.*statement\.json; restore it"):
        earlier_releases({"model": str(export / name)})


@pytest.mark.parametrize("kind", [ARTIFACT, RELEASED])
def test_texts_of_a_release_are_known_wherever_generate_or_a_copy_put_them(tmp_path, kind):
    own = guarantee("own")
    write_statement(tmp_path / "export", own)
    file = tmp_path / "elsewhere" / "further.parquet"
    file.parent.mkdir()
    pq.write_table(with_origin(pa.table({"text": ["drawn"]}), {kind: "f" * 64}), file)
    named = {"seeds": str(file)}
    with pytest.raises(InputError, match=r"^seeds=.*names f{64}, which was released.*copy that file beside it"):
        earlier_releases(named)
    shutil.copy(tmp_path / "export/statement.json", file.parent)
    assert [one.guarantees for one in earlier_releases(named)] == [(own,)]
    pq.write_table(pa.table({"text": ["public"]}), file)
    (file.parent / "statement.json").unlink()
    assert earlier_releases(named) == ()


def test_texts_of_one_release_beside_the_statement_of_another_are_refused(tmp_path):
    """Counted by that statement, they would cost what another release promised, perhaps to other rows."""
    write_statement(tmp_path / "export", guarantee("other", 0.5))
    further = tmp_path / "export" / "further.parquet"
    pq.write_table(with_origin(pa.table({"text": ["drawn"]}), {RELEASED: "a" * 64}), further)
    with pytest.raises(InputError, match=r"^seeds=.*made of a{64} and the statement\.json of another release.*its own"):
        earlier_releases({"seeds": str(further)})
    pq.write_table(with_origin(pa.table({"text": ["drawn"]}), {RELEASED: "f" * 64}), further)
    assert [one.guarantees for one in earlier_releases({"seeds": str(further)})] == [(guarantee("other", 0.5),)]


def test_what_lies_in_another_folder_below_an_export_is_not_of_it(tmp_path):
    write_statement(tmp_path / "export", guarantee("own"))
    (tmp_path / "export" / "mine" / "model").mkdir(parents=True)
    assert earlier_releases({"model": str(tmp_path / "export" / "mine" / "model")}) == ()


def test_a_heuristic_promise_is_called_so_and_so_is_what_is_built_on_it(tmp_path):
    """Its label list was read from the rows, say: the sum with it is no more proven than it is."""
    write_statement(tmp_path / "first", guarantee("first"), verdict="heuristic")
    (first,) = earlier_releases({"model": str(tmp_path / "first" / "model")})
    write_statement(tmp_path / "second", guarantee("second"), inherited=[first])
    (second,) = earlier_releases({"model": str(tmp_path / "second" / "model")})
    assert (first.heuristic, second.heuristic) == (True, True)
    assert "under a heuristic promise of" in note_of(first)
    write_statement(tmp_path / "other", guarantee("second"))
    assert not earlier_releases({"model": str(tmp_path / "other" / "model")})[0].heuristic
