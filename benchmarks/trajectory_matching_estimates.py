"""Claim: time and peak memory that `--dry-run` predicts for trajectory matching lie within 25 % of those of the run.

Each setting is looked at in two fresh processes: one predicts as the dry run does, one runs the stages on the rows of
`sample:instructions`, with everything imported that a run's process imports. Seconds are of processor time in both,
with one thread, so other work on the machine counts little; memory is the peak of the whole process. Rows are as wide
as `max_length` in the prediction, for how long the real ones are is private.

    python benchmarks/trajectory_matching_estimates.py --out out/trajectory_matching_estimates.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measuring import write_result

from understudy.data.public_tables import read_pairs
from understudy.generation.instructions import Pair, PairEncoder, pairs_of
from understudy.methods.method import Promise
from understudy.methods.trajectory_matching.carriers import choose, encoded
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.distil import distil
from understudy.methods.trajectory_matching.emission import decoded
from understudy.methods.trajectory_matching.evaluation import Emitted, evaluate_tuning
from understudy.methods.trajectory_matching.experts import expert_student, train_expert
from understudy.methods.trajectory_matching.preparation import expected_seconds
from understudy.methods.trajectory_matching.training import PacedCheckpoint
from understudy.models.loading import load_base
from understudy.progress import Course

TARGET = 0.25
HELD_OUT = 20
PLAIN: dict[str, Any] = {"carrier": "selected", "experts": {"count": 1, "epochs": 1, "private": False}}
CASES: dict[str, dict[str, Any]] = {
    "tiny": {**PLAIN, "samples": 10, "distil": {"steps": 5, "max_start": 1}, "tuning": {"questions": HELD_OUT}},
    "short rows, less": {
        **PLAIN,
        "samples": 20,
        "max_length": 64,
        "selection": {"strategy": "less", "warmup_epochs": 1},
        "distil": {"steps": 8, "inner_steps": 3, "batch_size": 4, "tokens": 8, "max_start": 1},
        "tuning": {"questions": HELD_OUT},
    },
}


def config_of(case: str) -> TrajectoryMatchingConfig:
    return TrajectoryMatchingConfig.model_validate(CASES[case])


def split() -> tuple[list[Pair], list[Pair]]:
    """Training rows, and rows to measure on."""
    rows = [pair for pair in pairs_of(read_pairs("sample:instructions", setting="--data")) if pair is not None]
    return rows[HELD_OUT:], rows[:HELD_OUT]


def predicted(case: str) -> dict[str, float]:
    """Seconds of the stages, as the dry run expects them."""
    config, (rows, _) = config_of(case), split()
    promise = Promise((), len(rows), float("inf"), 0.0)
    return expected_seconds(config, promise, clock=time.process_time)


def measured(case: str) -> dict[str, float]:
    """Seconds of the stages of a run."""
    importlib.import_module("understudy.flows.trajectory_matching")
    config, (rows, held_out) = config_of(case), split()
    base = load_base(config)
    student = expert_student(base.model, config, 0)
    whole = PairEncoder(base.tokenizer, config.template).encode(rows, max_length=config.max_length)
    seconds: dict[str, float] = {}

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        found = work()
        seconds[stage] = time.process_time() - began
        return found

    with TemporaryDirectory() as folder:
        kept = Path(folder)
        expert = timed("experts", lambda: train_expert(student, whole, config, 0, folder=kept / "expert"))
        chosen = timed("selection", lambda: choose(rows, None, config, student=student, tokenizer=base.tokenizer))
        carriers = [rows[row] for row in chosen]
        few = encoded(carriers, base.tokenizer, config)
        course = Course(PacedCheckpoint(kept / "distil", per_epoch=config.distil.steps))
        result = timed("distillation", lambda: distil(student, few, [expert], config, course))
    _, texts = decoded(result.prompts, student.vocabulary, base.tokenizer)
    emitted = Emitted(carriers, result, texts)
    base = load_base(config)
    timed("tuning", lambda: evaluate_tuning(base, emitted, expert[-1], held_out, config))
    return seconds


SIDES = {"predicted": predicted, "measured": measured}


def in_fresh_process(case: str, side: str, threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--cases", case, "--side", side, "--threads", str(threads)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def compare(case: str, threads: int) -> dict[str, dict[str, float]]:
    """Both sides of a setting, and the first by the second, for every stage, all of them and memory."""
    sides = {side: in_fresh_process(case, side, threads) for side in SIDES}
    for found in sides.values():
        found["all"] = sum(value for name, value in found.items() if name != "mib")
    names = [name for name, value in sides["measured"].items() if value >= 1]
    return {**sides, "ratio": {name: sides["predicted"][name] / sides["measured"][name] for name in names}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", choices=tuple(SIDES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.side:
        found = SIDES[options.side](options.cases[0])
        print(json.dumps({**found, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return
    results = {case: compare(case, options.threads) for case in options.cases}
    for case, sides in results.items():
        for name, ratio in sides["ratio"].items():
            both = f"{sides['predicted'][name]:8.1f} predicted {sides['measured'][name]:8.1f} measured"
            print(f"{case:<18}{name:<14}{both}  ratio {ratio:.2f}")
    write_result(options.out, {"target": TARGET, "settings": {"threads": options.threads}, "results": results})


if __name__ == "__main__":
    main()
