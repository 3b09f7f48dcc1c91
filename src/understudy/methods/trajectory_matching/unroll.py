"""The student's N inner steps of SGD, differentiated through (NACD, section 3.2, Equations 1 and 2).

The student starts at an expert's weights and takes N steps `theta <- theta - alpha * gradient of l(prompts_n, theta)`.
The loss is its squared distance to where the expert was M steps later, over the distance that it began with. What is
wanted is the gradient of that loss by every step's prompts and by alpha.

Plain reverse mode keeps the graph of all N gradients. Here the adjoint of the recursion is written out instead:

    lambda_N = dL / d theta_N
    dL / d prompts_n = -alpha * d(lambda_{n+1} . g_n) / d prompts_n        g_n: the gradient of step n
    dL / d alpha     = -sum over n of lambda_{n+1} . g_n
    lambda_n         = lambda_{n+1} - alpha * d(lambda_{n+1} . g_n) / d theta_n

so only the N states of the weights and their gradients are kept, which are small for adapters, and one step's graph at
a time. A step's loss is a mean over its rows, so a graph may hold a few rows, too, and parts are added up. The last
step's graph, where it holds all rows, is kept from the way forward, for it is needed first on the way back: no work is
done twice for it. The result is that of plain reverse mode up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from understudy.errors import InputError, RowError

Weights = Mapping[str, Tensor]


class StudentLoss(Protocol):
    """The loss of one inner step, a mean over rows, twice differentiable in both arguments."""

    def __call__(self, weights: Weights, prompts: Tensor, step: int, rows: slice = slice(None)) -> Tensor:
        """Loss `()` of some rows of step `step` at `weights`, preceded by their `prompts` `(rows, k, d)`."""
        ...


@dataclass(frozen=True)
class _Part:
    """Rows of one step that pass at a time, and their share in its loss."""

    rows: slice
    share: float

    @classmethod
    def all_of(cls, prompts: Tensor, rows_at_once: int | None) -> list[_Part]:
        rows = len(prompts)
        size = min(rows, rows_at_once or rows)
        ends = [(first, min(first + size, rows)) for first in range(0, rows, size)]
        return [cls(slice(first, end), (end - first) / rows) for first, end in ends]


@dataclass(frozen=True)
class Segment:
    """A part of an expert's trajectory: where the student starts and where it should arrive.

    Attributes:
        start: theta*_t by name.
        target: theta*_{t+M} by name, of the same shapes.
    """

    start: Weights
    target: Weights

    @property
    def length(self) -> float:
        """Squared distance from start to target.

        Raises:
            InputError: the two are not of one adapter.
            RowError: the expert did not move.
        """
        check_same_shapes(self.start, self.target)
        found = float(squared_distance(self.start, self.target))
        if not found > 0:
            raise RowError(
                "expected an expert that moved between two snapshots, found one that did not; raise "
                "experts.momentum_learning_rate, or experts.learning_rate where Adam trains the experts"
            )
        return found


@dataclass(frozen=True)
class MatchedSteps:
    """What one unrolled student gives.

    Attributes:
        loss: the normalised matching loss.
        by_prompts: gradient by the prompts of each step, `(batch, k, d)` each.
        by_step_size: gradient by alpha.
        final: the student's weights after all steps.
    """

    loss: float
    by_prompts: tuple[Tensor, ...]
    by_step_size: float
    final: Weights


def match_trajectory(
    loss: StudentLoss,
    segment: Segment,
    prompts: Sequence[Tensor],
    *,
    step_size: float,
    rows_at_once: int | None = None,
) -> MatchedSteps:
    """Take the student's steps and differentiate the matching loss through all of them.

    Memory is that of the second-order graph of one pass plus, per step, one set of weights and gradients.

    Args:
        loss: of one inner step.
        segment: of an expert's trajectory.
        prompts: of each step, `(batch, k, d)` float32; N is their number.
        step_size: alpha > 0.
        rows_at_once: rows of a step in one pass; None for all of them.

    Raises:
        InputError: the expert did not move between start and target.
    """
    length = segment.length
    # The fused attention kernels have no second derivative.
    with sdpa_kernel(SDPBackend.MATH):
        states, gradients, last = _forward(loss, segment.start, prompts, step_size, rows_at_once)
        final = states.pop()
        adjoint = {name: 2 * (final[name] - segment.target[name]) / length for name in final}
        by_prompts: list[Tensor] = []
        by_step_size = 0.0
        for step in reversed(range(len(prompts))):
            by_step_size -= sum(float((adjoint[name] * gradients[step][name]).sum()) for name in adjoint)
            by_prompt = []
            here, prompt, after = states[step], prompts[step], adjoint
            for part in _Part.all_of(prompt, rows_at_once):
                # No name holds a graph while the next one is made.
                by_weights, of_rows = (last or _Graph.of(loss, here, prompt, step, part)).differentiated(after)
                last = None
                adjoint = {name: adjoint[name] - step_size * by_weights[name] for name in adjoint}
                by_prompt.append(-step_size * of_rows)
            by_prompts.append(torch.cat(by_prompt))
    remaining = float(squared_distance(final, segment.target)) / length
    return MatchedSteps(remaining, tuple(reversed(by_prompts)), by_step_size, final)


@dataclass
class _Graph:
    """A part's share in one step's gradient with the graph behind it."""

    weights: Weights
    prompts: Tensor
    gradient: Weights

    @classmethod
    def of(cls, loss: StudentLoss, weights: Weights, prompts: Tensor, step: int, part: _Part) -> _Graph:
        leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
        prompts = prompts[part.rows].detach().requires_grad_()
        value = part.share * loss(leaves, prompts, step, part.rows)
        found = torch.autograd.grad(value, list(leaves.values()), create_graph=True)
        return cls(leaves, prompts, dict(zip(leaves, found, strict=True)))

    def differentiated(self, adjoint: Weights) -> tuple[Weights, Tensor]:
        """Gradients of `adjoint . gradient` by weights and prompts; the graph is freed."""
        names = list(self.weights)
        # A weight by which the loss is at most linear has a gradient without a graph: it adds nothing.
        bent = [name for name in names if self.gradient[name].requires_grad]
        found = torch.autograd.grad(
            [self.gradient[name] for name in bent],
            [*self.weights.values(), self.prompts],
            grad_outputs=[adjoint[name] for name in bent],
            allow_unused=True,
            materialize_grads=True,
        )
        return dict(zip(names, found[:-1], strict=True)), found[-1]


def _forward(
    loss: StudentLoss, start: Weights, prompts: Sequence[Tensor], step_size: float, rows_at_once: int | None
) -> tuple[list[dict[str, Tensor]], list[Weights], _Graph | None]:
    """All N + 1 states, the N gradients, and the graph of the last of them where one pass holds its rows."""
    states = [{name: value.detach() for name, value in start.items()}]
    gradients: list[Weights] = []
    graph: _Graph | None = None
    for step, prompt in enumerate(prompts):
        here = states[-1]
        parts = _Part.all_of(prompt, rows_at_once)
        if step == len(prompts) - 1 and len(parts) == 1:
            graph = _Graph.of(loss, here, prompt, step, parts[0])
            gradient = {name: value.detach() for name, value in graph.gradient.items()}
        else:
            gradient = weight_gradient(loss, here, prompt, step, rows_at_once=rows_at_once)
        gradients.append(gradient)
        states.append({name: here[name] - step_size * gradient[name] for name in here})
    return states, gradients, graph


def weight_gradient(
    loss: StudentLoss, weights: Weights, prompts: Tensor, step: int, *, rows_at_once: int | None = None
) -> dict[str, Tensor]:
    """The gradient of one step's loss by the weights, without a graph."""
    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    total: dict[str, Tensor] = {}
    for part in _Part.all_of(prompts, rows_at_once):
        value = part.share * loss(leaves, prompts[part.rows].detach(), step, part.rows)
        found = dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))
        total = {name: total[name] + found[name] for name in found} if total else found
    return total


def squared_distance(one: Weights, other: Weights) -> Tensor:
    """Squared L2 distance of two sets of weights, float64 `()`."""
    parts = [(one[name].double() - other[name].double()).square().sum() for name in sorted(one)]
    return torch.stack(parts).sum()


def check_same_shapes(one: Weights, other: Weights) -> None:
    """Refuse weights that are not of one adapter.

    Raises:
        InputError: naming the first tensor that differs.
    """
    for name in sorted({*one, *other}):
        found = [tuple(weights[name].shape) if name in weights else None for weights in (one, other)]
        if found[0] != found[1]:
            raise InputError(
                f"{name}: expected snapshots of one base model and one experts.lora_rank, found shapes {found[0]} and "
                f"{found[1]}; train the experts again with these settings"
            )
