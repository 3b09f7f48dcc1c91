"""The two optimizers of plain fine-tuning, as states that a checkpoint holds.

Instruction tuning and the warm-up of LESS use Adam. Experts use descent with momentum: a student that takes steps of
plain SGD can follow it. It can hardly follow Adam, which moves every weight by about the same amount, whatever its
gradient (docs/results/trajectory-matching.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from understudy.methods.trajectory_matching.unroll import Weights

MOMENTUM, LONGEST_GRADIENT = 0.9, 1.0
_BETAS, _EPSILON = (0.9, 0.999), 1e-8


class OptimizerState(Protocol):
    """Weights on their way, with what their optimizer remembers."""

    weights: dict[str, Tensor]
    step: int

    def updated(self, gradient: Weights, *, learning_rate: float) -> OptimizerState:
        """After one more step."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it."""
        ...


@dataclass
class AdamState:
    """Weights with Adam's two moments (Kingma & Ba 2015, Algorithm 1)."""

    weights: dict[str, Tensor]
    first: dict[str, Tensor]
    second: dict[str, Tensor]
    step: int = 0

    @classmethod
    def at(cls, weights: Weights) -> AdamState:
        """Before the first step."""
        zeros = {name: torch.zeros_like(value) for name, value in weights.items()}
        return cls(dict(weights), dict(zeros), dict(zeros))

    def updated(self, gradient: Weights, *, learning_rate: float) -> AdamState:
        """After one more step."""
        step, (b1, b2) = self.step + 1, _BETAS
        first = {name: b1 * m + (1 - b1) * gradient[name] for name, m in self.first.items()}
        second = {name: b2 * v + (1 - b2) * gradient[name].square() for name, v in self.second.items()}
        moves = AdamState(self.weights, first, second, step).direction()
        weights = {name: value - learning_rate * moves[name] for name, value in self.weights.items()}
        return AdamState(weights, first, second, step)

    def direction(self) -> dict[str, Tensor]:
        """First moments over the root of the second ones, bias corrected."""
        b1, b2 = _BETAS
        return {
            name: (m / (1 - b1**self.step)) / ((self.second[name] / (1 - b2**self.step)).sqrt() + _EPSILON)
            for name, m in self.first.items()
        }

    def direction_after(self, gradient: Weights) -> dict[str, Tensor]:
        """`direction` if this gradient came next."""
        return self.updated(gradient, learning_rate=0.0).direction()

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it."""
        return _flat({"weight": self.weights, "first": self.first, "second": self.second})

    @classmethod
    def of(cls, step: int, tensors: Mapping[str, Tensor], device: torch.device) -> AdamState:
        """What `tensors` was taken of."""
        parts = _parts(tensors, device)
        return cls(parts["weight"], parts["first"], parts["second"], step)


@dataclass
class MomentumState:
    """Weights with their velocity (Polyak 1964); a gradient longer than `LONGEST_GRADIENT` is shortened to it."""

    weights: dict[str, Tensor]
    velocity: dict[str, Tensor]
    step: int = 0

    @classmethod
    def at(cls, weights: Weights) -> MomentumState:
        """Before the first step."""
        return cls(dict(weights), {name: torch.zeros_like(value) for name, value in weights.items()})

    def updated(self, gradient: Weights, *, learning_rate: float) -> MomentumState:
        """After one more step."""
        length = math.sqrt(sum(float(value.double().square().sum()) for value in gradient.values()))
        part = LONGEST_GRADIENT / max(length, LONGEST_GRADIENT)
        velocity = {name: MOMENTUM * v + part * gradient[name] for name, v in self.velocity.items()}
        weights = {name: value - learning_rate * velocity[name] for name, value in self.weights.items()}
        return MomentumState(weights, velocity, self.step + 1)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it."""
        return _flat({"weight": self.weights, "velocity": self.velocity})

    @classmethod
    def of(cls, step: int, tensors: Mapping[str, Tensor], device: torch.device) -> MomentumState:
        """What `tensors` was taken of."""
        parts = _parts(tensors, device)
        return cls(parts["weight"], parts["velocity"], step)


STATES: dict[str, type[AdamState] | type[MomentumState]] = {"adam": AdamState, "momentum": MomentumState}


def _flat(parts: Mapping[str, Weights]) -> dict[str, Tensor]:
    return {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}


def _parts(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, dict[str, Tensor]]:
    parts: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        part, _, name = key.partition("/")
        parts.setdefault(part, {})[name] = value.to(device)
    return parts
