"""Plain fine-tuning of adapters: what experts, the warm-up of a selection and instruction tuning have in common.

The order of the batches is a function of (seed, epoch), so a state is weights, moments and the step, and a training
that was killed and resumed ends in the same bytes as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from understudy.compute import copied_to
from understudy.methods.trajectory_matching.optimizers import STATES, OptimizerState
from understudy.methods.trajectory_matching.student import Rows, Student, generator_seed
from understudy.methods.trajectory_matching.unroll import Weights
from understudy.models.checkpoints import TrainingCheckpoint
from understudy.progress import UNKEPT, Course
from understudy.tensor_files import load_tensors, save_tensors

SECONDS_BETWEEN_CHECKPOINTS = 15.0


@dataclass(frozen=True)
class Schedule:
    """Sizes of a training; public.

    Attributes:
        epochs: passes over the rows.
        batch_size: rows of a step; the last one of an epoch may have fewer.
        learning_rate: of the optimizer.
        seed: of the order of the rows.
        optimizer: by which the weights move.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    seed: int
    optimizer: Literal["adam", "momentum"] = "adam"

    def steps_per_epoch(self, rows: int) -> int:
        """Steps of one pass."""
        return -(-rows // self.batch_size)

    def batch(self, step: int, rows: int) -> Tensor:
        """The rows of a step, int64."""
        epoch, place = divmod(step, self.steps_per_epoch(rows))
        generator = torch.Generator().manual_seed(generator_seed((self.seed << 20) + epoch))
        order = torch.randperm(rows, generator=generator)
        return order[place * self.batch_size : (place + 1) * self.batch_size]


class PacedCheckpoint:
    """A sink of states that writes one when `seconds` have passed since the last, and at every epoch's end.

    At the end of an epoch the weights are kept as a snapshot too, before the state that lies behind them, so that a
    resumed training finds every snapshot that it will not make again.
    """

    def __init__(
        self,
        folder: Path,
        *,
        per_epoch: int,
        seconds: float = SECONDS_BETWEEN_CHECKPOINTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep states and snapshots in `folder`; an epoch has `per_epoch` steps."""
        self._folder, self._per_epoch, self._seconds, self._clock = folder, per_epoch, seconds, clock
        self._states = TrainingCheckpoint(folder)
        self._last = clock()

    def load(self) -> tuple[int, dict[str, Tensor]] | None:
        """The newest (completed steps, state), or None."""
        return self._states.load()

    def due(self, step: int) -> bool:
        """Each step is offered to `save`, which goes by epochs and by the clock."""
        return step > 0

    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep the state after `step` steps, if it is time to."""
        epoch, within = divmod(step, self._per_epoch)
        if within == 0:
            weights = {name.removeprefix("weight/"): t for name, t in tensors.items() if name.startswith("weight/")}
            save_tensors(self._snapshot(epoch), weights)
        elif self._clock() - self._last < self._seconds:
            return
        self._states.save(step, tensors)
        self._last = self._clock()

    def snapshots(self, epochs: int) -> list[Weights]:
        """The weights after epochs 1, ..., `epochs`."""
        return [load_tensors(self._snapshot(epoch)) for epoch in range(1, epochs + 1)]

    def _snapshot(self, epoch: int) -> Path:
        return self._folder / f"snapshot-{epoch:05d}.safetensors"


def fine_tune(
    student: Student, rows: Rows, schedule: Schedule, *, prompts: Tensor | None = None, course: Course = UNKEPT
) -> OptimizerState:
    """Train the student's adapters from their start on all rows, each behind its pseudo tokens if it has any.

    Args:
        student: gives start and loss.
        rows: to train on.
        schedule: sizes.
        prompts: `(n, k, d)`, or None.
        course: keeps states, in a `PacedCheckpoint` snapshots too, and tells of steps.

    Returns:
        The last state; its step is the number of steps taken.
    """
    n, steps = len(rows), schedule.epochs * schedule.steps_per_epoch(len(rows))
    device = student.vocabulary.device
    found = course.resumed()
    kind = STATES[schedule.optimizer]
    state: OptimizerState = kind.at(student.start) if found is None else kind.of(*found, device)
    for step in range(state.step, steps):
        batch = schedule.batch(step, n)
        pseudo = None if prompts is None else prompts[copied_to(batch, prompts.device)]
        gradient = gradient_of(student, rows[batch], state.weights, pseudo)
        state = state.updated(gradient, learning_rate=schedule.learning_rate)
        course.stepped(state.step, steps, state.tensors)
    return state


def gradient_of(student: Student, rows: Rows, weights: Weights, prompts: Tensor | None = None) -> dict[str, Tensor]:
    """Gradient of the rows' mean loss by the adapters' weights."""
    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    with sdpa_kernel(SDPBackend.MATH):
        found = torch.autograd.grad(student.loss(leaves, rows, prompts), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))
