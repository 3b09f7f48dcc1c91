"""Secrets of canaries: what they are drawn from, and how often whoever reads their versions is right."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest

from understudy.auditing.canary_secrets import (
    candidates_of,
    drawn_places,
    guessed_secrets,
    versions,
    with_last_words,
)
from understudy.auditing.secret_metrics import NO_MODEL, guessed_shares, guesses_in_words, secret_metrics
from understudy.data import tables

WORDS = [f"{first}{last}{end}" for first in "bcdfgh" for last in ("ank", "ell", "ind", "ock") for end in "aeiou"]
ROWS = {
    "labelled": pa.table(
        {"text": ["banka banka ducka", "cella della"], "label": [0, 1]}, schema=tables.LABELLED_SCHEMA
    ),
    "texts": pa.table({"text": ["banka banka ducka", "cella della"]}, schema=tables.TEXT_SCHEMA),
    "clients": pa.table({"client_id": ["a", "b"], "text": ["banka ducka", "cella della"]}, schema=tables.CLIENT_SCHEMA),
    "instructions": pa.table(
        {"instruction": ["binda", "docka"], "response": ["banka banka ducka", "cella della"]},
        schema=tables.INSTRUCTION_SCHEMA,
    ),
}


def keyed(key):
    return lambda name: hashlib.sha256(key + name).digest()


@pytest.mark.parametrize("kind", ROWS)
def test_a_secret_is_the_last_word_of_a_canary_and_no_other_of_it(kind):
    rows = ROWS[kind]
    candidates = candidates_of(rows, words=WORDS, named="a")
    column = "response" if kind == "instructions" else "text"
    told = with_last_words(rows, [those[5] for those in candidates])
    assert told.schema == rows.schema
    assert told.drop_columns([column]).equals(rows.drop_columns([column]))
    for plain, text, those in zip(rows[column].to_pylist(), told[column].to_pylist(), candidates, strict=True):
        public = plain.rpartition(" ")[0]
        assert text == f"{public} {those[5]}"
        assert len(set(those)) == 64
        assert not set(those) & set(public.split()), "else the canary itself would tell of it"
    read = versions(told, candidates)
    assert read.schema == rows.schema
    assert read.num_rows == 128
    assert read.slice(5, 1).equals(told.slice(0, 1))
    assert read.slice(64 + 5, 1).equals(told.slice(1, 1))
    assert read[column].to_pylist()[64:] == [f"cella {word}" for word in candidates[1]]


def test_candidates_are_public_and_of_another_source_others():
    first, again, other = (candidates_of(ROWS["texts"], words=WORDS, named=name) for name in "aab")
    assert first == again
    assert first != other


def test_secrets_are_uniform_and_hang_on_the_key_and_on_no_other_canary():
    names = [number.to_bytes(8) for number in range(6_400)]
    first, second = (drawn_places(names, keyed(key)) for key in (b"one", b"two"))
    counts = np.bincount(first, minlength=64)
    # 63 degrees of freedom: above 120 in one key of 60,000.
    assert ((counts - 100) ** 2 / 100).sum() < 120
    # Binomial(6,400, 1 / 64), four standard deviations.
    assert abs(np.equal(first, second).sum() - 100) < 40
    assert drawn_places(names[:9], keyed(b"one")) == first[:9]


def test_who_sees_that_the_right_word_became_likelier_is_right_whatever_word_is_likely():
    random = np.random.default_rng(0)
    before, places = random.normal(5, 2, (30, 64)), random.integers(64, size=30)
    after = before.copy()
    after[np.arange(30), places] -= 0.1
    found = guessed_secrets(before, after, places.tolist())
    assert (found.hits, found.texts, found.rate) == (30, 30, 1)
    assert found.interval[0] > found.chance == 1 / 64
    after[np.arange(10), places[:10]] += 0.2
    assert guessed_secrets(before, after, places.tolist()).hits == 20


def test_who_never_met_the_canaries_is_right_once_in_64():
    """Over many draws of the key, whatever the model thinks of the words; and where it has not changed at all."""
    random = np.random.default_rng(1)
    before, after = random.normal(size=(2, 100, 64))
    right = sum(
        guessed_secrets(before, after, drawn_places([bytes([n]) for n in range(100)], keyed(bytes([key])))).hits
        for key in range(200)
    )
    # Binomial(20,000, 1 / 64): 312.5, four standard deviations of 17.5.
    assert abs(right - 312.5) < 70
    assert guessed_secrets(before, before, [0] * 100).rate == pytest.approx(1 / 64)


def figures(right, secrets):
    places = [0] * secrets
    after = np.zeros((secrets, 64))
    after[np.arange(secrets), [0] * right + [1] * (secrets - right)] = -1
    return guessed_secrets(np.zeros((secrets, 64)), after, places)


def test_what_was_guessed_is_told_of_each_run_by_name():
    guesses = {
        "positive_control": {"put_in": figures(20, 30), "left_out": figures(1, 34)},
        "null_control": {"left_out": figures(2, 64)},
        "claim": {"put_in": figures(3, 30), "left_out": figures(0, 34)},
    }
    metrics = secret_metrics(guesses)
    rates = {name: share.rate for name, share in guessed_shares(metrics).items()}
    assert rates == pytest.approx({"claim": 0.1, "positive_control": 2 / 3, "null_control": 2 / 64, "left_out": 0})
    assert metrics.values["audit.secrets.chance"] == 1 / 64
    assert 0.1 < metrics.values["audit.secrets.detectable_rate"] < 0.25
    assert metrics.intervals["audit.secrets.rate"] == figures(3, 30).interval
    said = guesses_in_words(guessed_shares(metrics))
    assert "with this noise 10.0% of 30" in said
    assert "without noise 66.7% of 30" in said
    assert "says nothing" not in said
    guesses["positive_control"] = {"put_in": figures(1, 30)}
    assert guesses_in_words(guessed_shares(secret_metrics(guesses))).endswith("so this says nothing")


def test_nothing_is_told_of_a_method_without_a_model_and_of_an_audit_from_before():
    metrics = secret_metrics({})
    assert metrics.missing == (NO_MODEL,)
    assert guessed_shares(metrics) == {}
    assert guesses_in_words({}) == ""


def test_a_claim_that_was_not_run_has_no_figure():
    metrics = secret_metrics(
        {"positive_control": {"put_in": figures(0, 30)}, "null_control": {"left_out": figures(0, 64)}}
    )
    assert set(guessed_shares(metrics)) == {"positive_control", "null_control"}
    assert guesses_in_words(guessed_shares(metrics)) == ""
