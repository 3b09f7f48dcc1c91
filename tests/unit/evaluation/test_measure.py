import dataclasses
from functools import partial

import numpy as np
import pytest

from understudy.errors import InputError
from understudy.evaluation import measure, names
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.rows import Conditions, LabelledTexts
from understudy.evaluation.texts import fidelity, words
from understudy.evaluation.texts.encoder import embed

CONFIG = EvaluationConfig(profile="tiny", replicates=200, floor_splits=1)


@pytest.fixture(scope="module")
def data(make_reviews):
    train = make_reviews(60, seed=1)
    copied = LabelledTexts(train.texts[:40], train.labels[:40], train.label_names)
    generator = np.random.default_rng(0)
    useless = LabelledTexts(train.texts[:40], generator.permutation(train.labels[:40]), train.label_names)
    return {
        "train": train,
        "test": make_reviews(40, seed=2),
        "holdout": make_reviews(40, seed=3).texts,
        "good": make_reviews(40, seed=4),
        "copied": copied,
        "useless": useless,
    }


@pytest.fixture(scope="module")
def known(encoder, data):
    """The encoder, with all texts of this file encoded by one call, as an evaluation of `good` does."""
    texts = sorted({*data["good"].texts, *data["train"].texts, *data["test"].texts, *data["holdout"]})
    vectors = dict(zip(texts, encoder.encode(texts), strict=True))
    return dataclasses.replace(encoder, encode=lambda texts: np.stack([vectors[text] for text in texts]))


@pytest.fixture(scope="module")
def embedder(known):
    return partial(embed, encoder=known)


@pytest.fixture(scope="module")
def measured(data, embedder):
    return {
        name: measure.evaluate_synthetic(
            Conditions(data[name], data["train"], data["useless"]),
            data["test"],
            data["holdout"],
            config=CONFIG,
            embedder=embedder,
        )
        for name in ("good", "copied")
    }


def test_everything_is_measured_under_declared_names(measured):
    values = measured["good"].values
    names.check_names(values)
    expected = {
        "utility.synthetic.accuracy", "utility.real.accuracy", "utility.prompt_only.accuracy",
        "utility.synthetic.mean_recall", "utility.real.mean_recall", "utility.prompt_only.mean_recall",
        "utility.probe.synthetic.accuracy", "utility.synthetic_minus_real.accuracy", "fidelity.mauve",
        "utility.synthetic_minus_real.mean_recall", "utility.synthetic_minus_prompt_only.mean_recall",
        "fidelity.mauve_ceiling", "fidelity.frechet", "fidelity.frechet_floor", "fidelity.prompt_only.mauve",
        "diversity.distinct_2", "diversity.real.distinct_2", "diversity.length_q50", "label_fidelity.synthetic",
        "label_fidelity.real", "label_fidelity.synthetic.label_0", "label_fidelity.synthetic.label_1",
        *(f"memorization.ngram_{n}.{side}" for n in range(3, 8) for side in ("synthetic", "holdout")),
        *(f"memorization.lone_words{tail}" for tail in (".synthetic", ".holdout", ".synthetic_minus_holdout")),
        "memorization.lone_identifiers_held.synthetic",
    }  # fmt: skip
    assert expected <= set(values)
    assert measured["good"].missing == ()
    assert measured["good"].lengths is not None


def test_intervals_hold_their_values(measured):
    metrics = measured["good"]
    assert "utility.synthetic.accuracy" in metrics.intervals
    for name, (low, high) in metrics.intervals.items():
        assert low <= metrics.values[name] <= high, name


def test_useful_and_useless_training_text_are_told_apart(measured):
    values = measured["good"].values
    assert values["utility.synthetic.accuracy"] > 0.9
    assert values["utility.prompt_only.accuracy"] < 0.8
    assert values["utility.synthetic_minus_prompt_only.accuracy"] > 0.1
    assert values["label_fidelity.synthetic"] > 0.9 > values["label_fidelity.prompt_only"]


def test_copies_are_caught_and_fresh_text_is_not(measured):
    copied, fresh = measured["copied"].values, measured["good"].values
    assert copied["memorization.exact_duplicates.all_private"] == 1.0
    assert copied["memorization.ngram_7.synthetic"] > copied["memorization.ngram_7.holdout"] + 0.3
    assert fresh["memorization.exact_duplicates.all_private"] < 0.1
    assert abs(fresh["memorization.ngram_3.synthetic"] - fresh["memorization.ngram_3.holdout"]) < 0.1


