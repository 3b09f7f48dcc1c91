from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests_support import SENTIMENT_WORDS, write_random_model
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from understudy.errors import InputError
from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.utility.label_model import LabelModel, encode_rows
from understudy.evaluation.utility.transfer import TransferConfig, fine_tune
from understudy.methods.gradient_matching import gradients
from understudy.methods.gradient_matching.config import VerbalizerConfig
from understudy.methods.gradient_matching.gradients import (
    GradientError,
    all_gradients,
    gradient_error,
    head_gradient,
    record_errors,
    relative_distance,
)
from understudy.methods.gradient_matching.verbalizer import build_verbalizer
from understudy.models.loading import load_model

NAMES = ("negative", "positive", "undecided")
CONFIG = VerbalizerConfig(words={"negative": "bad", "positive": "great", "undecided": "fair"})
WORDS = partial(build_verbalizer, label_names=NAMES, config=CONFIG)
ROWS = LabelledTexts(
    ["a fine film", "dull", "it has its moments , and it has none", "great fun"] * 10 + ["so so"],
    [1, 0, 2, 1] * 10 + [2],
    NAMES,
)


def make_target(*, bias: bool, tied: bool, loss: str = "vocabulary") -> LabelModel:
    tokenizer = load_model("tiny-llama").tokenizer
    sizes = {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=tied, **sizes))
        head = nn.Linear(12, len(tokenizer), bias=bias)
        head.weight = model.get_input_embeddings().weight if tied else head.weight
        model.lm_head = head
        for parameter in model.parameters():
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    model.eval().requires_grad_(False)
    return LabelModel(model, tokenizer, WORDS(tokenizer), max_length=16, loss=loss)


def mean_loss(target: LabelModel, rows: LabelledTexts, head=None) -> torch.Tensor:
    """The mean loss, one unpadded row at a time; `head` replaces the output head."""
    losses = []
    for ids, label in zip(encode_rows(target, rows.texts), rows.labels, strict=True):
        state = target.model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        logits = (head or target.model.lm_head)(state)
        words = target.words.token_ids
        if target.loss == "verbalizer":
            losses.append(functional.cross_entropy(logits[words], torch.tensor(int(label))))
        else:
            losses.append(functional.cross_entropy(logits, words[int(label)]))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("loss", ["vocabulary", "verbalizer"])
