"""Expert trajectories (NACD, section 3.1): fine-tunings on the whole set, their adapters kept after every epoch.

An expert's public seed decides its first adapters and, without a charge, the order of its rows. Under a charge the
training is DP-SGD on the adapters, whose rows the mechanisms sample, so every snapshot is a function of noised
gradients alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from understudy.errors import ArtifactDamaged, InputError
from understudy.generation.instructions import EncodedPairs
from understudy.generation.step import head, last_states
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.student import Rows, Student
from understudy.methods.trajectory_matching.training import PacedCheckpoint, Schedule, fine_tune
from understudy.methods.trajectory_matching.unroll import Weights, check_same_shapes
from understudy.privacy.dpsgd.per_example import Batch
from understudy.privacy.dpsgd.plan import DpSgdPlan
from understudy.privacy.dpsgd.token_losses import token_losses
from understudy.privacy.dpsgd.training import Objective, train
from understudy.privacy.mechanisms import Mechanisms
from understudy.progress import Course, Progress
from understudy.tensor_files import load_tensors, save_tensors

# A list of weights: at the start, and after every epoch.
Trajectory = Sequence[Weights]

# Adapters of different experts start differently; a student that starts at theta*_t has them all.
_SEEDS = 1000


def expert_student(base: Any, config: TrajectoryMatchingConfig, number: int) -> Student:
    """The student that expert `number` begins as; `base` is changed."""
    experts, seed = config.experts, config.public_seed * _SEEDS + number
    return Student(base, rank=experts.lora_rank, alpha=experts.lora_alpha, seed=seed)


def train_expert(
    student: Student,
    rows: EncodedPairs,
    config: TrajectoryMatchingConfig,
    number: int,
    *,
    folder: Path,
    progress: Progress | None = None,
) -> Trajectory:
    """One expert without a promise: the trajectory is as private as the rows.

    Args:
        student: as the expert begins.
        rows: of the whole set; null rows are left out.
        config: sizes.
        number: of the expert.
        folder: of its checkpoints.
        progress: called with (epochs done, epochs), at the end of each.
    """
    kept = Rows(rows.input_ids[rows.valid], rows.attention_mask[rows.valid], rows.loss_mask[rows.valid])
    experts = config.experts
    seed = config.public_seed * _SEEDS + number
    optimizer, learning_rate = experts.plain
    schedule = Schedule(experts.epochs, experts.batch_size, learning_rate, seed, optimizer)
    per_epoch = schedule.steps_per_epoch(len(kept))
    sink = PacedCheckpoint(folder, per_epoch=per_epoch)

    def told(step: int, _: int) -> None:
        # How many rows are there is not public, and so is how many steps an epoch has: even a part of the whole tells.
        if progress is not None and step % per_epoch == 0:
            progress(step // per_epoch, experts.epochs)

    fine_tune(student, kept, schedule, course=Course(sink, told))
    return [student.start, *sink.snapshots(experts.epochs)]


def train_private_expert(
    student: Student,
    rows: EncodedPairs,
    config: TrajectoryMatchingConfig,
    *,
    plan: DpSgdPlan,
    mechanisms: Mechanisms,
    folder: Path,
    progress: Progress | None = None,
) -> Trajectory:
    """One expert by DP-SGD on its adapters.

    *Guarantee*: the trajectory is a function of the mechanisms' outputs alone, whose queries are `plan.queries` (unit
    example, relation replace_special). The rows have one public width, and a null row adds nothing.

    Args:
        student: as the expert begins; its adapters are trained in place.
        rows: of the whole set, private.
        config: sizes.
        plan: of this expert, as charged.
        mechanisms: of the charge.
        folder: of its checkpoints.
        progress: called with (steps done, steps in all).
    """
    start = {name: value.clone() for name, value in student.start.items()}
    parameters = adapters_of(student)
    for parameter in parameters.values():
        parameter.requires_grad_()
    sink = PacedCheckpoint(folder, per_epoch=plan.steps // config.experts.epochs)
    train(
        student,
        plan=plan,
        objectives={
            stream.name: Objective(response_losses, parameters, config.experts.learning_rate) for stream in plan.streams
        },
        data={name: getattr(rows, name) for name in ("input_ids", "attention_mask", "loss_mask", "valid")},
        mechanisms=mechanisms,
        micro_batch=config.experts.micro_batch,
        course=Course(sink, progress),
    )
    student.requires_grad_(False)
    return [start, *sink.snapshots(config.experts.epochs)]


def adapters_of(student: Student) -> dict[str, nn.Parameter]:
    """The adapters' parameters, named as in the student's weights."""
    named = dict(student.adapted.named_parameters())
    return {name: named[name] for name in student.start}


def response_losses(model: nn.Module, batch: Batch) -> Tensor:
    """Mean loss of each row's response, `(batch,)`, at every column of the public width; 0 for a null row."""
    assert isinstance(model, Student)
    positions = torch.arange(batch["input_ids"].shape[1], device=batch["input_ids"].device)
    states = last_states(
        model.lm,
        batch["input_ids"],
        batch["attention_mask"],
        positions=positions[None].repeat(len(batch["input_ids"]), 1),
    )
    layer = head(model.lm)
    losses = token_losses(layer, states[:, :-1].to(next(layer.parameters()).dtype), batch["input_ids"][:, 1:])
    present = batch["loss_mask"][:, 1:].to(losses.dtype)
    return (losses * present).sum(1) / present.sum(1).clamp(min=1)


def save_trajectory(path: Path, trajectory: Trajectory) -> None:
    """Write a trajectory as one safetensors file, `00000/NAME` and so on."""
    save_tensors(
        path, {f"{t:05d}/{name}": value for t, weights in enumerate(trajectory) for name, value in weights.items()}
    )


def load_trajectory(path: Path) -> Trajectory:
    """Read what `save_trajectory` wrote."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in load_tensors(path).items():
        moment, _, name = key.partition("/")
        found.setdefault(moment, {})[name] = value
    return [found[moment] for moment in sorted(found)]


def gathered(folder: Path) -> list[Trajectory]:
    """The trajectories of all experts, in their order, as they lie in the folder that was released.

    Raises:
        ArtifactDamaged: there is none.
    """
    found = [load_trajectory(path) for path in sorted(folder.glob("expert-*.safetensors"), key=_number)]
    if not found:
        raise ArtifactDamaged(f"{folder}: expected the trajectories of experts, found none; run again")
    return found


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def check_trajectories(
    trajectories: Mapping[str, Trajectory], start: Weights, config: TrajectoryMatchingConfig
) -> None:
    """Refuse trajectories that the distillation cannot use.

    Args:
        trajectories: by name.
        start: the student's adapters.
        config: how many snapshots are needed.

    Raises:
        InputError: there is none, a snapshot is missing, or they are of another base model or adapter.
    """
    needed = config.distil.max_start - 1 + config.distil.span
    if not trajectories:
        raise InputError("expected at least one expert's trajectory, found none; train an expert first")
    for name, trajectory in trajectories.items():
        if len(trajectory) <= needed:
            raise InputError(
                f"{name}: expected snapshots up to epoch {needed} for distil.max_start={config.distil.max_start} and "
                f"distil.span={config.distil.span}, found {len(trajectory) - 1}; lower them, or raise experts.epochs"
            )
        for weights in trajectory:
            check_same_shapes(start, weights)
