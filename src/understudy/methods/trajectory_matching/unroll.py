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
a time. The last step's graph is kept from the way forward, for it is needed first on the way back: no work is done
twice for it. The result is that of plain reverse mode up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from understudy.errors import InputError

Weights = Mapping[str, Tensor]


class StudentLoss(Protocol):
    """The loss of one inner step, twice differentiable in both arguments."""

    def __call__(self, weights: Weights, prompts: Tensor, step: int) -> Tensor:
        """Loss `()` of step `step` at `weights`, its rows preceded by `prompts` `(batch, k, d)`."""
        ...


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
            InputError: the expert did not move, or the two are not of one adapter.
        """
        check_same_shapes(self.start, self.target)
        found = float(squared_distance(self.start, self.target))
        if not found > 0:
            raise InputError(
                f"expected an expert that moved between two snapshots, found a squared distance of {found:g}; train "
                "the experts with a higher experts.learning_rate"
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
    loss: StudentLoss, segment: Segment, prompts: Sequence[Tensor], *, step_size: float
) -> MatchedSteps:
    """Take the student's steps and differentiate the matching loss through all of them.

    Memory is that of one step's second-order graph plus, per step, one set of weights and gradients.

    Args:
        loss: of one inner step.
        segment: of an expert's trajectory.
        prompts: of each step, `(batch, k, d)` float32; N is their number.
        step_size: alpha > 0.

    Raises:
        InputError: the expert did not move between start and target.
    """
    length = segment.length
    # The fused attention kernels have no second derivative.
    with sdpa_kernel(SDPBackend.MATH):
        states, gradients, last = _forward(loss, segment.start, prompts, step_size)
        final = states.pop()
        adjoint = {name: 2 * (final[name] - segment.target[name]) / length for name in final}
        by_prompts: list[Tensor] = []
        by_step_size = 0.0
        for step in reversed(range(len(prompts))):
            by_step_size -= sum(float((adjoint[name] * gradients[step][name]).sum()) for name in adjoint)
            if last is None:
                last = _Graph.of(loss, states[step], prompts[step], step)
            by_weights, by_prompt = last.differentiated(adjoint)
            last = None
            adjoint = {name: adjoint[name] - step_size * by_weights[name] for name in adjoint}
            by_prompts.append(-step_size * by_prompt)
    remaining = float(squared_distance(final, segment.target)) / length
    return MatchedSteps(remaining, tuple(reversed(by_prompts)), by_step_size, final)


@dataclass
class _Graph:
    """One step's gradient with the graph behind it."""

    weights: Weights
    prompts: Tensor
    gradient: Weights

    @classmethod
    def of(cls, loss: StudentLoss, weights: Weights, prompts: Tensor, step: int) -> _Graph:
        leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
        prompts = prompts.detach().requires_grad_()
        found = torch.autograd.grad(loss(leaves, prompts, step), list(leaves.values()), create_graph=True)
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
    loss: StudentLoss, start: Weights, prompts: Sequence[Tensor], step_size: float
) -> tuple[list[dict[str, Tensor]], list[Weights], _Graph | None]:
    """All N + 1 states, the N gradients, and the graph of the last of them."""
    states = [{name: value.detach() for name, value in start.items()}]
    gradients: list[Weights] = []
    graph: _Graph | None = None
    for step, prompt in enumerate(prompts):
        here = states[-1]
        if step == len(prompts) - 1:
            graph = _Graph.of(loss, here, prompt, step)
            gradient = {name: value.detach() for name, value in graph.gradient.items()}
        else:
            gradient = weight_gradient(loss, here, prompt, step)
        gradients.append(gradient)
        states.append({name: here[name] - step_size * gradient[name] for name in here})
    return states, gradients, graph


def weight_gradient(loss: StudentLoss, weights: Weights, prompts: Tensor, step: int) -> dict[str, Tensor]:
    """The gradient of one step's loss by the weights, without a graph."""
    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    found = torch.autograd.grad(loss(leaves, prompts.detach(), step), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


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
