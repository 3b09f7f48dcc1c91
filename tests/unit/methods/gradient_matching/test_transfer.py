"""Target models fine-tuned on the conditions (transfer.py), on a random model of two layers."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests_support import SENTIMENT_WORDS, SENTIMENTS, write_random_model

from understudy.auditing.membership import MembershipScores, membership_audit
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.measure import evaluate_synthetic, merge
from understudy.evaluation.rows import Conditions, LabelledTexts
from understudy.evaluation.statistics.intervals import Interval
from understudy.evaluation.utility.accuracy import score
from understudy.evaluation.utility.label_model import predict
from understudy.evaluation.utility.transfer import TransferConfig, fine_tune, load_label_model
from understudy.methods.gradient_matching import transfer
from understudy.methods.gradient_matching.config import VerbalizerConfig
from understudy.methods.gradient_matching.evaluation import EvaluationModels, MatchedLosses, measure_matching
from understudy.methods.gradient_matching.evaluation_config import MatchingEvaluationConfig
from understudy.methods.gradient_matching.gradients import gradient_error
from understudy.methods.gradient_matching.transfer import (
    detectable_epsilon,
    disjoint_rows,
    measure_transfer,
    target_models,
)
from understudy.methods.gradient_matching.verbalizer import build_verbalizer
from understudy.models.loading import load_model

CONFIG = MatchingEvaluationConfig(
    profile="tiny", transfer_models=(), steps=5, batch_size=4, max_length=12, measure_every=2, test_rows=15,
    real_rows=10, gradient_rows=12, frozen_share=0.9,
)  # fmt: skip
SAME = TransferConfig(
    steps=5, batch_size=4, max_length=12, measure_every=2, learning_rate=CONFIG.learning_rate, frozen_lower_layers=1
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_random_model(tmp_path_factory.mktemp("models") / "my.model"))


@pytest.fixture(scope="module")
def sets(make_reviews):
    conditions = Conditions(make_reviews(8, seed=1), make_reviews(40, seed=2), make_reviews(6, seed=3))
    return conditions, make_reviews(20, seed=4)


@pytest.fixture(scope="module")
def found(folder, sets):
    return measure_transfer(*sets, own=folder, label_words=SENTIMENT_WORDS, config=CONFIG)


@given(st.integers(1, 30), st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(0, 9))
def test_parts_are_disjoint_and_keep_their_labels(n, sizes, seed):
    rows = LabelledTexts([str(i) for i in range(n)], np.arange(n) % 3, SENTIMENTS)
    parts = disjoint_rows(rows, *sizes, seed=seed)
    texts = [text for part in parts for text in part.texts]
    assert len(set(texts)) == len(texts) == min(n, sum(sizes))
    assert all(len(part.texts) <= size for part, size in zip(parts, sizes, strict=True))
    assert all(int(text) % 3 == label for part in parts for text, label in zip(part.texts, part.labels, strict=True))
    again = disjoint_rows(rows, *sizes, seed=seed)
    assert [part.texts for part in again] == [part.texts for part in parts]


def test_the_own_model_comes_first_and_none_twice():
    tiny = MatchingEvaluationConfig(profile="tiny")
    assert target_models("tiny-llama", tiny) == ["tiny-llama", "tiny-gpt2"]
    assert target_models("tiny-gpt2", tiny) == ["tiny-gpt2", "tiny-llama"]
    assert target_models("my/model", tiny) == ["my/model", "tiny-gpt2"]
    assert target_models("microsoft/phi-1_5", MatchingEvaluationConfig()) == ["microsoft/phi-1_5"]


@pytest.mark.parametrize("half", [0.05, 0.3, 0.9])
def test_the_detectable_epsilon_has_that_advantage(half):
    epsilon = detectable_epsilon(Interval(0.2, 0.1 - half, 0.1 + half), rows=10_000)
    assert (math.exp(epsilon) - 1) / (math.exp(epsilon) + 1) == pytest.approx(half)


def test_an_interval_as_wide_as_everything_detects_nothing():
    assert detectable_epsilon(Interval(0.0, -1.0, 1.0), rows=10_000) is None


@pytest.mark.parametrize(("rows", "half"), [(10, 0.4383), (40, 0.2191)])
def test_an_interval_without_width_detects_no_less_than_tossed_coins_leave_to_chance(rows, half):
    """The best threshold calls nobody a member where members look less like it: [0, 0] is no sign of power."""
    epsilon = detectable_epsilon(Interval(0.0, 0.0, 0.0), rows=rows)
    assert (math.exp(epsilon) - 1) / (math.exp(epsilon) + 1) == pytest.approx(half, rel=1e-3)
    tossed = np.random.default_rng(0).binomial(rows, 0.5, size=(20_000, 2)) / rows
    assert np.mean(abs(tossed[:, 0] - tossed[:, 1]) > half) < 0.06


def test_accuracies_are_those_of_fine_tuning_each_arm_alone(found, folder, sets):
    conditions, test = sets
    tested = disjoint_rows(test, 15, seed=0)[0]
    members = disjoint_rows(conditions.real, 10, seed=0)[0]
    config = SAME.model_copy(update={"base": folder})
    for condition, rows in (
        ("synthetic", conditions.synthetic),
        ("prompt_only", conditions.prompt_only),
        ("real", members),
    ):
        tuned = fine_tune(rows, label_words=SENTIMENT_WORDS, config=config, seed=0)
        wanted = score(predict(tuned, tested.texts), tested.labels).accuracy
        name = f"utility.transfer.my-model.{condition}.accuracy"
        assert found.values[name] == pytest.approx(wanted)
        assert found.intervals[name][0] <= wanted <= found.intervals[name][1]
    assert found.values["utility.transfer.real_rows"] == 10
    assert found.missing == ()


def test_gradient_errors_follow_the_synthetic_fine_tuning(found, folder, sets):
    conditions, _ = sets
    config = SAME.model_copy(update={"base": folder})
    untuned = load_label_model(label_words=SENTIMENT_WORDS, config=config)
    real, others = disjoint_rows(conditions.real, 12, 8, seed=0)
    for side, rows in (("", conditions.synthetic), ("prompt_only.", conditions.prompt_only), ("real.", others)):
        steps = {name for name in found.values if name.startswith(f"matching.gradient_error.{side}step_")}
        assert steps == {f"matching.gradient_error.{side}step_{step}" for step in (0, 2, 4, 5)}
        wanted = gradient_error(untuned, rows, real).last_layer
        assert found.values[f"matching.gradient_error.{side}step_0"] == pytest.approx(wanted, rel=1e-5)
        assert found.values[f"matching.gradient_error.{side}step_5"] != pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("real", "synthetic", "wanted"), [(80, 40, (40, 40)), (90, 100, (45, 45)), (1000, 600, (64, 600)), (1, 9, (1, 0))]
)
def test_the_reference_gives_way_to_as_many_other_rows(make_reviews, monkeypatch, real, synthetic, wanted):
    sizes = []
    cut = disjoint_rows

    def recorded(rows, *asked, seed):
        parts = cut(rows, *asked, seed=seed)
        sizes.append(tuple(len(part.texts) for part in parts))
        return parts

    monkeypatch.setattr(transfer, "disjoint_rows", recorded)
    conditions = Conditions(make_reviews(synthetic, seed=1), make_reviews(real, seed=2))
    config = MatchingEvaluationConfig(profile="tiny")
    _, values = transfer._record_errors(conditions, config)
    assert sizes == [wanted]
    assert values == {"matching.gradient_error.real_rows": wanted[1]}
    reasons = transfer._fewer_others(conditions, values)
    assert bool(reasons) == (wanted[1] < synthetic)
    assert all(f"{wanted[1]} stand beside {synthetic} synthetic" in reason for reason in reasons)


def test_that_fewer_other_rows_are_compared_is_said(folder, sets, make_reviews):
    conditions = Conditions(make_reviews(30, seed=1), sets[0].real)
    config = CONFIG.model_copy(update={"steps": 1, "gradient_rows": 64})
    found = measure_transfer(conditions, sets[1], own=folder, label_words=SENTIMENT_WORDS, config=config)
    assert found.values["matching.gradient_error.real_rows"] == 20
    assert any("20 stand beside 30" in reason for reason in found.missing)
    assert "matching.gradient_error.real.step_0" in found.values


def test_the_attack_and_its_positive_control_are_those_of_the_audit(found, folder, sets):
    conditions, test = sets
    members, others = disjoint_rows(conditions.real, 10, seed=0)[0], disjoint_rows(test, 10, seed=0)[0]
    config = SAME.model_copy(update={"base": folder})
    # The measuring shuffles the members once more; the attack's splits see them in that order.
    members = disjoint_rows(members, 10, seed=0)[0]
    control = disjoint_rows(conditions.real, 10, seed=0)[0]
    audit = membership_audit(conditions.synthetic, members, others, label_words=SENTIMENT_WORDS, config=config, seed=0)
    assert found.values["audit.mia.advantage"] == pytest.approx(audit.synthetic.advantage.value)
    assert found.values["audit.mia.auc"] == pytest.approx(audit.synthetic.auc.value)
    assert found.intervals["audit.mia.auc"] == pytest.approx((audit.synthetic.auc.low, audit.synthetic.auc.high))
    assert sorted(control.texts) == sorted(members.texts)
    assert found.values["audit.mia.rows"] == 10
    null = found.intervals["audit.mia.null_control.advantage"]
    half = max((null[1] - null[0]) / 2, 1.959964 / math.sqrt(2 * 10))
    assert found.values["audit.mia.detectable_epsilon"] == pytest.approx(math.log((1 + half) / (1 - half)))


def test_each_control_is_the_attack_on_its_own_model(folder, sets, monkeypatch):
    """Scripted losses: the model tuned on members knows all of them, the synthetic one half, the null control none."""
    conditions, test = sets
    known = {8: 0.5, 6: 0.0, 10: 1.0}  # rows that a model was tuned on -> share of members that it knows

    def scripted(tuned, members, others):
        size = len(members.texts)
        low = np.arange(size) < known[tuned] * size
        spread = np.linspace(1, 2, size)
        if known[tuned] < 0:
            return MembershipScores(spread + 9, spread)
        return MembershipScores(np.where(low, 0.0, spread), spread)

    monkeypatch.setattr(transfer, "fine_tune", lambda rows, **_: len(rows.texts))
    monkeypatch.setattr(transfer, "predict", lambda _, texts: np.zeros(len(texts), np.int64))
    monkeypatch.setattr(transfer, "membership_scores", scripted)
    found = measure_transfer(conditions, test, own=folder, label_words=SENTIMENT_WORDS, config=CONFIG)
    assert found.values["audit.mia.positive_control.auc"] == 1
    # Half of the members lie below every other row, the other half are the upper half of those.
    assert found.values["audit.mia.auc"] == pytest.approx(0.5 + 0.5 * 0.25)
    assert found.values["audit.mia.null_control.auc"] == pytest.approx(0.5)
    assert found.values["audit.mia.positive_control.advantage"] == 1
    assert "audit.mia.detectable_epsilon" in found.values
    known[6] = -1.0
    reversed_ = measure_transfer(conditions, test, own=folder, label_words=SENTIMENT_WORDS, config=CONFIG)
    assert reversed_.values["audit.mia.null_control.advantage"] == 0
    assert "audit.mia.detectable_epsilon" not in reversed_.values, "members have the higher losses: told apart too"
    known[6] = 1.0
    confounded = measure_transfer(conditions, test, own=folder, label_words=SENTIMENT_WORDS, config=CONFIG)
    assert "audit.mia.detectable_epsilon" not in confounded.values, "the null control is told apart"


def test_without_prompt_only_text_the_null_control_is_the_untuned_model(folder, sets):
    conditions, test = sets
    config = CONFIG.model_copy(update={"steps": 1, "measure_every": 1, "full_gradient": True})
    found = measure_transfer(
        Conditions(conditions.synthetic, conditions.real), test, own=folder, label_words=SENTIMENT_WORDS, config=config
    )
    assert "audit.mia.null_control.advantage" in found.values
    assert not any("prompt_only" in name for name in found.values)
    full = [found.values[f"matching.gradient_error.full.step_{step}"] for step in (0, 1)]
    assert min(full) > 0
    assert full[0] != found.values["matching.gradient_error.step_0"]


def test_a_model_that_cannot_be_used_is_said_and_the_others_are_measured(folder, sets):
    further = {"transfer_models": ("no-such-model", f"{folder}/"), "most_models": 3}
    config = CONFIG.model_copy(update={**further, "steps": 1})
    found = measure_transfer(*sets, own=folder, label_words=SENTIMENT_WORDS, config=config)
    assert "utility.transfer.my-model.synthetic.accuracy" in found.values
    unknown, twice = found.missing
    assert " no-such-model: " in unknown
    assert " my-model: " in twice


def test_labels_that_collide_in_a_tokenizer_do_not_end_the_run(folder, sets):
    collide = partial(
        build_verbalizer, label_names=SENTIMENTS, config=VerbalizerConfig(words={"negative": "bad", "positive": "bad"})
    )
    found = measure_transfer(*sets, own=folder, label_words=collide, config=CONFIG)
    assert "same token" in found.missing[0]
    assert not any(name.startswith(("audit", "utility.transfer.my")) for name in found.values)


def test_everything_together_joins_what_every_table_is_judged_by(folder, sets):
    conditions, test = sets

    def embedder(texts):
        return np.array([np.random.default_rng(len(text)).normal(size=6) for text in texts], np.float32)

    done = []
    own = measure_matching(
        conditions,
        test,
        MatchedLosses(kept=np.full(8, 0.4), dropped=np.full(8, 0.8), reasons={"surplus": 8}),
        evaluation_models=EvaluationModels(
            base=load_model(folder), own=folder, label_words=SENTIMENT_WORDS, embedder=embedder
        ),
        config=CONFIG,
        progress=lambda step, total: done.append((step, total)),
    )
    assert done == [(step, 5) for step in range(1, 6)]
    common = evaluate_synthetic(conditions, test, config=EvaluationConfig(profile="tiny"), embedder=embedder)
    merged = merge(common, own)
    assert len(merged.values) == len(common.values) + len(own.values)
    assert set(merged.histograms) == {"matching.loss", "memorization.nearest"}
    assert merged.lengths == common.lengths
    groups = {name.rpartition(".")[0] for name in own.values}
    assert {"matching", "matching.loss", "matching.gradient_error", "audit.mia", "language_model.log_perplexity",
            "fidelity", "memorization.nearest_median"} <= groups  # fmt: skip
