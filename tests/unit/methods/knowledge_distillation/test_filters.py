"""Near-copies by BLEU, and the domain by the probability of yes."""

import numpy as np
import pytest
import torch
from sacrebleu.metrics import BLEU
from tests_support import write_random_model

from understudy.errors import InputError
from understudy.generation.scoring import preferences
from understudy.methods.knowledge_distillation import filters
from understudy.methods.knowledge_distillation.config import FilterConfig, KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.filters import check_question, drop_near_copies, judged, passed
from understudy.models.loading import load_model
from understudy.runs.overrides import apply_overrides

CAT = "the cat sat on the mat"


def test_bleu_of_a_pair_worked_out_by_hand():
    """the cat sat on a mat: 5/6 unigrams, 3/5 bigrams, 2/4 trigrams, 1/3 four-grams; same length, no penalty."""
    by_hand = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** (1 / 4)
    found = BLEU(effective_order=True).sentence_score("the cat sat on a mat", [CAT]).score
    assert found == pytest.approx(by_hand, abs=1e-6)
    assert by_hand == pytest.approx(53.7285, abs=1e-3)
    near = [CAT, "the cat sat on a mat", "dogs bark"]
    assert drop_near_copies(near, most=53.8) == [0, 1, 2]
    assert drop_near_copies(near, most=53.7) == [0, 2]


def test_the_first_of_two_copies_stays_and_public_texts_count():
    texts = [CAT, "how do i water a fern", CAT.upper(), CAT, "how do i water a rose"]
    assert drop_near_copies(texts, most=80) == [0, 1, 2, 4], "BLEU tells case"
    assert drop_near_copies(texts, most=80, public=[CAT]) == [1, 2, 4]
    assert drop_near_copies([], most=80) == []
    assert drop_near_copies(["a", "b"], most=0) == [0, 1], "texts that share no word are no copies"


@pytest.fixture(scope="module")
def base():
    return load_model("tiny-llama")


def test_judgement_is_the_share_of_yes_whatever_else_is_likely(base, monkeypatch):
    """Scores ln 6 and ln 2 of two forms of yes, ln 2 of no, and a large one of another token: (6 + 2) / 10."""
    yes, no = filters.answer_tokens(base)
    logits = torch.full((1, len(base.tokenizer)), -30.0)
    logits[0, yes[0]], logits[0, yes[1]], logits[0, no[0]] = np.log(6), np.log(2), np.log(2)
    logits[0, max({*range(100)} - {*yes, *no})] = 9.0
    monkeypatch.setattr("understudy.generation.scoring.next_logits", lambda model, states: logits)
    prompts = torch.tensor([[5, 6]]), torch.tensor([[1, 1]])
    assert preferences(base.model, prompts, first=yes, second=no) == pytest.approx([0.8])
    assert preferences(base.model, prompts, first=no, second=yes) == pytest.approx([0.2])


def test_what_is_kept_is_a_share_or_above_a_request_without_content_or_above_a_number(base, monkeypatch):
    asked = []

    def scripted(model, prompts, **_):
        asked.append(base.tokenizer.batch_decode(prompts[0]))
        return np.array([0.7, 0.6, 0.5, 0.6])

    monkeypatch.setattr(filters, "preferences", scripted)
    config = KnowledgeDistillationConfig(about="plants")
    found = judged(["How do I water a fern?", "b", "c"], base, config)
    assert found.neutral == 0.6
    assert found.shortened == 0
    kept = {
        "share=0.5": [0, 1],
        "share=0.01": [0],
        "threshold=neutral": [0],
        "threshold=0.55": [0, 1],
        "threshold=0.9": [],
    }
    for setting, places in kept.items():
        filters_of = apply_overrides(config, [f"filters.{setting}"]).filters
        assert passed(found.probabilities, filters_of, neutral=found.neutral) == places, setting
    assert "How do I water a fern?" in asked[0][0]
    assert "plants" in asked[0][0]
    assert f"Request: {filters.NEUTRAL}\n" in asked[0][3]


def test_a_share_that_is_a_whole_number_of_requests_keeps_no_more():
    """In floats 0.07 * 100 is above 7."""
    kept = passed(np.linspace(0, 1, 100), FilterConfig(share=0.07), neutral=0.5)
    assert kept == list(range(93, 100))


def test_a_batch_judges_like_one_at_a_time(base):
    config = KnowledgeDistillationConfig(about="plants")
    texts = ["How do I water a fern?", "Name a bank.", "Why?"]
    together = judged(texts, base, config).probabilities
    alone = [judged([text], base, config).probabilities[0] for text in texts]
    assert together == pytest.approx(alone, abs=1e-4)


def test_the_question_stays_where_a_request_exceeds_the_judge_s_context(base, monkeypatch):
    shown = []

    def scripted(model, prompts, **_):
        shown.extend(base.tokenizer.batch_decode(prompts[0]))
        return np.full(len(prompts[0]), 0.5)

    monkeypatch.setattr(filters, "preferences", scripted)
    found = judged(["How do I water a fern? " * 200, "Why?"], base, KnowledgeDistillationConfig(about="plants"))
    assert all("\nIs this a clear request about plants? Answer yes or no." in text for text in shown)
    assert "Request: How do I water a fern?" in shown[0]
    assert found.shortened == 1


def test_a_judge_without_room_for_the_question_is_refused(base, tmp_path):
    check_question(base, KnowledgeDistillationConfig(about="plants"))
    narrow = load_model(write_random_model(tmp_path / "narrow", positions=60))
    with pytest.raises(InputError, match=r"60 tokens.*shorten about.*filters\.judge=none"):
        check_question(narrow, KnowledgeDistillationConfig(about="plants"))


def test_a_judge_that_cannot_tell_yes_from_no_is_refused(base):
    class Mute:
        def encode(self, text, **_):
            return [3]

    silent = type(base)(base.model, Mute(), base.digest, "mute", ())
    with pytest.raises(InputError, match=r"filters\.judge=none"):
        filters.answer_tokens(silent)
