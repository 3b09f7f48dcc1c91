"""Next-token accuracy: equal to a loop over single samples, and intervals that behave."""

import math

import numpy as np
import pytest
import torch
from tests_support import write_random_model
from torch.nn import functional

from understudy.errors import InputError
from understudy.evaluation.texts.language_model import encode_texts
from understudy.evaluation.utility import next_token
from understudy.evaluation.utility.next_token import ClientScores, NextTokenConfig
from understudy.models.loading import load_model

CLIENTS = [
    ["fog until noon , then a heron by the river", "rain"],
    [],
    ["I walked to the old mill and the wind was cold . " * 4],
    ["", "the steep path"],
]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    return str(write_random_model(tmp_path_factory.mktemp("models") / "random-gpt2"))


def by_a_loop(loaded, samples, max_length):
    """Tokens, right ones and loss of one client, each sample alone and unpadded."""
    tokens = correct = 0
    loss = 0.0
    for ids in encode_texts(loaded.tokenizer, samples, max_length=max_length):
        with torch.no_grad():
            logits = loaded.model(torch.tensor([ids])).logits[0].double()
        for position, token in enumerate(ids[1:]):
            tokens += 1
            correct += int(logits[position].argmax()) == token
            loss -= float(torch.log_softmax(logits[position], -1)[token])
    return tokens, correct, loss


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_scores_are_those_of_a_loop_over_single_samples(batch_size):
    loaded = load_model("tiny-gpt2")
    scores = next_token.score_clients(loaded, CLIENTS, max_length=24, batch_size=batch_size)
    expected = [by_a_loop(loaded, samples, 24) for samples in CLIENTS]
    assert scores.tokens.tolist() == [e[0] for e in expected]
    assert scores.correct.tolist() == [e[1] for e in expected]
    assert scores.loss == pytest.approx([e[2] for e in expected], rel=1e-5)
    assert scores.correct.sum() > 0, "the shipped model knows some English"
    assert scores.accuracy == sum(e[1] for e in expected) / sum(e[0] for e in expected)
    assert scores.loss_per_token == pytest.approx(sum(e[2] for e in expected) / sum(e[0] for e in expected))


def test_no_token_to_predict_and_a_short_context_are_refused(base):
    loaded = load_model(base)
    for clients in ([], [[]], [["", ""]]):
        with pytest.raises(InputError, match="without a token to predict"):
            next_token.score_clients(loaded, clients)
    with pytest.raises(InputError, match=r"max_length=65: .* 64 tokens"):
        next_token.score_clients(loaded, CLIENTS, max_length=65)
    with pytest.raises(InputError, match=r"max_length=65: .* 64 tokens"):
        next_token.fine_tune(["a"], config=NextTokenConfig(base=base, max_length=65), seed=0)


def test_the_loss_counts_masked_tokens_only():
    loaded = load_model("tiny-gpt2")
    ids = torch.tensor([[0, 50, 60, 70, 1], [0, 80, 90, 1, 1]])
    mask = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 1, 0, 0]])
    logits = loaded.model(ids).logits
    expected = [
        functional.cross_entropy(logits[row, column - 1], ids[row, column]) for row, column in ((0, 1), (0, 3), (1, 2))
    ]
    found = next_token.next_token_loss(loaded.model, ids, mask)
    assert found.item() == pytest.approx(torch.stack(expected).mean().item(), rel=1e-5)
    assert next_token.next_token_loss(loaded.model, ids, torch.zeros_like(mask)).item() == 0.0


def test_one_step_of_training_is_adamw_on_the_mean_over_tokens(base):
    texts = ["a heron by the river", "rain", ""]
    config = NextTokenConfig(base=base, epochs=1, batch_size=8, learning_rate=0.01, weight_decay=0.1)
    tuned = next_token.fine_tune(texts, config=config, seed=3)
    loaded = load_model(base)
    model = loaded.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    losses = []
    for ids in encode_texts(loaded.tokenizer, texts, max_length=64):
        if len(ids) > 1:
            logits = model(torch.tensor([ids])).logits[0, :-1]
            losses += [functional.cross_entropy(row, torch.tensor(t)) for row, t in zip(logits, ids[1:], strict=True)]
    torch.stack(losses).mean().backward()
    optimizer.step()
    for (name, found), expected in zip(tuned.model.named_parameters(), model.parameters(), strict=True):
        # Adam's first step is the sign of the gradient: where that is rounding, so is the step.
        clear = expected.grad.abs() > 1e-6
        assert bool(clear.any()), name
        torch.testing.assert_close(found[clear], expected.detach()[clear], rtol=0, atol=1e-4)


