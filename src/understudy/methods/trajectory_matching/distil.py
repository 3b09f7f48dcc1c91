"""Learning pseudo tokens by trajectory matching (NACD, section 3.2 and Algorithm 1).

Each step draws an expert and a start epoch, lets the student take N steps of SGD on mini-batches of the chosen rows
behind their pseudo tokens, and moves the pseudo tokens and the step size down the gradient of

    |theta_{t+N} - theta*_{t+M}|^2 / |theta*_t - theta*_{t+M}|^2  +  beta * mean distance to the nearest token.

Deviations: the step size is learned as its logarithm, so that it stays positive. Pseudo tokens and step size are moved
by Adam; the paper names no optimizer. Adam's moments of a row's pseudo tokens change only in steps that used the row. A
step size that is a little too long throws the student far beyond the expert, and one such step would fill Adam's second
moments for a thousand others. Therefore a matching loss above 1 is descended as 1 + its logarithm, and the slope of the
step size is at most 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from understudy.compute import copied_to
from understudy.errors import RowError
from understudy.methods.trajectory_matching.config import DistilConfig, TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.experts import Trajectory, check_trajectories
from understudy.methods.trajectory_matching.student import BatchLoss, Rows, Student, generator_seed, moved
from understudy.methods.trajectory_matching.unroll import Segment, match_trajectory
from understudy.progress import UNKEPT, Course

_B1, _B2, _TINY = 0.9, 0.999, 1e-8
_ROWS_AT_A_TIME = 256  # pseudo tokens whose distances to the whole vocabulary are held at once
_STEEPEST = 1.0  # of the matching loss by the logarithm of the step size


@dataclass(frozen=True)
class Distilled:
    """What distillation gives.

    Attributes:
        prompts: `(rows, k, d)` float32 pseudo tokens.
        step_size: alpha.
        losses: `(steps,)` matching loss of every step.
        distances: `(steps,)` mean distance of the used pseudo tokens to their nearest token.
    """

    prompts: Tensor
    step_size: float
    losses: Tensor
    distances: Tensor


def distil(
    student: Student,
    rows: Rows,
    trajectories: Sequence[Trajectory],
    config: TrajectoryMatchingConfig,
    course: Course = UNKEPT,
) -> Distilled:
    """Learn the pseudo tokens of the chosen rows.

    Args:
        student: base model with adapters.
        rows: the chosen rows.
        trajectories: of the experts.
        config: sizes.
        course: keeps states and tells of steps; a resumed distillation ends in the same bytes.

    Raises:
        InputError: the trajectories do not fit the student or the settings.
        RowError: the loss is no number any more, or an expert did not move.
    """
    settings = config.distil
    check_trajectories({f"expert {n}": found for n, found in enumerate(trajectories)}, student.start, config)
    state = _State.begin(student.vocabulary, len(rows), settings)
    if (found := course.resumed()) is not None:
        state = _State.of(*found, student.vocabulary.device)
    for step in range(state.step, settings.steps):
        _advance(state, student, rows, trajectories, config)
        if not math.isfinite(state.losses[step]):
            # As private as the experts and the rows may be: that it was, and at which step.
            raise RowError(
                "distillation: expected a finite matching loss at every step, found another; lower distil.step_size or "
                "distil.step_size_learning_rate"
            )
        course.stepped(step + 1, settings.steps, state.tensors)
    return Distilled(state.prompts, float(state.log_step_size.exp()), state.losses, state.distances)


def mean_prompts(vocabulary: Tensor, rows: int, tokens: int) -> Tensor:
    """The mean embedding at every place, `(rows, tokens, d)` float32: where distillation begins."""
    return vocabulary.float().mean(0).expand(rows, tokens, -1).clone()


def nearest_tokens(prompts: Tensor, vocabulary: Tensor, *, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The token whose embedding is nearest to each pseudo token.

    Args:
        prompts: `(..., d)`.
        vocabulary: `(V, d)`.
        allowed: `(V,)` bool, or None for all.

    Returns:
        Token ids `(...)` int64 and Euclidean distances `(...)`, on the vocabulary's device.
    """
    table = vocabulary.float()
    flat = prompts.reshape(-1, prompts.shape[-1]).to(table)
    hidden = None if allowed is None else ~allowed.to(table.device)
    found = [_nearest(some, table, hidden) for some in torch.split(flat, _ROWS_AT_A_TIME)]
    least, tokens = (torch.cat(parts).view(prompts.shape[:-1]) for parts in zip(*found, strict=True))
    return tokens, least


