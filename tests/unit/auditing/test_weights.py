"""Shares of texts in the change of a model's weights: gradients as autograd has them, planted members found."""

import copy

import numpy as np
import pytest
import torch
from random_models import random_model

from understudy.auditing import weights
from understudy.auditing.attack import together
from understudy.auditing.row_losses import RowLosses

TEXTS, LENGTH, CANARIES = 40, 9, 24
pytestmark = pytest.mark.usefixtures("one_thread")


def small(kind):
    return random_model(kind, vocabulary=60, width=32, positions=32, layers=2, heads=4, initializer_range=0.2).eval()


def texts():
    return torch.randint(2, 60, (TEXTS, LENGTH), generator=torch.Generator().manual_seed(3))


def losses_of(model, ids):
    logits = model(input_ids=ids).logits[:, :-1]
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return each.mean(1)


def reading(model, ids, batch=16):
    parts = [ids[start : start + batch] for start in range(0, len(ids), batch)]
    return RowLosses(model, tuple((lambda some=some: losses_of(model, some)) for some in parts))


def linear_weights(model):
    return {f"{name}.weight" for name, _ in weights._linear_layers(model)}


def trained(model, ids, *, steps=3):
    """A copy after a few steps of Adam on these texts, each gradient scaled to norm 1."""
    changed = copy.deepcopy(model)
    moving = [parameter for name, parameter in changed.named_parameters() if name in linear_weights(model)]
    optimizer = torch.optim.Adam(moving, lr=1e-3)
    for _ in range(steps):
        total = [torch.zeros_like(one) for one in moving]
        for row in range(len(ids)):
            own = torch.autograd.grad(losses_of(changed, ids[row : row + 1]).sum(), moving)
            size = torch.cat([one.flatten() for one in own]).norm()
            total = [sum_ + one / size for sum_, one in zip(total, own, strict=True)]
        for parameter, gradient in zip(moving, total, strict=True):
            parameter.grad = gradient
        optimizer.step()
    return changed


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_gradients_are_those_of_autograd_within_the_changed_directions(kind):
    public, ids = small(kind), texts()[:5]
    released = trained(public, ids, steps=1)
    layers = weights.changed_layers(public, released)
    assert {f"{name}.weight" for name in layers} == linear_weights(public)
    assert "head" not in " ".join(layers)
    expected = []
    for row in range(len(ids)):
        names = [f"{name}.weight" for name in layers]
        own = [dict(public.named_parameters())[name].requires_grad_() for name in names]
        found = torch.autograd.grad(losses_of(public, ids[row : row + 1]).sum(), own)
        turned = [one.T if kind == "gpt2" else one for one in found]  # its layers hold (in, out)
        within = [one @ layer.inputs for one, layer in zip(turned, layers.values(), strict=True)]
        flat = torch.cat([one.flatten() for one in within])
        expected.append(flat / flat.norm())
    found = weights._gradients(reading(public, ids, batch=2), layers)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_texts_that_were_trained_on_have_the_greater_shares(kind):
    """Rows that the attacker does not know were trained on beside the canaries."""
    ids, coins = texts(), np.arange(CANARIES) % 3 == 0
    members = torch.cat([ids[:CANARIES][torch.from_numpy(coins)], ids[CANARIES + 8 :]])
    public = small(kind)
    released = trained(public, members)
    known = ids[: CANARIES + 8]
    found = weights.shares(reading(public, known), reading(released, known), canaries=CANARIES)
    assert [one.shape for one in found] == [(CANARIES,)] * 2
    for scores in (*found, together(found)):
        above = scores[coins][:, None] > scores[~coins][None]
        assert above.mean() > 0.9


def test_where_no_layer_has_changed_there_is_no_share():
    public = small("llama")
    same = copy.deepcopy(public)
    with torch.no_grad():
        same.get_input_embeddings().weight.mul_(2)
    assert weights.shares(reading(public, texts()), reading(same, texts()), canaries=4) == []


def test_of_a_large_model_every_so_manieth_output_is_looked_at(monkeypatch):
    public, ids = small("llama"), texts()
    released = trained(public, ids[:4], steps=1)
    layers = weights.changed_layers(public, released)
    whole = weights._gradients(reading(public, ids[:4]), layers)
    monkeypatch.setattr(weights, "MOST_NUMBERS", whole.shape[1] // 3)
    part = weights._gradients(reading(public, ids[:4]), layers)
    assert part.shape[1] <= whole.shape[1] // 3 + len(layers) * weights.RANK
    (scores, _) = weights.shares(reading(public, ids), reading(released, ids), canaries=20)
    assert scores[:4].min() > np.median(scores[4:])


def test_scores_weigh_alike_together_and_a_constant_one_nothing():
    one, other = np.array([1.0, 2.0, 3.0]), np.array([100.0, 300.0, 200.0])
    found = together([one, np.full(3, 7.0), other])
    assert found == pytest.approx(np.sqrt(1.5) * np.array([-2.0, 1.0, 1.0]))
