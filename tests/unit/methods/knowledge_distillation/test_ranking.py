"""IFD by hand on a model whose probabilities are known."""

import math

import numpy as np
import pytest
import torch

from understudy.generation.instructions import Pair, PairEncoder
from understudy.generation.scoring import mean_response_losses, response_losses, sparse_response_losses
from understudy.methods.knowledge_distillation.ranking import best_first, best_first_within, ifd_scores, ratio
from understudy.models.loading import load_model

PAIRS = [Pair("Name a colour.", "Red is one."), Pair("How do I water a fern in a dry room?", "Little and often.")]


@pytest.fixture(scope="module")
def base():
    return load_model("tiny-llama")


def test_ratio_of_perplexities_worked_out_by_hand():
    """Two tokens of probability 1/2 and 1/8 behind the instruction, 1/4 and 1/4 alone: both perplexities are 4."""
    behind = np.array([-(math.log(1 / 2) + math.log(1 / 8)) / 2, math.log(2)])
    alone = np.array([-(math.log(1 / 4) + math.log(1 / 4)) / 2, math.log(10)])
    assert ratio(behind, alone) == pytest.approx([1.0, 0.2])
    assert best_first(np.array([0.4, 0.2, 0.4, 0.1])) == [3, 1, 0, 2]


def test_each_repeated_response_keeps_its_share_however_many_pairs_are_kept():
    """All of the first twelve scores are lower than the others, and those twelve have one response."""
    scores = np.arange(20.0)
    responses = ["neutral"] * 12 + ["positive"] * 6 + ["negative"] * 2
    assert {responses[place] for place in best_first(scores)[:10]} == {"neutral"}
    order = best_first_within(scores, responses)
    assert sorted(order) == list(range(20))
    for kept in range(1, 21):
        for response, share in {"neutral": 0.6, "positive": 0.3, "negative": 0.1}.items():
            own = [place for place in order[:kept] if responses[place] == response]
            assert abs(len(own) - share * kept) <= 1, (response, kept)
            assert own == sorted(own), "the lowest scores of a response are its first"
    assert order[:5] == [0, 12, 1, 2, 13]


def test_responses_that_differ_are_ranked_by_score_alone():
    scores = np.array([0.4, 0.2, 0.4, 0.1, 0.3])
    assert best_first_within(scores, ["a", "b", "c", "d", "e"]) == best_first(scores)
    assert best_first_within(scores, ["a"] * 5) == best_first(scores)
    assert best_first_within(np.zeros(0), []) == []
    often = best_first_within(np.array([0.9, 0.1, 0.2, 0.8]), ["yes", "a", "b", "yes"])
    assert often == [1, 3, 2, 0], "those that occur once share one ranking"


def test_losses_are_those_of_the_response_and_its_end_token(base):
    """Against log-probabilities of the whole sequence, token by token."""
    encoder = PairEncoder(base.tokenizer)
    rows = encoder.encode(PAIRS, max_length=80)
    found = mean_response_losses(base.model, rows, batch_size=1)
    for row in range(2):
        ids = rows.input_ids[row][rows.attention_mask[row].bool()]
        with torch.no_grad():
            logs = base.model(input_ids=ids[None]).logits[0].log_softmax(-1)
        counted = [place for place in range(len(ids)) if rows.loss_mask[row, place]]
        by_hand = -np.mean([float(logs[place - 1, ids[place]]) for place in counted])
        assert found[row] == pytest.approx(by_hand, abs=1e-4)


def test_scores_are_of_the_same_tokens_behind_the_instruction_and_alone(base):
    encoder = PairEncoder(base.tokenizer)
    scores = ifd_scores(PAIRS, base, encoder=encoder, max_length=80)
    behind = mean_response_losses(base.model, encoder.encode(PAIRS, max_length=80))
    alone = mean_response_losses(base.model, encoder.alone(PAIRS, max_length=80))
    assert scores == pytest.approx(np.exp(behind) / np.exp(alone), rel=1e-5)


def test_a_batch_scores_like_one_at_a_time(base):
    rows = PairEncoder(base.tokenizer).encode(PAIRS * 3, max_length=80)
    assert mean_response_losses(base.model, rows, batch_size=6) == pytest.approx(
        mean_response_losses(base.model, rows, batch_size=1), abs=1e-4
    )


def test_a_row_without_a_response_costs_nothing(base):
    rows = PairEncoder(base.tokenizer).encode([None, PAIRS[0]], max_length=80)
    batch = {"input_ids": rows.input_ids, "attention_mask": rows.attention_mask, "loss_mask": rows.loss_mask}
    losses = response_losses(base.model, batch)
    assert float(losses[0].detach()) == 0.0
    assert float(losses[1].detach()) > 0


def test_losses_at_the_responses_positions_are_those_at_all_positions(base):
    rows = PairEncoder(base.tokenizer).encode([PAIRS[0], None, PAIRS[1]], max_length=80)
    batch = {"input_ids": rows.input_ids, "attention_mask": rows.attention_mask, "loss_mask": rows.loss_mask}
    weight = base.model.get_input_embeddings().weight
    weight.requires_grad_(True)
    found = {}
    for losses_of in (response_losses, sparse_response_losses):
        losses = losses_of(base.model, batch)
        found[losses_of] = (losses.detach(), *torch.autograd.grad(losses.mean(), weight))
    weight.requires_grad_(False)
    assert float(found[sparse_response_losses][0][1]) == 0.0
    for dense, sparse in zip(found[response_losses], found[sparse_response_losses], strict=True):
        assert float(dense.abs().max()) > 0
        torch.testing.assert_close(sparse, dense, rtol=1e-4, atol=1e-6)
