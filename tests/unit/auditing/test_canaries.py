"""Canaries of each kind of rows, their coins, and the tables of an audit's three runs."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.auditing.canaries import Canaries, canary_rows, placed, toss, vocabulary
from understudy.auditing.echo import echoes
from understudy.data import tables
from understudy.errors import InputError, RowError
from understudy.runs.audits.request import audit_of
from understudy.runs.audits.runs import CONDITIONS, check_power, prepared
from understudy.runs.request import Budget, RunRequest

pytestmark = pytest.mark.usefixtures("fixed_root_key")

WORDS = [f"{first}{last}" for first in "bcdfgh" for last in ("ank", "ell", "ind", "ock", "ust")]


@pytest.fixture
def request_for(tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "home"))

    def made(rows, method, *, canaries=20, seed=0, source="rows", delta=1e-4, **fields):
        pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
        run = RunRequest(
            data=str(tmp_path / "rows.parquet"),
            source=source,
            out=str(tmp_path / "out"),
            epsilon=3,
            delta=delta,
            budget=Budget(epsilon=8, delta=1e-2),
            **fields,
        )
        return audit_of(method, run, canaries=canaries, seed=seed, insist=False)

    return made


def labelled(count):
    return {
        "Words": [None if i == 7 else f"row {i} of them" for i in range(count)],
        "Class": [None if i == 7 else i % 2 for i in range(count)],
    }


LABELLED = {"text_column": "Words", "label_column": "Class", "label_names": {"0": "no", "1": "yes"}}
PAIRS = {"instruction": [f"what is {i}" for i in range(80)], "response": [f"it is {i}" for i in range(80)]}
CLIENTS = {"client_id": [f"c{i // 2}" for i in range(160)], "text": [f"text {i} of a client" for i in range(160)]}


def tables_of(request):
    with prepared(request) as drafts:
        read = {condition: pq.read_table(drafts.requests[condition].data) for condition in CONDITIONS}
        return drafts, read


def test_rows_change_in_the_slots_of_canaries_alone(request_for):
    drafts, read = tables_of(request_for(labelled(60), "conditional-generation", **LABELLED))
    original = labelled(60)["Words"]
    assert read["claim"].equals(read["positive_control"])
    for condition, none in (("claim", False), ("null_control", True)):
        texts = read[condition]["text"].to_pylist()
        assert len(texts) == 60
        assert [texts[slot] for slot in range(60) if slot not in drafts.canaries.slots] == [
            text for slot, text in enumerate(original) if slot not in drafts.canaries.slots
        ]
        for slot, row, coin in zip(
            drafts.canaries.slots, drafts.canaries.rows.to_pylist(), drafts.canaries.included, strict=True
        ):
            assert texts[slot] == (row["text"] if coin and not none else None)
            assert (read[condition]["label"][slot].as_py() is None) == (texts[slot] is None)
    assert set(filter(None, read["claim"]["label"].to_pylist())) == {"no", "yes"}


@pytest.mark.parametrize("units", [None, 64])
def test_a_row_that_is_null_moves_no_canary(request_for, units):
    """Neighbours stay neighbours: the tables that a charge is about differ in that row and in no other."""
    fields = {"units": units, **LABELLED}
    drafts, whole = tables_of(request_for(labelled(60), "conditional-generation", **fields))
    for gone in (3, 40, 59):
        rows = labelled(60)
        rows["Words"][gone] = rows["Class"][gone] = None
        others, read = tables_of(request_for(rows, "conditional-generation", **fields))
        assert others.canaries.slots == drafts.canaries.slots
        assert (others.canaries.included == drafts.canaries.included).all()
        for condition in CONDITIONS:
            pairs = zip(whole[condition].to_pylist(), read[condition].to_pylist(), strict=True)
            assert {slot for slot, (one, other) in enumerate(pairs) if one != other} <= {gone}


@pytest.fixture(params=["held out", "test file"])
def measured_on(request, tmp_path):
    """Fields of a request: rows to measure on of the file itself, or of a table of their own."""

    def fields(rows):
        if request.param == "held out":
            return {}
        others = {name: [f"other {value}" for value in values[:20]] for name, values in rows.items()}
        pq.write_table(pa.table(others), tmp_path / "test.parquet")
        return {"test": str(tmp_path / "test.parquet")}

    return fields


def test_a_pair_that_is_null_moves_no_canary(request_for, measured_on):
    fields = {"units": 80, **measured_on(PAIRS)}
    drafts, whole = tables_of(request_for(PAIRS, "knowledge-distillation", **fields))
    for gone in (0, 41, 79):
        rows = {name: [*values[:gone], None, *values[gone + 1 :]] for name, values in PAIRS.items()}
        others, read = tables_of(request_for(rows, "knowledge-distillation", **fields))
        assert others.canaries.slots == drafts.canaries.slots
        for condition in CONDITIONS:
            pairs = zip(whole[condition].to_pylist(), read[condition].to_pylist(), strict=True)
            assert {slot for slot, (one, other) in enumerate(pairs) if one != other} <= {gone}


def test_a_client_who_is_missing_moves_one_client(request_for, measured_on):
    """One who makes room for a canary may be another then: still one client more or less."""
    fields = {"units": 80, **measured_on(CLIENTS)}

    def documents(table):
        return {(row["client_id"], row["text"]) for row in table.to_pylist()}

    drafts, whole = tables_of(request_for(CLIENTS, "preference-optimization", **fields))
    for gone in ("c0", "c10", "c41", "c79"):
        kept = [place for place, name in enumerate(CLIENTS["client_id"]) if name != gone]
        rows = {name: [values[place] for place in kept] for name, values in CLIENTS.items()}
        others, read = tables_of(request_for(rows, "preference-optimization", **fields))
        assert others.canaries.rows.equals(drafts.canaries.rows)
        assert (others.canaries.included == drafts.canaries.included).all()
        for condition in CONDITIONS:
            assert len({name for name, _ in documents(whole[condition]) ^ documents(read[condition])}) <= 1


def test_a_file_with_a_row_less_than_declared_has_its_canaries_where_they_were(request_for):
    drafts, whole = tables_of(request_for(labelled(60), "conditional-generation", units=64, **LABELLED))
    short = {name: values[:59] for name, values in labelled(60).items()}
    others, read = tables_of(request_for(short, "conditional-generation", units=64, **LABELLED))
    assert others.canaries.slots == drafts.canaries.slots
    for condition in CONDITIONS:
        pairs = zip(whole[condition].to_pylist(), read[condition].to_pylist(), strict=True)
        assert {slot for slot, (one, other) in enumerate(pairs) if one != other} <= {59}


def test_the_three_runs_differ_in_epsilon_and_place_alone(request_for):
    drafts, _ = tables_of(request_for(labelled(60), "conditional-generation", **LABELLED))
    claim, positive, null = (drafts.requests[condition].model_dump() for condition in CONDITIONS)
    assert {name for name in claim if claim[name] != positive[name]} == {"epsilon", "out"}
    assert {name for name in positive if positive[name] != null[name]} == {"data", "out"}
    assert claim["epsilon"] == 3
    assert positive["epsilon"] == float("inf")


def test_every_canary_is_trained_on_if_its_coin_says_so(request_for):
    from understudy.privacy.ledger.ledger import Ledger
    from understudy.runs.units import row_is_held_out

    drafts, _ = tables_of(request_for(labelled(60), "conditional-generation", canaries=20, **LABELLED))
    ledger = Ledger.open()
    assert not any(
        row_is_held_out(slot, lambda *data: ledger.keyed_hash("rows", *data)) for slot in drafts.canaries.slots
    )


def test_the_same_audit_is_the_same_and_another_seed_or_source_another(request_for):
    rows = labelled(60)
    first, again, other, elsewhere = (
        tables_of(request_for(rows, "conditional-generation", **fields, **LABELLED))[0]
        for fields in ({}, {}, {"seed": 1}, {"source": "others"})
    )
    assert first.requests == again.requests
    assert first.canaries.rows.equals(again.canaries.rows)
    assert (first.canaries.included == again.canaries.included).all()
    for one in (other, elsewhere):
        assert not set(first.canaries.rows["text"].to_pylist()) & set(one.canaries.rows["text"].to_pylist())
        assert first.requests["claim"].data != one.requests["claim"].data


def test_pairs_and_clients_have_canaries_too(request_for):
    drafts, read = tables_of(request_for(PAIRS, "knowledge-distillation"))
    texts = read["claim"]
    assert texts.column_names == ["instruction", "response"]
    for slot, row, coin in zip(
        drafts.canaries.slots, drafts.canaries.rows.to_pylist(), drafts.canaries.included, strict=True
    ):
        assert texts.slice(slot, 1).to_pylist() == [row if coin else {"instruction": None, "response": None}]
    drafts, read = tables_of(request_for(CLIENTS, "preference-optimization"))
    named = set(drafts.canaries.rows["client_id"].to_pylist())
    assert len(named) == 20
    found = {condition: set(read[condition]["client_id"].to_pylist()) for condition in CONDITIONS}
    of_coins = {
        name for name, coin in zip(drafts.canaries.rows["client_id"].to_pylist(), drafts.canaries.included, strict=True)
        if coin
    }  # fmt: skip
    assert found["claim"] & named == of_coins
    assert found["null_control"] & named == set()
    assert len(found["null_control"]) == 60, "as many clients leave, whatever the coins"
    assert found["claim"] - named == found["null_control"]


@pytest.mark.parametrize(("rows", "method"), [(PAIRS, "knowledge-distillation"), (CLIENTS, "preference-optimization")])
def test_each_canary_ends_with_a_secret_of_its_own_that_hangs_on_the_key(rows, method, request_for, monkeypatch):
    """Texts before it, and the words that it may be, are public functions of source and seed."""
    from understudy.privacy.ledger.ledger import Ledger

    column = "response" if rows is PAIRS else "text"

    def canaries():
        return tables_of(request_for(rows, method))[0].canaries

    first = canaries()
    for text, words, place in zip(first.rows[column].to_pylist(), first.candidates, first.secrets, strict=True):
        assert text.endswith(f" {words[place]}")
        assert text.split().count(words[place]) == 1
    plain = Ledger.keyed_hash
    monkeypatch.setattr(
        Ledger,
        "keyed_hash",
        lambda self, name, purpose, data: plain(
            self, name, f"other {purpose}" if purpose.startswith("audit-secret") else purpose, data
        ),
    )
    second = canaries()
    assert second.candidates == first.candidates
    assert second.secrets != first.secrets
    assert (second.included == first.included).all(), "coins and secrets have nothing to do with each other"
    for one, other in zip(first.rows[column].to_pylist(), second.rows[column].to_pylist(), strict=True):
        assert one.rpartition(" ")[0] == other.rpartition(" ")[0]
    assert not any(word in repr(first) for words in first.candidates for word in words)


def test_the_number_of_clients_tells_nothing_of_the_coins(request_for):
    """What is declared is counted on the clients as they are, and the same for every condition."""
    drafts, read = tables_of(request_for(CLIENTS, "preference-optimization"))
    assert {drafts.requests[condition].units for condition in CONDITIONS} == {80}
    assert "n=80 clients were counted" in " ".join(drafts.notes)
    assert len(set(read["claim"]["client_id"].to_pylist())) < 80


def test_what_cannot_be_audited_is_refused_without_a_text(request_for):
    bad = labelled(60)
    bad["Words"][3] = None
    with pytest.raises(RowError, match="row 3") as refused:
        tables_of(request_for(bad, "conditional-generation", **LABELLED))
    assert "of them" not in str(refused.value)
    with pytest.raises(InputError, match="at least 100 units"):
        tables_of(request_for(labelled(30), "conditional-generation", canaries=None, **LABELLED))
    with pytest.raises(InputError, match="at most half as many"):
        tables_of(request_for(labelled(60), "conditional-generation", canaries=40, **LABELLED))
    with pytest.raises(InputError, match="--label-names"):
        request_for(labelled(60), "conditional-generation", text_column="Words", labels_from_data=True)


def test_canaries_that_could_prove_nothing_are_refused():
    with pytest.raises(InputError, match="--canaries 8: even if all coins were guessed"):
        check_power("conditional-generation", 8, delta=0.01)
    assert 0 < check_power("conditional-generation", 20, delta=1e-4) < 10


@pytest.mark.parametrize(
    ("delta", "told"),
    [(0.02, r"--delta 0\.02: expected .* < 1/n = 0\.0167"), (0.016, r"--canaries 20: even .* at delta=0\.016")],
)
def test_a_delta_that_no_audit_can_have_is_refused_before_a_model_is_read(delta, told, request_for, monkeypatch):
    monkeypatch.setattr("understudy.runs.audits.runs.load_tokenizer", lambda _: pytest.fail("it was read"))
    with pytest.raises(InputError, match=told):
        tables_of(request_for(labelled(60), "conditional-generation", delta=delta, **LABELLED))


def test_coins_are_fair_and_hang_on_the_key():
    def coin(key):
        import hmac

        return lambda name: hmac.digest(key, name, "sha256")

    names = [number.to_bytes(8) for number in range(2_000)]
    first, second = (toss(names, coin(key)) for key in (b"one", b"two"))
    # Four standard deviations.
    assert abs(int(first.sum()) - 1_000) < 90
    assert abs(int((first == second).sum()) - 1_000) < 90
    assert (toss(names[:10], coin(b"one")) == first[:10]).all(), "a coin hangs on no other canary"


def test_labels_are_dealt_in_turn_and_words_are_public():
    rows = canary_rows("labelled", 7, words=WORDS, labels=3, named="a", schema=tables.LABELLED_SCHEMA)
    assert rows["label"].to_pylist() == [0, 1, 2, 0, 1, 2, 0]
    texts = [text.split() for text in rows["text"].to_pylist()]
    assert {word for text in texts for word in text} <= set(WORDS)
    assert [text[:10] for text in texts] == [[text[0]] * 10 for text in texts]
    assert len({text[0] for text in texts}) == 7, "no two have a word in common that is theirs"
    with pytest.raises(InputError, match="--canaries 31"):
        canary_rows("labelled", 31, words=WORDS, labels=3, named="a", schema=tables.LABELLED_SCHEMA)
    with pytest.raises(InputError, match="vocabulary"):
        vocabulary(type("Few", (), {"get_vocab": lambda self: {"\u0120word": 1}})())


def test_placed_keeps_the_table_whole():
    whole = pa.table({"text": ["a", "b", "c"], "label": [0, 1, 0]}, schema=tables.LABELLED_SCHEMA)
    rows = pa.table({"text": ["x", "y"], "label": [1, 0]}, schema=tables.LABELLED_SCHEMA)
    made = placed(whole, Canaries(rows, (0, 2), np.array([True, False])), included=[True, False], units=4)
    assert made["text"].to_pylist() == ["x", "b", None, None]
    assert made.schema == whole.schema


def test_what_was_trained_on_echoes():
    random = np.random.default_rng(2)
    texts = [" ".join(random.choice(WORDS, 12)) for _ in range(40)]
    scores = echoes([*texts[:20], "and other words besides"], texts)
    assert scores[:20].min() > scores[20:].max()
    assert (echoes([], texts) == echoes([], texts)).all()
    assert np.isfinite(echoes([], [*texts, ""])).all()
