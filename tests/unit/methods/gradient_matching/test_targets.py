"""Factors, norms, inner products and clipped sums against gradients written out; what the sketch keeps."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from understudy.methods.gradient_matching.config import TargetConfig
from understudy.methods.gradient_matching.targets import (
    TargetSpace,
    clipped_sum,
    factors,
    gradient_norm,
    inner,
    target_space,
)
from understudy.methods.gradient_matching.verbalizer import Verbalizer

KINDS = ["head", "label_rows", "sketch"]
VOCABULARY, WIDTH, CLASSES, SKETCH = 23, 6, 3, 11
TOKENS = torch.tensor([4, 9, 22])


def signs(rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (rows, columns), generator=generator).float() * 2 - 1


def make_space(kind, *, bias=True, vocabulary=VOCABULARY, width=WIDTH, dimension=SKETCH):
    sketch = None
    if kind == "sketch":
        sketch = signs(dimension, vocabulary, 1), signs(dimension, width + bias, 2)
    return TargetSpace(kind, TOKENS, bias, vocabulary, width, sketch)


def states(count, seed=0, *, vocabulary=VOCABULARY, width=WIDTH):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, width, generator=generator)
    logits = 2 * torch.randn(count, vocabulary, generator=generator)
    return hidden, logits, torch.randint(0, CLASSES, (count,), generator=generator)


def dense(space, left, right):
    """Every example's gradient, written out from its factors: (B, dimension)."""
    if space.kind == "sketch":
        return left * right / math.sqrt(left.shape[1])
    return torch.einsum("bl,br->blr", left, right).flatten(1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_factors_are_the_gradient_of_a_linear_head(kind, bias):
    space = make_space(kind, bias=bias)
    hidden, _, labels = states(7)
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(VOCABULARY, WIDTH + bias, generator=generator).requires_grad_()
    inputs = torch.cat([hidden, torch.ones(7, 1)], dim=1) if bias else hidden
    logits = inputs @ weight.T
    left, right = factors(space, hidden, logits.detach(), labels)
    assert dense(space, left, right).shape == (7, space.dimension)
    for row in range(7):
        if kind == "label_rows":
            loss = functional.cross_entropy(logits[row, TOKENS], labels[row])
        else:
            loss = functional.cross_entropy(logits[row], TOKENS[labels[row]])
        (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True)
        if kind == "label_rows":
            gradient = gradient[TOKENS]
        if kind == "sketch":
            a, b = space.sketch
            gradient = torch.stack([a[j] @ gradient @ b[j] for j in range(SKETCH)]) / math.sqrt(SKETCH)
        torch.testing.assert_close(dense(space, left, right)[row], gradient.flatten(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_sure_of_the_label_leaves_an_exact_gradient(kind):
    """Float32 against float64 where 1 - p is 1e-7, which p - 1 would lose."""
    space = make_space(kind)
    hidden, logits, labels = states(6)
    logits[torch.arange(6), TOKENS[labels]] = 18.0
    found = dense(space, *factors(space, hidden, logits, labels)).double()
    wide = hidden.double(), logits.double(), labels
    if space.sketch is not None:
        space = TargetSpace("sketch", TOKENS, True, VOCABULARY, WIDTH, tuple(part.double() for part in space.sketch))
    expected = dense(space, *factors(space, *wide))
    assert float(expected.norm(dim=1).max()) < 1e-3
    assert float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max()) < 1e-5


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_norm_and_inner_product_are_those_of_the_written_out_gradient(kind, bias):
    space = make_space(kind, bias=bias)
    hidden, logits, labels = states(9)
    left, right = factors(space, hidden, logits, labels)
    target = torch.randn(CLASSES, *space.shape, generator=torch.Generator().manual_seed(8))
    gradients = dense(space, left, right)
    torch.testing.assert_close(gradient_norm(space, left, right), gradients.norm(dim=1))
    expected = (gradients * target.flatten(1)[labels]).sum(1)
    torch.testing.assert_close(inner(space, left, right, target, labels), expected, rtol=1e-4, atol=1e-5)
    one = inner(space, left[:1], right[:1], target, labels[:1])
    torch.testing.assert_close(one, expected[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_clipped_sum_is_a_loop_over_single_examples(kind):
    space = make_space(kind)
    hidden, logits, labels = states(40)
    left, right = factors(space, hidden, logits, labels)
    valid = torch.arange(40) % 5 != 3
    clip = float(gradient_norm(space, left, right).median())
    expected = torch.zeros(CLASSES, space.dimension, dtype=torch.float64)
    for row in range(40):
        gradient = dense(space, left[row : row + 1].double(), right[row : row + 1].double())[0]
        if valid[row]:
            expected[labels[row]] += gradient * min(1.0, clip / float(gradient.norm()))
    found = clipped_sum(space, left, right, labels, valid, clip)
    assert found.shape == (CLASSES, *space.shape)
    torch.testing.assert_close(found.flatten(1), expected, rtol=1e-12, atol=1e-12)
    halves = [clipped_sum(space, left[h], right[h], labels[h], valid[h], clip) for h in (slice(17), slice(17, None))]
    torch.testing.assert_close(halves[0] + halves[1], found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_label_without_members_keeps_its_sum(kind):
    """Rows that are null, or of other labels, or undefined, are no members; what was summed before stays."""
    space = make_space(kind)
    hidden, logits, _ = states(9)
    labels = torch.tensor([0, 0, 2, 2, 1, 1, 0, 2, 0])
    hidden[5, 0] = math.nan  # the second of label 1; the first is null
    valid = torch.arange(9) != 4
    left, right = factors(space, hidden, logits, labels)
    before = torch.randn(CLASSES, *space.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = clipped_sum(space, left, right, labels, valid, 0.7, into=before.clone())
    assert torch.equal(found[1], before[1])
    for label, members in {0: [0, 1, 6, 8], 2: [2, 3, 7]}.items():
        expected = before[label].flatten().clone()
        for row in members:
            gradient = dense(space, left[row : row + 1].double(), right[row : row + 1].double())[0]
            expected += gradient * min(1.0, 0.7 / float(gradient.norm()))
        torch.testing.assert_close(found[label].flatten(), expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.0, 1e-20, 1e-3, 1.0, 1e3, 1e15]),
    clip=st.sampled_from([1e-3, 0.1, 1.0, 50.0]),
    slot=st.integers(0, 11),
    odd=st.sampled_from([None, math.nan, math.inf, -math.inf]),
)
def test_the_clipped_sum_moves_by_at_most_c_between_neighbours(kind, seed, scale, clip, slot, odd):
    """Slot `slot` becomes null; its gradient may be anything, even undefined."""
    space = make_space(kind)
    hidden, logits, labels = states(12, seed)
    hidden[slot] *= scale
    if odd is not None:
        hidden[slot, 0] = odd
    left, right = factors(space, hidden, logits, labels)
    valid = torch.ones(12, dtype=torch.bool)
    present = clipped_sum(space, left, right, labels, valid, clip).float()
    valid[slot] = False
    labels[slot] = 0
    absent = clipped_sum(space, left, right, labels, valid, clip).float()
    assert present.isfinite().all()
    distance = float((present.double() - absent.double()).norm())
    rounding = 2.0**-23 * float(absent.double().norm() + clip)
    assert distance <= clip + rounding
    if odd is not None:
        assert distance == 0
    elif scale >= 1e3 and clip <= 1:
        assert distance >= clip - rounding - 1e-6 * clip, "the example should be clipped, not dropped"


def cosines(first, second):
    return functional.cosine_similarity(first, second, dim=1)


@pytest.mark.parametrize(("related", "least"), [(False, 0.99), (True, 0.95)], ids=["unrelated", "related"])
@pytest.mark.parametrize("dimension", [128, 512])
def test_the_sketch_keeps_cosines_of_random_pairs(dimension, related, least):
    """1,000 pairs of fixed seed under one sketch; 3/sqrt(m) is three standard deviations of unrelated pairs."""
    pairs, sizes = 1000, {"vocabulary": 300, "width": 48}
    first, second = states(pairs, 10, **sizes), states(pairs, 11, **sizes)
    if related:  # from unrelated pairs to equal ones
        mix = torch.linspace(0, 1, pairs)[:, None]
        second = (*(mix * one + (1 - mix) * other for one, other in zip(first[:2], second[:2], strict=True)), second[2])
    whole, space = make_space("head", **sizes), make_space("sketch", dimension=dimension, **sizes)
    exact = cosines(*(dense(whole, *factors(whole, *side)) for side in (first, second)))
    kept = cosines(*(dense(space, *factors(space, *side)) for side in (first, second)))
    errors = (kept - exact).abs() * math.sqrt(dimension)
    assert float((errors <= 3).float().mean()) >= least
    assert float(errors.square().mean().sqrt()) > 0.5, "the bound would say nothing of an exact sketch"
    assert exact.max() > (0.9 if related else 0.3)


def test_the_sketch_is_public_fixed_and_of_its_seed():
    model = torch.nn.Linear(WIDTH, VOCABULARY)
    words = Verbalizer(("a", "b", "c"), TOKENS, torch.tensor([1]), torch.tensor([0]))

    class Model(torch.nn.Module):
        """A head and nothing below it."""

        def __init__(self):
            super().__init__()
            self.lm_head = model

        @property
        def base_model(self):
            return lambda input_ids, use_cache: type("Output", (), {"last_hidden_state": self.states(input_ids)})()

        def states(self, ids):
            return torch.sin(ids[..., None] * torch.arange(1.0, WIDTH + 1))

        def get_output_embeddings(self):
            return self.lm_head

        def forward(self, input_ids, use_cache):
            return type("Output", (), {"logits": self.lm_head(self.states(input_ids))})()

    config = TargetConfig(kind="sketch", sketch_dimension=400)
    state = torch.get_rng_state()
    one, again, other = (target_space(Model(), words, config, public_seed=seed).sketch for seed in (3, 3, 4))
    assert torch.equal(state, torch.get_rng_state()), "the global generator is not touched"
    assert all(torch.equal(x, y) for x, y in zip(one, again, strict=True))
    assert not torch.equal(one[0], other[0])
    assert one[0].shape == (400, VOCABULARY)
    assert one[1].shape == (400, WIDTH + 1)
    for matrix in one:
        assert set(matrix.unique().tolist()) == {-1.0, 1.0}
        assert abs(float(matrix.mean())) < 4 / math.sqrt(matrix.numel())
