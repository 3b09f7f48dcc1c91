import numpy as np
import pytest

from understudy.errors import InputError
from understudy.evaluation.config import ClassifierConfig
from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.utility import accuracy


def test_score_keeps_correctness_per_row():
    found = accuracy.score(np.array([0, 1, 1]), [0, 0, 1])
    assert found.correct.tolist() == [True, False, True]
    assert found.accuracy == pytest.approx(2 / 3)


@pytest.mark.parametrize("labels", [[], [0], [0, 1, 2, 3]])
def test_score_refuses_unequal_or_empty(labels):
    with pytest.raises(ValueError, match="as many labels"):
        accuracy.score(np.array([0, 1, 1])[: len(labels) or 0] if not labels else np.array([0, 1, 1]), labels)


def test_probe_learns_a_difference_that_is_there_and_none_that_is_not(encoder, make_reviews):
    train, test = make_reviews(60, seed=1), make_reviews(40, seed=2)
    features, tested = encoder.encode(train.texts), encoder.encode(test.texts)
    learnt = accuracy.score(accuracy.fit_probe(features, train.labels)(tested), test.labels)
    assert learnt.accuracy > 0.9
    assert learnt.correct.shape == (40,)
    shuffled = np.random.default_rng(0).permutation(train.labels)
    noise = accuracy.score(accuracy.fit_probe(features, shuffled)(tested), test.labels)
    assert noise.accuracy < 0.8


def test_probe_on_one_class_always_answers_it():
    probe = accuracy.fit_probe(np.eye(3), [2, 2, 2])
    assert probe(np.zeros((4, 3))).tolist() == [2, 2, 2, 2]


def test_probe_repeats():
    features = np.random.default_rng(0).normal(size=(40, 5))
    labels = (features[:, 0] + 0.5 * features[:, 1] > 0).astype(int)
    test = np.random.default_rng(1).normal(size=(30, 5))
    assert (accuracy.fit_probe(features, labels)(test) == accuracy.fit_probe(features, labels, seed=9)(test)).all()


def test_label_fidelity_by_hand():
    verdicts = {"a": 0, "b": 1, "c": 1, "d": 0}
    found = accuracy.label_fidelity(
        ["a", "b", "c", "d"], [0, 0, 1, 1], lambda texts: np.array([verdicts[t] for t in texts])
    )
    assert found.share == 0.5
    assert found.by_label == {0: 0.5, 1: 0.5}


def test_label_fidelity_leaves_out_labels_without_rows():
    assert accuracy.label_fidelity(["a"], [2], lambda _: np.array([2])).by_label == {2: 1.0}


def test_transformer_accuracy_uses_the_test_rows(make_reviews):
    train, test = make_reviews(32, seed=1), make_reviews(10, seed=2)
    config = ClassifierConfig(profile="tiny", base="tiny-gpt2", epochs=1, max_length=24)
    found = accuracy.transformer_accuracy(train, test, config=config, seed=0)
    assert found.correct.tolist() == (found.predicted == test.labels).tolist()
    with pytest.raises(InputError, match="row 0"):
        accuracy.transformer_accuracy(LabelledTexts(["a"], [2], test.label_names), test, config=config, seed=0)