def test_an_evaluation_repeats(measured, data, encoder):
    afresh = partial(embed, encoder=encoder)
    again = measure.evaluate_synthetic(
        Conditions(data["good"], data["train"], data["useless"]),
        data["test"],
        data["holdout"],
        config=CONFIG,
        embedder=afresh,
    )
    assert again == measured["good"]


def test_every_text_is_embedded_and_tokenised_once(data, known, monkeypatch):
    embedded, tokenised = [], []
    read_words = words.words

    def noted(texts):
        embedded.append(list(texts))
        return known.encode(texts)

    monkeypatch.setattr(words, "words", lambda text: tokenised.append(text) or read_words(text))
    wrapped = dataclasses.replace(known, encode=noted)
    measure.evaluate_synthetic(
        Conditions(data["copied"], data["train"], data["useless"]), data["test"], data["holdout"],
        config=CONFIG, embedder=partial(embed, encoder=wrapped),
    )  # fmt: skip
    sets = [data["copied"].texts, data["train"].texts, data["test"].texts, data["holdout"]]
    every = [text for texts in sets for text in texts]
    assert [sorted(set(every))] == embedded
    assert tokenised == every


def test_of_many_real_rows_models_read_some_and_copies_are_looked_for_among_all(data, measured, known):
    read = []

    def noted(texts):
        read.extend(texts)
        return known.encode(texts)

    few = CONFIG.model_copy(update={"most_rows": 30})
    train, test, holdout = data["train"], data["test"], data["holdout"]
    embedder = partial(embed, encoder=dataclasses.replace(known, encode=noted))
    found = measure.evaluate_synthetic(Conditions(data["copied"], train), test, holdout, config=few, embedder=embedder)
    assert (found.values["utility.real_rows"], found.values["utility.test_rows"]) == (30, 30)
    for real in (train.texts[40:], test.texts, holdout):
        assert 0 < len(set(real) & set(read)) < len(set(real))
    whole = measured["copied"]
    assert (whole.values["utility.real_rows"], whole.values["utility.test_rows"]) == (60, 40)
    of_all = [name for name in found.values if name.startswith(("memorization.", "diversity."))]
    assert "memorization.exact_duplicates.all_private" in of_all
    assert {name: found.values[name] for name in of_all} == {name: whole.values[name] for name in of_all}
    assert found.values["memorization.exact_duplicates.all_private"] == 1.0


def test_fidelity_of_many_rows_is_that_of_subsamples_and_says_so(monkeypatch):
    generator = np.random.default_rng(0)
    made, unseen = generator.normal(0.1, 1, (70, 5)), generator.normal(0, 1, (140, 5))
    monkeypatch.setattr(fidelity, "MAUVE", dataclasses.replace(fidelity.MAUVE, most_rows=50))
    config = CONFIG.model_copy(update={"floor_splits": 3})
    metrics = measure.measure_fidelity(made, unseen, made + 0.1, config=config)
    assert metrics.values["fidelity.rows"] == 70
    assert metrics.values["fidelity.mauve_rows"] == 50
    fewer = measure.measure_fidelity(made, unseen, made[:10], config=config)
    assert fewer.values["fidelity.rows"] == fewer.values["fidelity.mauve_rows"] == 10
    names_with_spread = {
        "mauve",
        "mauve_ceiling",
        "frechet",
        "frechet_floor",
        "prompt_only.mauve",
        "prompt_only.frechet",
    }
    assert set(metrics.intervals) == {f"fidelity.{name}" for name in names_with_spread}
    for name, (low, high) in metrics.intervals.items():
        assert low <= metrics.values[name] <= high
    assert metrics.intervals["fidelity.mauve"][0] < metrics.intervals["fidelity.mauve"][1]
    assert measure.measure_fidelity(made, unseen, made + 0.1, config=config) == metrics


def test_without_holdout_and_prompt_only_the_test_rows_serve_and_the_gap_is_said(data, embedder):
    metrics = measure.evaluate_synthetic(
        Conditions(data["good"], data["train"]), data["test"], config=CONFIG, embedder=embedder
    )
    assert metrics.values["memorization.rows"] == 40
    assert "utility.prompt_only.accuracy" not in metrics.values
    assert any("prompt-only" in reason for reason in metrics.missing)


def test_memorization_without_any_holdout_says_so():
    metrics = measure.measure_memorization(["a b c d"], ["x a b c"], None, seed=0)
    assert metrics.values["memorization.longest_match.all_private"] == 3
    assert "memorization.ngram_5.synthetic" not in metrics.values
    assert "holdout" in metrics.missing[0]


