"""Fine-tuning, its checkpoints, and experts."""

from dataclasses import replace

import pytest
import torch
from random_models import random_model
from random_students import random_rows, random_student

from understudy.errors import InputError
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.experts import (
    check_trajectories,
    expert_student,
    load_trajectory,
    save_trajectory,
)
from understudy.methods.trajectory_matching.optimizers import LONGEST_GRADIENT, MOMENTUM, AdamState, MomentumState
from understudy.methods.trajectory_matching.training import PacedCheckpoint, Schedule, fine_tune
from understudy.progress import Course

SCHEDULE = Schedule(epochs=3, batch_size=4, learning_rate=1e-2, seed=5)
PER_EPOCH = 3  # ten rows in batches of four


class Killed(Exception):
    """Stands for a kill -9 between two steps."""


def killed_after(steps):
    def progress(step, _total):
        if step == steps:
            raise Killed

    return progress


def test_every_epoch_reads_every_row_once_in_another_order():
    epochs = [torch.cat([SCHEDULE.batch(3 * epoch + step, 10) for step in range(3)]) for epoch in range(2)]
    assert all(sorted(epoch.tolist()) == list(range(10)) for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist()


def test_public_seeds_beyond_what_torch_takes_give_orders_and_adapters_of_their_own():
    """Small ones keep their streams; torch reads 32 bits, so larger ones may not be told apart by higher bits alone."""
    order = Schedule(1, 100, 1e-2, 5).batch(0, 100)
    assert torch.equal(order, torch.randperm(100, generator=torch.Generator().manual_seed(5 << 20)))
    seeds = (0, 2**20, 2**53, 2**63 - 1)
    orders = [Schedule(1, 100, 1e-2, number).batch(0, 100).tolist() for seed in seeds for number in (seed, seed + 1)]
    model = {"vocabulary": 8, "width": 4, "positions": 8}
    starts = [
        expert_student(random_model("llama", **model), TrajectoryMatchingConfig(public_seed=seed), number).start
        for seed, number in ((0, 0), (2**63 - 1, 0), (2**63 - 1, 1))
    ]
    adapters = [torch.cat([start[name].flatten() for name in sorted(start)]).tolist() for start in starts]
    for drawn in (orders, adapters):
        assert all(one != other for i, one in enumerate(drawn) for other in drawn[:i])


def test_adam_is_that_of_torch():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(5, generator=generator)
    theirs = start.clone().requires_grad_()
    optimizer, ours = torch.optim.Adam([theirs], lr=0.1), AdamState.at({"w": start})
    for _ in range(4):
        gradient = torch.randn(5, generator=generator)
        theirs.grad = gradient.clone()
        optimizer.step()
        ours = ours.updated({"w": gradient}, learning_rate=0.1)
    torch.testing.assert_close(ours.weights["w"], theirs.detach())


def test_momentum_is_that_of_torch_with_long_gradients_shortened():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(5, generator=generator)
    theirs = start.clone().requires_grad_()
    optimizer, ours = torch.optim.SGD([theirs], lr=0.1, momentum=MOMENTUM), MomentumState.at({"w": start})
    for length in (0.5, 3.0, 0.7, 20.0):
        gradient = torch.randn(5, generator=generator)
        gradient *= length / gradient.norm()
        theirs.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_([theirs], LONGEST_GRADIENT)
        optimizer.step()
        ours = ours.updated({"w": gradient}, learning_rate=0.1)
    torch.testing.assert_close(ours.weights["w"], theirs.detach())


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
@pytest.mark.parametrize("steps", [1, PER_EPOCH, 7])
def test_a_killed_training_ends_in_the_same_bytes(tmp_path, steps, optimizer):
    student, rows = random_student(), random_rows(10)
    schedule = replace(SCHEDULE, optimizer=optimizer)
    whole = PacedCheckpoint(tmp_path / "whole", per_epoch=PER_EPOCH)
    expected = fine_tune(student, rows, schedule, course=Course(whole)).weights
    again = PacedCheckpoint(tmp_path / "again", per_epoch=PER_EPOCH, seconds=0.0)
    with pytest.raises(Killed):
        fine_tune(student, rows, schedule, course=Course(again, killed_after(steps)))
    taken = []
    resumed = PacedCheckpoint(tmp_path / "again", per_epoch=PER_EPOCH, seconds=0.0)
    found = fine_tune(student, rows, schedule, course=Course(resumed, lambda step, _: taken.append(step))).weights
    assert taken[0] == steps + 1
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    for one, other in zip(resumed.snapshots(3), whole.snapshots(3), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_state_is_kept_when_enough_time_has_passed(tmp_path):
    now = [0.0]
    sink = PacedCheckpoint(tmp_path, per_epoch=100, seconds=15.0, clock=lambda: now[0])
    for step in range(1, 6):
        now[0] += 10.0
        sink.save(step, {"weight/w": torch.zeros(1)})
    assert sink.load()[0] == 4  # every second of the steps that take ten seconds


def test_a_trajectory_reads_back_and_must_fit_the_student(tmp_path):
    student = random_student()
    config = TrajectoryMatchingConfig(experts={"epochs": 2}, distil={"max_start": 2, "span": 1})
    trajectory = [student.start, student.start, student.start]
    save_trajectory(tmp_path / "trajectory.safetensors", trajectory)
    read = load_trajectory(tmp_path / "trajectory.safetensors")
    check_trajectories({"expert 0": read}, student.start, config)
    with pytest.raises(InputError, match=r"distil\.max_start"):
        check_trajectories({"expert 0": read[:2]}, student.start, config)
    wider = {name: torch.cat([value, value]) for name, value in student.start.items()}
    with pytest.raises(InputError, match=r"experts\.lora_rank"):
        check_trajectories({"expert 0": read}, wider, config)
    with pytest.raises(InputError, match="found none"):
        check_trajectories({}, student.start, config)
