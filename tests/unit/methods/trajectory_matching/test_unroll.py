"""Gradients through the student's steps: against finite differences, and against plain reverse mode."""

import pytest
import torch
from random_students import moved_weights, random_rows, random_student
from torch.nn.attention import SDPBackend, sdpa_kernel

from understudy.errors import InputError, RowError
from understudy.methods.trajectory_matching.student import BatchLoss
from understudy.methods.trajectory_matching.unroll import Segment, match_trajectory, squared_distance

K, STEP_SIZE = 2, 0.2


@pytest.fixture(params=["llama", "gpt2"])
def student(request):
    """Small enough for a test."""
    return random_student(request.param)


def toy_loss(weights, prompts, step, _rows):
    """Two parameters, three inner steps, every derivative of order two and three non-zero."""
    x, y = weights["w"]
    a = prompts.sum() + step
    return torch.sin(a * x) * y + x * y * y + 0.3 * prompts.square().sum() * x * x


def toy(prompts, step_size):
    segment = Segment({"w": torch.tensor([0.3, -0.4]).double()}, {"w": torch.tensor([0.1, 0.5]).double()})
    return match_trajectory(toy_loss, segment, prompts, step_size=step_size)


def test_gradients_equal_finite_differences_on_two_parameters():
    prompts = [torch.tensor([[[0.2, -0.1]]]).double() * (n + 1) for n in range(3)]
    found, width = toy(prompts, 0.1), 1e-6
    slope = (toy(prompts, 0.1 + width).loss - toy(prompts, 0.1 - width).loss) / (2 * width)
    assert found.by_step_size == pytest.approx(slope, rel=1e-6)
    for n in range(3):
        for column in range(2):
            shift = torch.zeros(1, 1, 2).double()
            shift[0, 0, column] = width
            up, down = ([*prompts[:n], prompts[n] + sign * shift, *prompts[n + 1 :]] for sign in (1, -1))
            slope = (toy(up, 0.1).loss - toy(down, 0.1).loss) / (2 * width)
            assert float(found.by_prompts[n][0, 0, column]) == pytest.approx(slope, rel=1e-5, abs=1e-9)


def reverse_mode(loss, segment, prompts, step_size):
    """The graph of every step kept: what the adjoint must agree with."""
    prompts = [prompt.clone().requires_grad_() for prompt in prompts]
    alpha = torch.tensor(step_size, requires_grad=True)
    weights = {name: value.clone().requires_grad_() for name, value in segment.start.items()}
    with sdpa_kernel(SDPBackend.MATH):
        for step, prompt in enumerate(prompts):
            found = torch.autograd.grad(loss(weights, prompt, step), list(weights.values()), create_graph=True)
            weights = {name: weights[name] - alpha * g for name, g in zip(weights, found, strict=True)}
        distance = squared_distance(weights, segment.target) / squared_distance(segment.start, segment.target)
        *by_prompts, by_alpha = torch.autograd.grad(distance, [*prompts, alpha])
    return float(distance.detach()), by_prompts, float(by_alpha)


@pytest.mark.parametrize(("steps", "rows_at_once"), [(1, None), (4, None), (4, 1), (4, 2)])
def test_gradients_equal_plain_reverse_mode(student, steps, rows_at_once):
    start = moved_weights(student, seed=1)
    segment = Segment(start, {name: value + 0.02 for name, value in start.items()})
    rows = random_rows(3 * steps)
    loss = BatchLoss(student, [rows[torch.arange(3 * n, 3 * n + 3)] for n in range(steps)])
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randn(3, K, 16, generator=generator) for _ in range(steps)]
    seen = []

    def noted(weights, some, step, rows):
        seen.append(len(some))
        return loss(weights, some, step, rows)

    found = match_trajectory(noted, segment, prompts, step_size=STEP_SIZE, rows_at_once=rows_at_once)
    assert set(seen) == {None: {3}, 1: {1}, 2: {2, 1}}[rows_at_once]
    expected, by_prompts, by_alpha = reverse_mode(loss, segment, prompts, STEP_SIZE)
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.by_step_size == pytest.approx(by_alpha, rel=1e-4)
    for ours, theirs in zip(found.by_prompts, by_prompts, strict=True):
        assert float(theirs.abs().max()) > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def test_a_row_alone_has_the_loss_that_it_has_among_others(student):
    """Padding and neighbours change nothing, with pseudo tokens and without."""
    rows, weights = random_rows(4), moved_weights(student, seed=3)
    prompts = torch.randn(4, K, 16, generator=torch.Generator().manual_seed(4))
    for given in (prompts, None):
        alone = [
            student.loss(weights, rows[torch.tensor([n])], None if given is None else given[n : n + 1])
            for n in range(4)
        ]
        together = student.loss(weights, rows[torch.arange(4)], given)
        assert float(together) == pytest.approx(float(torch.stack(alone).mean()), rel=1e-5)


def test_refuses_an_expert_that_stood_still_and_another_adapter(student):
    start = moved_weights(student, seed=1)
    loss = BatchLoss(student, [])
    with pytest.raises(RowError, match=r"found one that did not; raise .*experts\.learning_rate"):
        match_trajectory(loss, Segment(start, start), [], step_size=STEP_SIZE)
    name = sorted(start)[0]
    wider = {**start, name: torch.cat([start[name], start[name]])}
    with pytest.raises(InputError, match=r"experts\.lora_rank"):
        match_trajectory(loss, Segment(start, wider), [], step_size=STEP_SIZE)
