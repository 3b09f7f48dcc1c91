"""Words and templates are chosen on public text; what is chosen is checked against texts with planted answers."""

import math

import pytest
import torch

from understudy.errors import InputError
from understudy.methods.gradient_matching import calibration
from understudy.methods.gradient_matching.calibration import resolve_for
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.verbalizer import build_verbalizer
from understudy.models.loading import load_model

NAMES = ("negative", "positive")


@pytest.fixture(scope="module")
def loaded():
    return load_model("tiny-llama")


@pytest.fixture(autouse=True)
def few_texts(monkeypatch):
    """Of the model's own texts that words are chosen on; what is chosen well is seen on planted answers."""
    monkeypatch.setattr(calibration, "_PER_LABEL", 8)
    monkeypatch.setattr(calibration, "_TOKENS", 8)


def resolved(loaded, kept_in, names=NAMES, calls=None, **settings):
    def base():
        if calls is not None:
            calls.append(1)
        return loaded

    return resolve_for(GradientMatchingConfig.model_validate(settings), names, base=base, kept_in=kept_in)


def test_auto_becomes_words_a_template_and_a_decision_and_is_found_again(loaded, tmp_path):
    calls: list[int] = []
    first = resolved(loaded, tmp_path, calls=calls, about="film reviews")
    again = resolved(loaded, tmp_path, calls=calls, about="film reviews", samples=7)
    assert len(calls) == 1
    assert again.verbalizer == first.verbalizer
    assert again.filter == first.filter
    assert first.verbalizer.template in calibration.TEMPLATES
    assert set(first.verbalizer.words) == set(first.filter.prior) == set(NAMES)
    assert first.filter.label_check != "auto"
    resolved(loaded, tmp_path, calls=calls, about="letters to the editor")
    assert len(calls) == 2


def test_what_was_given_stays(loaded, tmp_path):
    given = {"negative": "bad", "positive": "great"}
    found = resolved(loaded, tmp_path, verbalizer={"words": given, "template": " All in all,"})
    assert found.verbalizer.words == given
    assert found.verbalizer.template == " All in all,"
    whole = {"verbalizer": {"words": given, "template": " It was"}, "filter": {"label_check": False}}
    assert resolved(None, tmp_path, **whole) == GradientMatchingConfig.model_validate(whole)


@pytest.mark.parametrize(
    ("names", "words", "message"),
    [(("only",), "auto", "at least two"), (NAMES, {"negative": "bad"}, "positive"), (NAMES, {"other": "bad"}, "other")],
)
def test_what_cannot_be_is_refused_before_the_model_is_asked(tmp_path, names, words, message):
    with pytest.raises(InputError, match=message):
        resolved(None, tmp_path, names=names, verbalizer={"words": words})


def test_names_that_begin_alike_are_replaced_by_words_that_do_not(loaded, tmp_path):
    names = ("negative", "negative too")
    with pytest.raises(InputError, match="same token"):
        build_verbalizer(loaded.tokenizer, names, GradientMatchingConfig(verbalizer={"words": "names"}).verbalizer)
    found = resolved(loaded, tmp_path, names=names)
    assert len(set(build_verbalizer(loaded.tokenizer, names, found.verbalizer).token_ids.tolist())) == 2


def planted(right: dict[int, int], template: str, *, vocabulary: int = 12, texts: int = 40):
    """Answers in which token `right[label]` is two nats likelier after texts of the label, and token 0 after all."""
    labels = torch.arange(texts) % 2
    raw = torch.full((texts, vocabulary), -3.0)
    raw[:, 0] = 0.0
    for label, token in right.items():
        raw[labels == label, token] += 2.0
    prior = torch.full((vocabulary,), -3.0)
    prior[0] = 0.0
    return calibration._Answers(template, raw=raw, prior=prior), labels


def test_the_likeliest_word_by_itself_tells_nothing_once_its_prior_is_gone():
    answers, labels = planted({0: 3, 1: 4}, " It was")
    rows = torch.ones(40, dtype=torch.bool)
    word = {token: calibration._Word(str(token), token) for token in range(12)}
    chosen = calibration._choose(answers, [[word[0], word[3], word[5]], [word[6], word[4]]], labels, rows)
    assert [found.token for found in chosen] == [3, 4]
    good, poor = (calibration._Choice(answers, (word[a], word[b])) for a, b in ((3, 4), (0, 6)))
    assert bool(good.right(labels, rows).all())
    assert calibration._clearly_better(good, poor, labels, rows)
    assert not calibration._clearly_better(good, good, labels, rows)
    found = calibration._calibration(good, NAMES, labels, rows)
    assert (found.told, found.label_check) == (NAMES, True)
    assert calibration._calibration(poor, NAMES, labels, rows).label_check is False
    assert found.accuracy == 1.0


def test_only_the_labels_that_are_told_are_checked():
    """Of three labels one has a word that follows half of its texts; the others' words come up by turns."""
    names, labels = ("anger", "joy", "sadness"), torch.arange(36) % 3
    raw = torch.full((36, 3), -3.0)
    turn = torch.arange(36) // 3
    raw[turn // 2 % 2 == 0, 0] += 1.0
    raw[turn // 2 % 2 == 1, 1] += 1.0
    raw[(labels == 2) & (turn % 2 == 0), 2] += 2.0
    words = tuple(calibration._Word(name, token) for token, name in enumerate(names))
    choice = calibration._Choice(calibration._Answers(" It was", raw=raw, prior=torch.zeros(3)), words)
    found = calibration._calibration(choice, names, labels, torch.ones(36, dtype=torch.bool))
    assert (found.told, found.label_check) == (("sadness",), ("sadness",))


@pytest.mark.parametrize(("own", "others", "told"), [(9, 5, True), (6, 12, False), (3, 2, False), (0, 36, False)])
def test_a_label_is_told_by_fishers_test_at_5_percent_over_the_labels(own, others, told):
    """12 texts of the label and 36 of others; the p-value is a hypergeometric tail, summed by hand."""
    labels = torch.tensor([0] * 12 + [1] * 36)
    said = torch.tensor([0] * own + [1] * (12 - own) + [0] * others + [1] * (36 - others))
    called = own + others
    tail = sum(math.comb(12, k) * math.comb(36, called - k) for k in range(own, min(12, called) + 1))
    assert calibration._is_told(0, said, labels, 4) == told == (tail / math.comb(48, called) < 0.05 / 4)
