"""Claim: pseudo tokens before the instruction move the student's end more than before the row, and learning them pays.

One expert is trained with momentum on rows of ag_news as instructions; a few rows are chosen. Three parts:

- *Reach*: where six steps of SGD end with other pseudo tokens, with other rows, and with more rows. `loss` is the
  matching loss at the best of some step sizes; `moved` is the squared distance to the end with mean tokens at the same
  place and step size, in the unit of the matching loss. Pseudo tokens cannot take away more than what they can move.
- *Gradient*: its length by the pseudo tokens of a row, and what moving every row's tokens along it, by a length, gives.
- *Learning*: the distillation itself by conditions, which differ in settings of `distil`; every condition has the same
  draws. Given are the mean of each quarter of the steps, and what the last pseudo tokens leave of each start epoch at
  the best of the step sizes.

    python benchmarks/trajectory_matching_tokens.py --data DATA
    python benchmarks/trajectory_matching_tokens.py --data DATA --draws 0 --conditions frozen "tokens=10,beta=0"

Without draws the first two parts are left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measuring import write_result
from torch import Tensor
from trajectory_matching import Settings, pairs_of_news

from understudy.generation.instructions import PairEncoder
from understudy.methods.trajectory_matching.carriers import choose, encoded
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.distil import distil, mean_prompts
from understudy.methods.trajectory_matching.experts import Trajectory, expert_student, train_expert
from understudy.methods.trajectory_matching.student import BatchLoss, Rows, Student
from understudy.methods.trajectory_matching.unroll import (
    Segment,
    Weights,
    match_trajectory,
    squared_distance,
    weight_gradient,
)
from understudy.models.loading import load_model

STEP_SIZES = (0.07, 0.1, 0.14)
EPOCHS = (0, 1)
LENGTHS = (0.1, 1.0, 3.0)
CONDITIONS = (
    "frozen",
    "place=row",
    "place=instruction",
    "learning_rate=0.03",
    "learning_rate=0.1",
    "place=row,learning_rate=0.1",
)


@dataclass(frozen=True)
class Setting:
    """What every part reads."""

    student: Student
    whole: Rows
    chosen: Rows
    trajectory: Trajectory
    config: TrajectoryMatchingConfig

    def segment(self, epoch: int) -> Segment:
        """The part of the expert's trajectory that begins at an epoch."""
        return Segment(self.trajectory[epoch], self.trajectory[epoch + 1])


def build(options: argparse.Namespace) -> Setting:
    settings = Settings(options.data, Path(), rows=options.rows, length=options.length)
    config = settings.config(0, "random", step_size=options.step_size)
    config = config.model_copy(
        update={
            "selection": config.selection.model_copy(update={"rows": options.chosen}),
            "experts": config.experts.model_copy(update={"epochs": len(EPOCHS)}),
        }
    )
    base = load_model(settings.model)
    student = expert_student(base.model, config, 0)
    pairs = pairs_of_news(settings, "train", options.rows)
    rows = PairEncoder(base.tokenizer).encode(pairs, max_length=options.length)
    with TemporaryDirectory() as folder:
        trajectory = train_expert(student, rows, config, 0, folder=Path(folder))
    whole = encoded(pairs, base.tokenizer, config)
    return Setting(student, whole, whole[torch.tensor(choose(pairs, None, config))], trajectory, config)


def end_of(setting: Setting, epoch: int, batches: Sequence[Rows], prompts: Tensor | None, alpha: float) -> Weights:
    """Where the student's steps end, each on a batch behind the same pseudo tokens."""
    found = setting.trajectory[epoch]
    for rows in batches:
        here = torch.zeros(len(rows), 0, setting.student.vocabulary.shape[1]) if prompts is None else prompts
        gradient = weight_gradient(BatchLoss(setting.student, [rows]), found, here, 0)
        found = {name: found[name] - alpha * gradient[name] for name in found}
    return found