def _nearest(rows: Tensor, table: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """Distance and number of the nearest row of a table that is not hidden, `(rows,)` each."""
    distances = torch.cdist(rows, table, compute_mode="donot_use_mm_for_euclid_dist")
    least, places = (distances if hidden is None else distances.masked_fill(hidden, math.inf)).min(1)
    return least, places


@dataclass
class _State:
    """Everything that a checkpoint of the distillation holds."""

    step: int
    prompts: Tensor
    log_step_size: Tensor
    mean: Tensor  # Adam's first moments of the pseudo tokens,
    square: Tensor  # the second ones,
    used: Tensor  # and how often each row was used, (rows,)
    size_moments: Tensor  # both moments of the logarithm of the step size, (2,)
    losses: Tensor
    distances: Tensor

    @classmethod
    def begin(cls, vocabulary: Tensor, rows: int, settings: DistilConfig) -> _State:
        prompts = mean_prompts(vocabulary, rows, settings.tokens)
        return cls(
            step=0,
            prompts=prompts,
            log_step_size=torch.tensor(math.log(settings.step_size), dtype=torch.float64, device="cpu"),
            mean=torch.zeros_like(prompts),
            square=torch.zeros_like(prompts),
            used=torch.zeros(rows, dtype=torch.int64, device="cpu"),
            size_moments=torch.zeros(2, dtype=torch.float64, device="cpu"),
            losses=torch.zeros(settings.steps, device="cpu"),
            distances=torch.zeros(settings.steps, device="cpu"),
        )

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if name != "step"}

    @classmethod
    def of(cls, step: int, tensors: Mapping[str, Tensor], device: torch.device) -> _State:
        on_device = ("prompts", "mean", "square")
        return cls(step, **{name: value.to(device) if name in on_device else value for name, value in tensors.items()})


@dataclass(frozen=True)
class _Draw:
    """What one step of distillation is about."""

    expert: int
    epoch: int
    batches: tuple[Tensor, ...]

    @classmethod
    def of(cls, step: int, rows: int, experts: int, config: TrajectoryMatchingConfig) -> _Draw:
        """A function of the public seed and the step; rows are used in turns, each turn in a new order."""
        settings = config.distil
        generator = torch.Generator().manual_seed(generator_seed((config.public_seed << 32) + step))
        expert, epoch = (int(torch.randint(most, (), generator=generator)) for most in (experts, settings.max_start))
        size = min(settings.batch_size, rows)
        needed = size * settings.inner_steps
        order = torch.cat([torch.randperm(rows, generator=generator) for _ in range(-(-needed // rows))])
        return cls(expert, epoch, tuple(order[:needed].view(settings.inner_steps, size)))


def _advance(
    state: _State, student: Student, rows: Rows, trajectories: Sequence[Trajectory], config: TrajectoryMatchingConfig
) -> None:
    """One step of distillation, in place."""
    settings, device = config.distil, student.vocabulary.device
    draw = _Draw.of(state.step, len(rows), len(trajectories), config)
    ends = (trajectories[draw.expert][epoch] for epoch in (draw.epoch, draw.epoch + settings.span))
    segment = Segment(*(moved(weights, device) for weights in ends))
    size = float(state.log_step_size.exp())
    places = [copied_to(batch, device) for batch in draw.batches]
    found = match_trajectory(
        BatchLoss(student, [rows[batch] for batch in draw.batches]),
        segment,
        [state.prompts[place] for place in places],
        step_size=size,
        rows_at_once=settings.rows_at_once,
    )
    slope, damped = torch.zeros_like(state.prompts), 1 / max(1.0, found.loss)
    for place, part in zip(places, found.by_prompts, strict=True):
        slope.index_add_(0, place, damped * part)
    used = torch.cat(draw.batches).bincount(minlength=len(rows)).nonzero()[:, 0].to(device)
    distance, pull = _regulariser(state.prompts[used], student.vocabulary)
    slope[used] += settings.beta * pull
    state.losses[state.step], state.distances[state.step] = found.loss, distance
    if settings.trainable == "tokens":
        _move_prompts(state, used, slope[used], settings.learning_rate)
    steepness = min(_STEEPEST, max(-_STEEPEST, damped * size * found.by_step_size))
    _move_step_size(state, steepness, settings.step_size_learning_rate)
    state.step += 1


def _regulariser(prompts: Tensor, vocabulary: Tensor) -> tuple[float, Tensor]:
    """Mean distance of pseudo tokens `(used, k, d)` to their nearest token (Equation 3), and its gradient."""
    tokens, distances = nearest_tokens(prompts, vocabulary)
    difference = prompts - vocabulary[tokens].to(prompts.dtype)
    return float(distances.mean()), difference / distances.clamp(min=_TINY)[..., None] / distances.numel()


def _move_prompts(state: _State, used: Tensor, slope: Tensor, learning_rate: float) -> None:
    """Adam on the rows that were used; each counts its own steps."""
    state.mean[used] = _B1 * state.mean[used] + (1 - _B1) * slope
    state.square[used] = _B2 * state.square[used] + (1 - _B2) * slope.square()
    state.used[used.cpu()] += 1
    count = state.used[used.cpu()].to(slope)[:, None, None]
    mean, square = state.mean[used] / (1 - _B1**count), state.square[used] / (1 - _B2**count)
    state.prompts[used] -= learning_rate * mean / (square.sqrt() + _TINY)


def _move_step_size(state: _State, slope: float, learning_rate: float) -> None:
    """Adam on the logarithm of the step size."""
    first, second = state.size_moments.tolist()
    first, second, count = _B1 * first + (1 - _B1) * slope, _B2 * second + (1 - _B2) * slope**2, state.step + 1
    state.size_moments = torch.tensor([first, second], dtype=torch.float64, device="cpu")
    state.log_step_size -= learning_rate * (first / (1 - _B1**count)) / (math.sqrt(second / (1 - _B2**count)) + _TINY)
