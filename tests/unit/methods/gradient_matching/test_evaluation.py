"""Losses, filters and distances of evaluation.py."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from understudy.evaluation.rows import Conditions, LabelledTexts
from understudy.evaluation.texts.language_model import language_model_loss_of_texts
from understudy.methods.gradient_matching import evaluation
from understudy.methods.gradient_matching.evaluation import (
    MatchedLosses,
    measure_frechet,
    measure_log_perplexity,
    measure_losses,
    measure_nearest,
    split_losses,
)
from understudy.methods.gradient_matching.evaluation_config import MatchingEvaluationConfig
from understudy.models.loading import load_model

CONFIG = MatchingEvaluationConfig(profile="tiny", splits=2)

# Texts of few letters and labels, so that some occur more than once; equal ones have equal losses.
examples = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.booleans()), min_size=1, max_size=12)


@given(examples, st.randoms(use_true_random=False))
def test_losses_are_split_as_the_filters_split_the_texts(rows, order):
    def loss(text, label):
        return 10 * label + "abc".index(text)

    kept = [row for row in rows if row[2]]
    order.shuffle(kept)
    found = split_losses(
        ([text for text, _, _ in rows], [label for _, label, _ in rows]),
        np.array([loss(text, label) for text, label, _ in rows], float),
        ([text for text, _, _ in kept], np.array([label for _, label, _ in kept], np.int64)),
    )
    for side, wanted in zip(found, (True, False), strict=True):
        assert sorted(side) == sorted(loss(text, label) for text, label, is_kept in rows if is_kept == wanted)


def test_a_kept_text_that_was_never_matched_is_refused():
    for strange in ((["b"], [0]), (["a"], [1]), (["a", "a"], [0, 0])):
        with pytest.raises(ValueError, match=r"kept text .*1 are not"):
            split_losses((["a"], [0]), np.zeros(1), strange)


def test_when_no_text_was_kept_the_losses_remain_and_the_rest_is_said_to_be_missing(make_reviews):
    losses = MatchedLosses(kept=np.zeros(0), dropped=np.array([0.9, 1.1]), reasons={"wrong_label": 2}, shortfall=2)
    nothing = LabelledTexts([], [], ("negative", "positive"))
    conditions = Conditions(nothing, make_reviews(8, seed=1), None)
    found = evaluation.measure_matching(
        conditions, make_reviews(8, seed=2), losses, evaluation_models=None, config=CONFIG
    )
    assert found.values["matching.kept"] == 0
    assert found.values["matching.loss.dropped_median"] == pytest.approx(1.0)
    assert len(found.missing) == 1


def test_losses_are_summed_up():
    found = measure_losses(
        MatchedLosses(
            kept=np.array([0.1, 0.2, 0.3]),
            dropped=np.array([0.9, 1.1]),
            prompt_only=np.array([0.5]),
            reasons={"empty": 1, "wrong_label": 1, "surplus": 0},
            labels=2,
            checked=4,
            shortfall=4,
            signal_to_noise=0.25,
        )
    )
    assert found.values == pytest.approx(
        {
            "matching.drawn": 5,
            "matching.kept": 3,
            "matching.shortfall": 4,
            "matching.dropped.empty": 1,
            "matching.dropped.wrong_label": 1,
            "matching.dropped.surplus": 0,
            "matching.label_check.agreement": 0.75,
            "matching.label_check.chance": 0.5,
            "matching.loss.median": 0.2,
            "matching.loss.dropped_median": 1.0,
            "matching.loss.prompt_only_median": 0.5,
            "matching.signal_to_noise_bound": 0.25,
        }
    )
    # Clopper and Pearson for 3 of 4, from the quantiles of the beta distribution.
    limits = (beta.ppf(0.025, 3, 2), beta.ppf(0.975, 4, 1))
    assert found.intervals == {"matching.label_check.agreement": pytest.approx(limits)}
    histogram = found.histograms["matching.loss"]
    assert (histogram.edges[0], histogram.edges[-1]) == pytest.approx((0.1, 1.1))
    middles = (np.array(histogram.edges[1:]) + histogram.edges[:-1]) / 2
    for name, mean in (("kept", 0.2), ("dropped", 1.0), ("prompt_only", 0.5)):
        assert sum(histogram.shares[name]) == pytest.approx(1)
        assert np.dot(middles, histogram.shares[name]) == pytest.approx(mean, abs=1 / 24)


def test_no_noise_has_no_ratio_and_equal_losses_have_a_histogram():
    found = measure_losses(MatchedLosses(kept=np.full(3, 0.5), signal_to_noise=math.inf))
    assert "matching.signal_to_noise_bound" not in found.values
    assert set(found.histograms["matching.loss"].shares) == {"kept"}
    assert measure_losses(MatchedLosses(kept=np.zeros(0))).histograms == {}


def test_frechet_sets_have_one_size_and_the_reference_is_apart(monkeypatch):
    generator = np.random.default_rng(0)
    embedded = {name: generator.normal(size=(n, 4)) for name, n in (("synthetic", 6), ("prompt_only", 9), ("real", 30))}
    compared = []
    monkeypatch.setattr(evaluation, "fit_gaussian", lambda rows: rows)
    monkeypatch.setattr(evaluation, "gaussian_distance", lambda a, b: compared.append((a, b)) or 1.0)
    config = CONFIG.model_copy(update={"reference_rows": 20})
    found = measure_frechet(embedded, config=config)
    assert found.values["fidelity.train_frechet_rows"] == 6
    assert len(compared) == 6
    for few, reference in compared[::3]:
        rows = {tuple(row) for row in embedded["real"]}
        assert {tuple(row) for row in few} | {tuple(row) for row in reference} <= rows
        assert not {tuple(row) for row in few} & {tuple(row) for row in reference}
    assert all((len(side), len(reference)) == (6, 20) for side, reference in compared)


def test_a_shift_adds_its_square_to_the_frechet_distance():
    generator = np.random.default_rng(0)
    flat = np.hstack([generator.normal(size=(60, 3)), np.zeros((60, 1))])
    embedded = {"synthetic": flat[:20], "prompt_only": flat[:20] + np.array([0, 0, 0, 2.0]), "real": flat}
    values = measure_frechet(embedded, config=CONFIG).values
    plain, moved = values["fidelity.train_frechet"], values["fidelity.prompt_only.train_frechet"]
    assert moved > plain + 3
    whole = {**embedded, "synthetic": flat[:20] + np.array([0, 0, 0, 2.0])}
    # The same rows are drawn: only the means' distance differs, by 2 ** 2.
    assert measure_frechet(whole, config=CONFIG).values["fidelity.train_frechet"] == pytest.approx(plain + 4)


def test_too_few_rows_for_a_frechet_distance_are_said():
    embedded = {"synthetic": np.zeros((1, 2)), "real": np.zeros((9, 2))}
    found = measure_frechet(embedded, config=CONFIG)
    assert found.values == {}
    (missing,) = found.missing
    assert "1 rows per set" in missing


def test_copies_of_private_rows_are_near_and_others_are_not():
    generator = np.random.default_rng(0)
    real, holdout = generator.normal(size=(50, 3)), generator.normal(size=(40, 3))
    copied, far = measure_nearest(real[:10], real, holdout), measure_nearest(real[:10] + 9, real, holdout)
    assert copied.values["memorization.nearest_median.synthetic"] < 1e-6
    assert copied.values["memorization.nearest_rows.synthetic"] == 10
    assert copied.values["memorization.nearest_rows.holdout"] == len(holdout)
    assert copied.values["memorization.nearest_share"] == 1
    assert far.values["memorization.nearest_share"] == 0
    assert far.values["memorization.nearest_least.synthetic"] > far.values["memorization.nearest_median.holdout"]
    shares = far.histograms["memorization.nearest"].shares
    assert sum(shares["synthetic"]) == pytest.approx(1)
    assert sum(shares["holdout"]) == pytest.approx(1)
    assert shares["synthetic"][0] == 0 < shares["synthetic"][-1]


def test_log_perplexity_of_real_text_is_that_of_test_rows(make_reviews):
    base, synthetic, test = load_model("tiny-gpt2"), make_reviews(4, seed=1), make_reviews(5, seed=2)
    values = measure_log_perplexity(base, Conditions(synthetic, make_reviews(6, seed=3)), test, config=CONFIG).values
    for condition, rows in (("synthetic", synthetic), ("real", test)):
        wanted = language_model_loss_of_texts(base, rows.texts, max_length=CONFIG.max_length)
        assert values[f"language_model.log_perplexity.{condition}"] == pytest.approx(wanted, rel=1e-5)
    assert len(values) == 2