@pytest.mark.parametrize(("bias", "tied"), [(False, True), (True, False), (True, True)])
def test_the_closed_form_is_autograd_by_the_head_alone(bias, tied, loss):
    target = make_target(bias=bias, tied=tied, loss=loss)
    old = target.model.lm_head
    head = nn.Linear(12, old.out_features, bias=bias)  # a copy: untied from the embeddings
    head.load_state_dict(old.state_dict())
    parts = torch.autograd.grad(mean_loss(target, ROWS, head), list(head.parameters()))
    wanted = torch.cat([parts[0], parts[1][:, None]], dim=1) if bias else parts[0]
    if loss == "verbalizer":
        others = torch.ones(len(wanted), dtype=torch.bool)
        others[target.words.token_ids] = False
        assert not wanted[others].any()
        wanted = wanted[target.words.token_ids]
    found = head_gradient(target, ROWS)
    assert found.shape == wanted.shape
    assert torch.allclose(found, wanted, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_all_gradients_are_those_of_the_mean_loss(tied):
    target = make_target(bias=True, tied=tied)
    target.model.requires_grad_(True)
    wanted = torch.autograd.grad(mean_loss(target, ROWS), list(target.model.parameters()))
    target.model.requires_grad_(False)
    found = all_gradients(target, ROWS)
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert (mine - theirs).norm() <= 1e-4 * theirs.norm()


def test_the_error_is_the_definition_and_leaves_the_model_alone():
    target = make_target(bias=False, tied=True)
    target.model.lm_head.weight.requires_grad_(True)
    before = [p.requires_grad for p in target.model.parameters()]
    few = LabelledTexts(ROWS.texts[:3], ROWS.labels[:3], NAMES)
    found = gradient_error(target, few, ROWS, full=True)
    sides = [head_gradient(target, rows).double().numpy() for rows in (few, ROWS)]
    assert found.last_layer == pytest.approx(np.linalg.norm(sides[0] - sides[1]) / np.linalg.norm(sides[1]), rel=1e-6)
    made, real = (np.concatenate([g.numpy().ravel() for g in all_gradients(target, rows)]) for rows in (few, ROWS))
    assert found.full == pytest.approx(np.linalg.norm(made - real) / np.linalg.norm(real), rel=1e-5)
    assert 0.01 < found.last_layer < 10
    assert [p.requires_grad for p in target.model.parameters()] == before
    assert all(p.grad is None for p in target.model.parameters())
    assert gradient_error(target, few, ROWS).full is None


def test_a_mean_does_not_change_when_every_row_comes_twice_in_another_order():
    target = make_target(bias=False, tied=True)
    order = [*range(len(ROWS.texts) - 1, -1, -1)] * 2
    twice = LabelledTexts([ROWS.texts[i] for i in order], [ROWS.labels[i] for i in order], NAMES)
    found = gradient_error(target, twice, ROWS, full=True)
    assert found.last_layer < 1e-5
    assert found.full is not None
    assert found.full < 1e-5


@given(
    st.lists(st.floats(-10, 10), min_size=4, max_size=4),
    st.lists(st.floats(-10, 10), min_size=4, max_size=4),
    st.floats(0.1, 10),
)
def test_relative_distance_is_that_of_the_joined_vectors(a, b, scale):
    split = [[torch.tensor(v[:1], dtype=torch.float64), torch.tensor(v[1:], dtype=torch.float64)] for v in (a, b)]
    norm = np.linalg.norm(b)
    found = relative_distance(*split)
    if norm == 0:
        assert found == float("inf")
        return
    assert found == pytest.approx(np.linalg.norm(np.subtract(a, b)) / norm, rel=1e-6, abs=1e-6)
    assert relative_distance([scale * t for t in split[0]], [scale * t for t in split[1]]) == pytest.approx(found)


@pytest.fixture(scope="module")
def random_base(tmp_path_factory) -> str:
    return str(write_random_model(tmp_path_factory.mktemp("models") / "random"))


def test_it_is_recorded_along_fine_tuning(make_reviews, random_base):
    real, synthetic = make_reviews(24, seed=1), make_reviews(12, seed=2)
    flipped = LabelledTexts(synthetic.texts, 1 - np.asarray(synthetic.labels), NAMES[:2])
    config = TransferConfig(
        profile="tiny", base=random_base, frozen_lower_layers=1, steps=8, measure_every=4, max_length=24
    )
    curves = []
    for rows, full in ((synthetic, True), (flipped, False)):
        callback, found = record_errors(rows, real, full=full)
        tuned = fine_tune(rows, label_words=SENTIMENT_WORDS, config=config, seed=0, callback=callback)
        assert [step for step, _ in found] == [0, 4, 8]
        assert found[-1][1].last_layer == gradient_error(tuned, rows, real).last_layer
        curves.append([error for _, error in found])
    assert all(a.last_layer < b.last_layer for a, b in zip(*curves, strict=True))
    assert all(isinstance(error, GradientError) and error.full is not None and error.full > 0 for error in curves[0])


def test_measuring_does_not_change_the_training(make_reviews, random_base):
    rows = make_reviews(6, seed=1)
    config = TransferConfig(
        profile="tiny", base=random_base, frozen_lower_layers=1, steps=4, measure_every=1, max_length=16
    )
    callback, _ = record_errors(rows, rows, full=True)
    plain, watched = (
        fine_tune(rows, label_words=SENTIMENT_WORDS, config=config, seed=0, callback=call) for call in (None, callback)
    )
    for one, other in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_chunks_do_not_matter(monkeypatch):
    target = make_target(bias=True, tied=False)
    whole = head_gradient(target, ROWS), all_gradients(target, ROWS)
    monkeypatch.setattr(gradients, "_CHUNK", 3)
    assert torch.allclose(head_gradient(target, ROWS), whole[0], atol=1e-7, rtol=1e-4)
    assert relative_distance(all_gradients(target, ROWS), whole[1]) < 1e-5


def test_no_row_is_refused():
    with pytest.raises(InputError, match="0 texts, 0 labels"):
        head_gradient(make_target(bias=False, tied=True), LabelledTexts([], [], NAMES))