def test_training_learns_and_repeats(base):
    texts = ["fog until noon , then a heron by the river"] * 20
    config = NextTokenConfig(base=base, epochs=10, batch_size=5, learning_rate=0.01)
    first = next_token.fine_tune(texts, config=config, seed=0)
    second = next_token.fine_tune(texts, config=config, seed=0)
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    before = next_token.score_clients(load_model(base), [texts[:1]])
    after = next_token.score_clients(first, [texts[:1]])
    assert after.loss_per_token < 0.4 * before.loss_per_token
    assert after.accuracy > before.accuracy + 0.4
    assert not any(p.requires_grad for p in first.model.parameters())
    with pytest.raises(InputError, match="found 2 without"):
        next_token.fine_tune(["", ""], config=config, seed=0)


def test_profiles_fill_what_is_not_given():
    paper = NextTokenConfig(profile="paper", epochs=3)
    assert (paper.base, paper.epochs, paper.batch_size) == ("distilbert/distilgpt2", 3, 160)
    assert (paper.learning_rate, paper.max_length) == (2e-4, 64)
    assert NextTokenConfig().base == "tiny-gpt2"


def made_up(clients: int, seed: int = 0, shift: float = 0.0) -> ClientScores:
    generator = np.random.default_rng(seed)
    tokens = generator.integers(10, 400, clients)
    share = np.clip(generator.beta(4, 8, clients) + shift, 0, 1)
    return ClientScores(tokens, np.round(tokens * share).astype(np.int64), tokens * 3.0)


def test_the_interval_has_the_width_of_the_delta_method():
    scores = made_up(400)
    residual = scores.correct - scores.accuracy * scores.tokens
    deviation = math.sqrt(np.square(residual).sum()) / scores.tokens.sum()
    found = next_token.accuracy_interval(scores, seed=0, replicates=4000)
    assert found.value == scores.accuracy
    assert found.high - found.low == pytest.approx(2 * 1.96 * deviation, rel=0.06)
    assert (found.high + found.low) / 2 == pytest.approx(scores.accuracy, abs=0.2 * deviation)
    assert found == next_token.accuracy_interval(scores, seed=0, replicates=4000)
    assert found != next_token.accuracy_interval(scores, seed=1, replicates=4000)


def test_a_client_without_tokens_changes_nothing():
    scores = made_up(30)
    more = ClientScores(*(np.append(v, 0).astype(v.dtype) for v in (scores.tokens, scores.correct, scores.loss)))
    assert next_token.accuracy_interval(more, seed=0) == next_token.accuracy_interval(scores, seed=0)


def test_a_difference_is_paired_by_client():
    a, b = made_up(200, shift=0.05), made_up(200)
    same = next_token.accuracy_difference(a, a, seed=0)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    found = next_token.accuracy_difference(a, b, seed=0)
    alone = next_token.accuracy_interval(a, seed=0)
    assert found.value == a.accuracy - b.accuracy
    assert 0.04 < found.low < found.value < found.high < 0.06
    assert found.high - found.low < 0.2 * (alone.high - alone.low)
    with pytest.raises(ValueError, match="same clients"):
        next_token.accuracy_difference(a, made_up(200, seed=1), seed=0)


@pytest.mark.parametrize("clients", [1, 4])
def test_few_clients_say_nothing(clients):
    a, b = made_up(clients, shift=0.05), made_up(clients)
    idle = [
        ClientScores(*(np.append(v, [0] * 9).astype(v.dtype) for v in (one.tokens, one.correct, one.loss)))
        for one in (a, b)
    ]
    for first, second in ((a, b), idle):
        alone, found = (
            next_token.accuracy_interval(first, seed=0),
            next_token.accuracy_difference(first, second, seed=0),
        )
        assert (alone.value, alone.low, alone.high) == (a.accuracy, 0, 1)
        assert (found.value, found.low, found.high) == (a.accuracy - b.accuracy, -1, 1)
    found = next_token.accuracy_interval(made_up(5), seed=0)
    assert 0 < found.low < found.high < 1


@pytest.mark.parametrize(
    ("value", "expected"), [(0.279, 0.0), (0.415, 1.0), (0.347, 0.5), (0.2, -0.5808823529), (0.5, 1.625)]
)
def test_share_of_the_gap(value, expected):
    assert next_token.share_of_gap_closed(value, 0.279, 0.415) == pytest.approx(expected)


def test_no_gap_gives_no_share():
    assert next_token.share_of_gap_closed(0.3, 0.4, 0.4) is None
    assert next_token.share_of_gap_closed(0.3, 0.4, 0.39) is None