def reach(setting: Setting, epoch: int, draws: int) -> list[dict[str, Any]]:
    """Losses and ends of one start epoch, for other pseudo tokens and other rows."""
    steps, size = setting.config.distil.inner_steps, len(setting.chosen)
    generator = torch.Generator().manual_seed(epoch)
    same, before = [setting.chosen] * steps, [replace(setting.chosen, place=0)] * steps
    places = (0, setting.chosen.place)

    def rows_of(count: int) -> list[Rows]:
        order = torch.randperm(len(setting.whole), generator=generator)
        return [setting.whole[order[:count].view(-1, size)[step % (count // size)]] for step in range(steps)]

    def tokens(k: int) -> Tensor:
        vocabulary = setting.student.vocabulary
        return vocabulary[torch.randint(len(vocabulary), (size, k), generator=generator)].float()

    mean = mean_prompts(setting.student.vocabulary, size, 2)
    cases: dict[str, list[tuple[list[Rows], Tensor | None]]] = {
        "2 mean tokens": [(same, mean)],
        "no tokens": [(same, None)],
        "2 random tokens before the row": [(before, tokens(2)) for _ in range(draws)],
        "2 random tokens": [(same, tokens(2)) for _ in range(draws)],
        "10 random tokens": [(same, tokens(10)) for _ in range(draws)],
        "as many other rows": [(rows_of(size), mean) for _ in range(draws)],
        "new rows in every step": [(rows_of(size * steps), mean) for _ in range(draws)],
    }
    plain = {place: ends_of(setting, epoch, [replace(one, place=place) for one in same], mean) for place in places}
    return [
        {
            "case": name,
            **figures(
                setting.segment(epoch),
                plain[ones[0][0][0].place],
                [ends_of(setting, epoch, *one) for one in ones],
            ),
        }
        for name, ones in cases.items()
    ]


def ends_of(setting: Setting, epoch: int, batches: Sequence[Rows], prompts: Tensor | None) -> dict[float, Weights]:
    return {alpha: end_of(setting, epoch, batches, prompts, alpha) for alpha in STEP_SIZES}


def figures(segment: Segment, plain: dict[float, Weights], ends: Sequence[dict[float, Weights]]) -> dict[str, Any]:
    """Of each draw the best step size: its loss, and how far the end lies from that with mean tokens."""
    found = []
    for by_size in ends:
        losses = {alpha: float(squared_distance(at, segment.target)) / segment.length for alpha, at in by_size.items()}
        alpha = min(losses, key=lambda size: losses[size])
        moved = float(squared_distance(by_size[alpha], plain[alpha])) / segment.length
        found.append((losses[alpha], alpha, moved))
    losses, sizes, moves = (list(part) for part in zip(*found, strict=True))
    return {"loss": losses, "step_size": sizes, "moved": moves}


def slope(setting: Setting, epoch: int, alpha: float) -> dict[str, Any]:
    """The matching loss along its gradient by the pseudo tokens, from the mean tokens on."""
    steps, size = setting.config.distil.inner_steps, len(setting.chosen)
    prompts = mean_prompts(setting.student.vocabulary, size, setting.config.distil.tokens)
    loss, segment = BatchLoss(setting.student, [setting.chosen] * steps), setting.segment(epoch)
    found = match_trajectory(loss, segment, [prompts] * steps, step_size=alpha)
    gradient = torch.stack(found.by_prompts).sum(0)
    of_row = float(gradient.flatten(1).norm(dim=1).mean())
    at = {"0": found.loss}
    for length in LENGTHS:
        end = end_of(setting, epoch, loss.batches, prompts - gradient * (length / of_row), alpha)
        at[str(length)] = float(squared_distance(end, segment.target)) / segment.length
    return {"step_size": alpha, "gradient_of_a_row": of_row, "loss_after": at}


def learning(setting: Setting, condition: str, steps: int) -> dict[str, Any]:
    """One distillation, and what its pseudo tokens leave of each start epoch."""
    wanted = (
        {"trainable": "step_size"} if condition == "frozen" else dict(one.split("=") for one in condition.split(","))
    )
    changed = {"distil": {**setting.config.distil.model_dump(), "steps": steps, **wanted}}
    config = TrajectoryMatchingConfig.model_validate(setting.config.model_dump() | changed)
    rows = replace(setting.chosen, place=0) if config.distil.place == "row" else setting.chosen
    result = distil(setting.student, rows, [setting.trajectory], config)
    same = [rows] * config.distil.inner_steps
    left = [
        min(
            float(squared_distance(end, setting.segment(epoch).target)) / setting.segment(epoch).length
            for end in ends_of(setting, epoch, same, result.prompts).values()
        )
        for epoch in EPOCHS
    ]
    quarters = [float(part.mean()) for part in result.losses.tensor_split(4)]
    distance = float(result.distances[-1])
    return {"quarters": quarters, "left": left, "step_size": result.step_size, "distance": distance}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per data set")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--conditions", nargs="*", default=list(CONDITIONS))
    parser.add_argument("--step-size", type=float, default=0.1, help="first one of the student, and of the gradient")
    for name, default in {"rows": 256, "chosen": 6, "length": 60, "draws": 2, "steps": 20, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    setting = build(options)
    if options.chosen > setting.config.distil.batch_size:
        parser.error(f"--chosen {options.chosen}: expected at most the {setting.config.distil.batch_size} of a batch")
    result: dict[str, Any] = {"reach": {}, "gradient": {}, "learning": {}}
    for epoch in EPOCHS if options.draws else ():
        result["gradient"][epoch] = slope(setting, epoch, options.step_size)
        print(f"epoch {epoch}", json.dumps(result["gradient"][epoch]), flush=True)
        result["reach"][epoch] = reach(setting, epoch, options.draws)
        for one in result["reach"][epoch]:
            print(f"epoch {epoch}", json.dumps(one), flush=True)
    for condition in options.conditions:
        result["learning"][condition] = learning(setting, condition, options.steps)
        print(condition, json.dumps(result["learning"][condition]), flush=True)
    settings = {name: value for name, value in vars(options).items() if name not in ("data", "out")}
    write_result(options.out, {"settings": settings, "results": result})


if __name__ == "__main__":
    main()
