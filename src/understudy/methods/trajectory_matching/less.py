"""LESS (Xia et al. 2024, arXiv 2402.04333): rows whose gradients point as those of a target set do.

1. Warm-up: adapters are trained by Adam on a random part of the rows; the state after each epoch is used.
2. Features: of a row, the direction in which Adam would move at that state for this row alone; of a target row, the
   plain gradient. Both are projected to a few hundred numbers and normalised.
3. Score: the cosine, summed over the states (their learning rates are equal); of all target rows the best counts.

Deviation: the projection is a sparse one, every coordinate added to one place with a random sign (Weinberger et al.
2009), which keeps inner products in the mean as the paper's dense one does, and needs no matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.optimizers import AdamState
from understudy.methods.trajectory_matching.student import Rows, Student, generator_seed
from understudy.methods.trajectory_matching.training import Schedule, gradient_of
from understudy.methods.trajectory_matching.unroll import Weights
from understudy.progress import CheckpointSink, Course, Progress
from understudy.quantities import rounded_up


def less_scores(
    student: Student,
    rows: Rows,
    target: Rows,
    config: TrajectoryMatchingConfig,
    *,
    checkpoint: CheckpointSink | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """The best cosine of each row with any target row, summed over the warm-up's states.

    Args:
        student: gives gradients of adapters.
        rows: to choose from.
        target: that they should resemble.
        config: sizes; the warm-up is an instruction tuning, in an expert's batches.
        checkpoint: keeps what was computed; None keeps nothing. What is resumed ends in the same bytes.
        progress: called with (hundredths done, 100).

    Returns:
        `(n,)` float32.
    """
    settings = config.selection
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(generator_seed(config.public_seed)))
    part = rows[chosen[: max(1, rounded_up(settings.warmup * len(rows)))]]
    batch_size, learning_rate = config.experts.batch_size, config.tuning.learning_rate
    schedule = Schedule(settings.warmup_epochs, batch_size, learning_rate, config.public_seed)
    projection = _Projection(sum(value.numel() for value in student.start.values()), settings.projection)
    warm, like = schedule.steps_per_epoch(len(part)), len(target)
    each = warm + like + len(rows)  # at each state: steps to it, and a gradient of every target row and every row
    course = Course(checkpoint, None if progress is None else lambda done, parts: progress(100 * done // parts, 100))
    begun, found = 0, _Found.begin(student.start, rows, target, settings.projection)
    if (kept := course.resumed()) is not None:
        begun, (epoch, within) = kept[0], divmod(kept[0], each)
        found = _Found.of(epoch * warm + min(within, warm), kept[1], student.vocabulary.device)
    for done in range(begun, settings.warmup_epochs * each):
        place = done % each
        if place < warm:
            batch = part[schedule.batch(found.state.step, len(part))]
            gradient = gradient_of(student, batch, found.state.weights)
            found.state = found.state.updated(gradient, learning_rate=schedule.learning_rate)
        elif place < warm + like:
            found.directions[place - warm] = projection(_of_row(student, target, place - warm, found.state))
        else:
            row = place - warm - like
            direction = projection(found.state.direction_after(_of_row(student, rows, row, found.state)))
            found.cosines[row] += found.directions @ direction
        course.stepped(done + 1, settings.warmup_epochs * each, found.tensors)
    return found.cosines.max(1).values


def _of_row(student: Student, rows: Rows, row: int, state: AdamState) -> Weights:
    return gradient_of(student, rows[torch.tensor([row], device="cpu")], state.weights)


@dataclass
class _Found:
    """Everything that a checkpoint of the selection holds.

    Attributes:
        state: of the warm-up.
        directions: of the target rows at this state, normalised, `(m, projection)`.
        cosines: of rows and target rows, summed over the states so far, `(n, m)`.
    """

    state: AdamState
    directions: Tensor
    cosines: Tensor

    @classmethod
    def begin(cls, start: Weights, rows: Rows, target: Rows, dimension: int) -> _Found:
        sizes = (len(target), dimension), (len(rows), len(target))
        return cls(AdamState.at(start), *(torch.zeros(size, device="cpu") for size in sizes))

    def tensors(self) -> dict[str, Tensor]:
        return {**self.state.tensors(), "directions": self.directions, "cosines": self.cosines}

    @classmethod
    def of(cls, step: int, tensors: Mapping[str, Tensor], device: torch.device) -> _Found:
        of_state = {name: value for name, value in tensors.items() if "/" in name}
        return cls(AdamState.of(step, of_state, device), tensors["directions"], tensors["cosines"])


class _Projection:
    """Adds every coordinate, with a random sign, to one of a few places; the sum has length 1, or 0."""

    def __init__(self, size: int, dimension: int) -> None:
        generator = torch.Generator().manual_seed(size)
        self._dimension = dimension
        self._place = torch.randint(dimension, (size,), generator=generator)
        self._sign = torch.randint(2, (size,), generator=generator).float() * 2 - 1

    def __call__(self, gradient: Weights) -> Tensor:
        flat = torch.cat([gradient[name].flatten() for name in sorted(gradient)]).cpu()
        return functional.normalize(
            torch.zeros(self._dimension, device="cpu").index_add_(0, self._place, flat * self._sign), dim=0
        )
