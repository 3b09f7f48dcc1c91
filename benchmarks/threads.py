"""Claim: two threads cost at most 1.2 times the processor time of one, also beside two busy processes.

A side is a fresh process that takes steps of DP training with LoRA on a shipped model: with one thread, with two that
sleep while they wait (what the package sets) and with two that spin (what OpenMP does by default). Each repeat runs
the sides one after the other, alone and beside two processes that do nothing but compute. On an idle machine two
threads should need at most 0.65 of the wall time of one; `load` tells how idle it was.

    python benchmarks/threads.py --out threads.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from measuring import arguments, chosen, write_result

SIDES = {"one": (1, "PASSIVE"), "two": (2, "PASSIVE"), "two_spinning": (2, "ACTIVE")}
SETTINGS = ("model", "batch", "length", "micro_batch", "steps", "repeats")


def take_steps(options: argparse.Namespace) -> dict[str, float]:
    """Seconds per step, processor and wall, without the first, which warms up."""
    import torch

    torch.set_num_threads(options.threads)
    from dp_step import build, dp_steps, rows

    marks: list[tuple[float, float]] = []
    options.steps += 1
    dp_steps(build(options), rows(options), options, lambda: marks.append((time.process_time(), time.perf_counter())))
    (cpu, wall), (cpu_end, wall_end) = marks[0], marks[-1]
    return {"processor": (cpu_end - cpu) / (len(marks) - 1), "wall": (wall_end - wall) / (len(marks) - 1)}


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many other processes that only compute."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def run_side(options: argparse.Namespace, side: str) -> dict[str, float]:
    threads, policy = SIDES[side]
    command = [sys.executable, __file__, "--side", side, "--threads", str(threads), "--model", options.model]
    for name in ("batch", "length", "micro_batch", "steps"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    environment = os.environ | {"OMP_WAIT_POLICY": policy, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def ratios(runs: list[dict[str, dict[str, float]]]) -> dict[str, list[float]]:
    """Least, median and most over the repeats, of each side to one thread."""
    found = {}
    for side in ("two", "two_spinning"):
        for clock in ("processor", "wall"):
            values = [run[side][clock] / run["one"][clock] for run in runs]
            found[f"{side}.{clock}"] = [min(values), statistics.median(values), max(values)]
    return found


def main() -> None:
    parser = arguments(__doc__, batch=64, length=64, micro_batch=16, steps=3, repeats=3, rank=4)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(take_steps(options)))
        return
    result: dict[str, object] = {"settings": chosen(options, SETTINGS), "load": os.getloadavg()[0]}
    for name, others in (("alone", 0), ("beside_two_busy", 2)):
        with busy(others):
            runs = [{side: run_side(options, side) for side in SIDES} for _ in range(options.repeats)]
        result[name] = {"runs": runs, "ratios_to_one": ratios(runs)}
        print(name, json.dumps(result[name]["ratios_to_one"], indent=1))  # type: ignore[index]
    write_result(options.out, result)


if __name__ == "__main__":
    main()
