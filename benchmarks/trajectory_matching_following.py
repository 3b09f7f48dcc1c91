"""Claim: a student that takes steps of SGD follows an expert trained with momentum, and hardly one trained by Adam.

For each optimizer one expert is trained on rows of ag_news as instructions. Then, for each start epoch: how far the
expert goes in that epoch, how well the gradient at its start points there (cosine), and what six steps of SGD on chosen
rows behind mean tokens leave of the way, the matching loss, for some step sizes. Also how long the gradient of the
matching loss is by the pseudo tokens of a row, and that of the pull to the nearest token at beta = 1. Nothing is learnt
here.

    python benchmarks/trajectory_matching_following.py --data DATA --rows 256
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
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
from understudy.methods.trajectory_matching.distil import mean_prompts, nearest_tokens
from understudy.methods.trajectory_matching.experts import Trajectory, expert_student, train_expert
from understudy.methods.trajectory_matching.student import BatchLoss, Rows, Student
from understudy.methods.trajectory_matching.training import gradient_of
from understudy.methods.trajectory_matching.unroll import Segment, match_trajectory
from understudy.models.loading import load_model

STEP_SIZES = (0.03, 0.1, 0.2)
PROBED = 32


def length(weights: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(value.double().square().sum()) for value in weights.values()))


def cosine(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    product = sum(float((one[name].double() * other[name].double()).sum()) for name in one)
    return product / length(one) / length(other)


def epoch_facts(
    student: Student, whole: Rows, chosen: Rows, segment: Segment, config: TrajectoryMatchingConfig
) -> dict[str, Any]:
    """How a student of mean tokens does over one epoch of an expert."""
    way = {name: segment.target[name] - segment.start[name] for name in segment.start}
    some = whole[torch.linspace(0, len(whole) - 1, min(PROBED, len(whole))).long()]
    gradient = gradient_of(student, some, segment.start)
    size, steps = min(config.distil.batch_size, len(chosen)), config.distil.inner_steps
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randperm(len(chosen), generator=generator)[:size] for _ in range(steps)]
    prompts = [mean_prompts(student.vocabulary, size, config.distil.tokens)] * steps
    loss = BatchLoss(student, [chosen[batch] for batch in batches])
    found = {alpha: match_trajectory(loss, segment, prompts, step_size=alpha) for alpha in STEP_SIZES}
    by_row = torch.cat(found[0.1].by_prompts).flatten(1).norm(dim=1)
    tokens, distances = nearest_tokens(prompts[0], student.vocabulary)
    pull = (prompts[0] - student.vocabulary[tokens]) / distances[..., None] / (len(chosen) * config.distil.tokens)
    return {
        "way": length(way),
        "gradient": length(gradient),
        "cosine": -cosine(gradient, way),
        "matching_loss": {alpha: each.loss for alpha, each in found.items()},
        "gradient_by_prompts_of_a_row": float(by_row.mean()),
        "pull_of_a_row_at_beta_1": float(pull.flatten(1).norm(dim=1).mean()),
    }


def measure(options: argparse.Namespace, optimizer: str) -> list[dict[str, Any]]:
    """The facts of every epoch of one expert."""
    settings = Settings(options.data, Path(), rows=options.rows)
    config = settings.config(0, "random").model_copy(update={"max_length": options.length})
    experts = config.experts.model_copy(update={"optimizer": optimizer, "epochs": options.epochs})
    config = config.model_copy(update={"experts": experts})
    base = load_model(settings.model)
    student = expert_student(base.model, config, 0)
    pairs = pairs_of_news(settings, "train", options.rows)
    rows = PairEncoder(base.tokenizer).encode(pairs, max_length=options.length)
    with TemporaryDirectory() as folder:
        trajectory: Trajectory = train_expert(student, rows, config, 0, folder=Path(folder))
    whole = encoded(pairs, base.tokenizer, config)
    chosen = whole[torch.tensor(choose(pairs, None, config))]
    return [
        epoch_facts(student, whole, chosen, Segment(trajectory[epoch], trajectory[epoch + 1]), config)
        for epoch in range(options.epochs)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per data set")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--optimizers", nargs="+", default=["momentum", "adam"])
    for name, default in {"rows": 256, "epochs": 2, "length": 112, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = {optimizer: measure(options, optimizer) for optimizer in options.optimizers}
    for optimizer, epochs in found.items():
        for epoch, facts in enumerate(epochs):
            losses = "  ".join(f"{alpha}: {loss:.3f}" for alpha, loss in facts["matching_loss"].items())
            print(
                f"{optimizer:<9} epoch {epoch}  way {facts['way']:.2f}  cosine {facts['cosine']:.2f}  loss {losses}  "
                f"by prompts {facts['gradient_by_prompts_of_a_row']:.1e}  pull {facts['pull_of_a_row_at_beta_1']:.1e}"
            )
    write_result(options.out, {"rows": options.rows, "length": options.length, "results": found})


if __name__ == "__main__":
    main()