NOTES = [f"Call (533) 555-01{row:02d} or write to no{row}@example.org." for row in range(40)]


@pytest.mark.parametrize(("memorised", "again"), [(0, 0), (7, 7)])
def test_identifiers_of_private_rows_are_found_in_the_synthetic_text_however_they_are_written(memorised, again):
    made = [f"her number, 533.555 01{row:02d}, is the old one" for row in range(memorised)]
    found = measure.measure_identifiers([*made, "call us"], NOTES[:30], NOTES[30:])
    names.check_names(found.values)
    kinds = {"email": (30, 0, 0), "number": (30, again, again)}
    parts = ("private", "replayed", "replayed_alone")
    expected = {
        f"memorization.identifiers.{kind}.{part}": count
        for kind, counts in kinds.items()
        for part, count in zip(parts, counts, strict=True)
    }
    assert {name: found.values[name] for name in expected} == expected
    assert found.values["memorization.lone_identifiers.synthetic"] == again / 60
    assert found.values["memorization.lone_identifiers.holdout"] == 0
    low, high = found.intervals["memorization.lone_identifiers.synthetic_minus_holdout"]
    assert low < again / 60 < high


def test_identifiers_without_rows_never_seen_are_counted_alone():
    found = measure.measure_identifiers(NOTES[:2], NOTES[:5], None)
    assert found.values["memorization.identifiers.email.replayed_alone"] == 2
    assert not [name for name in found.values if "lone_" in name]


def test_fidelity_of_too_few_rows_says_so():
    metrics = measure.measure_fidelity(np.ones((5, 2)), np.ones((3, 2)), config=CONFIG)
    assert metrics.values == {}
    assert "3 unseen real rows" in metrics.missing[0]


def test_a_label_of_few_test_rows_gives_no_interval_of_the_difference(data, embedder):
    conditions = Conditions(data["good"], data["train"], data["useless"])
    embedded = {name: embedder(rows.texts) for name, rows in conditions.named().items()}
    test = data["test"]
    labels = list(test.labels)
    kept = [row for row, label in enumerate(labels) if label != 1 or row == labels.index(1)]
    few = LabelledTexts([test.texts[row] for row in kept], [labels[row] for row in kept], test.label_names)
    name = "utility.synthetic_minus_prompt_only.mean_recall"
    for rows, has in ((test, True), (few, False)):
        metrics = measure.measure_utility(conditions, rows, embedded, embedder(rows.texts), config=CONFIG)
        assert name in metrics.values
        assert (name in metrics.intervals) is has
        assert any("a label has 1 test rows, 10 are the least" in reason for reason in metrics.missing) is not has


def test_transformer_headline_carries_every_seed(data, embedder):
    config = EvaluationConfig(
        profile="tiny", headline="transformer", seeds=(0, 1), replicates=100,
        classifier={"profile": "tiny", "base": "tiny-gpt2", "epochs": 1, "max_length": 16},
    )  # fmt: skip
    synthetic, real, test = (
        LabelledTexts(rows.texts[:n], rows.labels[:n], rows.label_names)
        for rows, n in ((data["good"], 16), (data["train"], 16), (data["test"], 8))
    )
    conditions = Conditions(synthetic, real)
    embedded = {name: embedder(rows.texts) for name, rows in conditions.named().items()}
    told = []
    metrics = measure.measure_utility(
        conditions, test, embedded, embedder(test.texts), config=config, progress=lambda *step: told.append(step)
    )
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)], "two seeds of two training sets"
    headline = metrics.values["utility.synthetic.accuracy"]
    assert headline == metrics.values["utility.transformer.synthetic.accuracy"]
    assert (headline * 16) % 1 == pytest.approx(0)  # two seeds of eight rows
    assert "utility.probe.real.accuracy" in metrics.values


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"texts": [], "labels": []}, "synthetic: expected texts with one label each"),
        ({"labels": [0]}, "synthetic: expected texts with one label each"),
        ({"label_names": ("a", "b")}, "synthetic: expected the test rows' labels"),
    ],
)
def test_sets_that_do_not_fit_are_refused(data, embedder, change, message):
    fields = {"texts": data["good"].texts, "labels": data["good"].labels, "label_names": data["good"].label_names}
    with pytest.raises(InputError, match=message):
        measure.evaluate_synthetic(
            Conditions(LabelledTexts(**(fields | change)), data["train"]),
            data["test"],
            config=CONFIG,
            embedder=embedder,
        )
