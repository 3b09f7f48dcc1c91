"""LESS (Xia et al. 2024, arXiv 2402.04333): rows whose gradients point as those of a target set do.

1. Warm-up: adapters are trained by Adam on a random part of the rows; the state after each epoch is used.
2. Features: of a row, the direction in which Adam would move at that state for this row alone; of a target row, the
   plain gradient. Both are projected to a few hundred numbers and normalised.
3. Score: the cosine, summed over the states (their learning rates are equal); of all target rows the best counts.

Deviation: the projection is a sparse one, every coordinate added to one place with a random sign (Weinberger et al.
2009), which keeps inner products in the mean as the paper's dense one does, and needs no matrix.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.optimizers import AdamState
from understudy.methods.trajectory_matching.student import Rows, Student
from understudy.methods.trajectory_matching.training import Schedule, gradient_of
from understudy.methods.trajectory_matching.unroll import Weights
from understudy.progress import Progress


def less_scores(
    student: Student, rows: Rows, target: Rows, config: TrajectoryMatchingConfig, *, progress: Progress | None = None
) -> Tensor:
    """The best cosine of each row with any target row, summed over the warm-up's states.

    Args:
        student: gives gradients of adapters.
        rows: to choose from.
        target: that they should resemble.
        config: sizes; the warm-up is an instruction tuning, in an expert's batches.
        progress: called with (hundredths done, 100).

    Returns:
        `(n,)` float32.
    """
    settings = config.selection
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(config.public_seed))
    part = rows[chosen[: max(1, math.ceil(settings.warmup * len(rows)))]]
    batch_size, learning_rate = config.experts.batch_size, config.tuning.learning_rate
    schedule = Schedule(settings.warmup_epochs, batch_size, learning_rate, config.public_seed)
    state = AdamState.at(student.start)
    projection = _Projection(sum(value.numel() for value in student.start.values()), settings.projection)
    total, done = settings.warmup_epochs * (len(rows) + len(target)), 0
    cosines = torch.zeros(len(rows), len(target), device="cpu")
    for _ in range(settings.warmup_epochs):
        for _ in range(schedule.steps_per_epoch(len(part))):
            gradient = gradient_of(student, part[schedule.batch(state.step, len(part))], state.weights)
            state = state.updated(gradient, learning_rate=schedule.learning_rate)
        features = [torch.zeros(len(some), settings.projection, device="cpu") for some in (rows, target)]
        for some, kept in zip((rows, target), features, strict=True):
            for row in range(len(some)):
                gradient = gradient_of(student, some[torch.tensor([row], device="cpu")], state.weights)
                kept[row] = projection(state.direction_after(gradient) if some is rows else gradient)
                done += 1
                if progress is not None:
                    progress(100 * done // total, 100)
        of_rows, of_target = (functional.normalize(kept, dim=1) for kept in features)
        cosines += of_rows @ of_target.T
    return cosines.max(1).values


class _Projection:
    """Adds every coordinate, with a random sign, to one of a few places."""

    def __init__(self, size: int, dimension: int) -> None:
        generator = torch.Generator().manual_seed(size)
        self._dimension = dimension
        self._place = torch.randint(dimension, (size,), generator=generator)
        self._sign = torch.randint(2, (size,), generator=generator).float() * 2 - 1

    def __call__(self, gradient: Weights) -> Tensor:
        flat = torch.cat([gradient[name].flatten() for name in sorted(gradient)]).cpu()
        return torch.zeros(self._dimension, device="cpu").index_add_(0, self._place, flat * self._sign)
