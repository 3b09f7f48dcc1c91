"""Claim: two threads cost at most 1.2 times the processor time of one, also beside two busy processes.

A side is a fresh process that takes steps of DP training with LoRA on a shipped model: with one thread, with two that
sleep while they wait (what the package sets) and with two that spin (what they do by default). Each repeat runs
the sides one after the other, alone and beside two processes that do nothing but compute. On an idle machine two
threads should need at most 0.65 of the wall time of one; `load` tells how idle it was.

With `--work calibration` a side calibrates the noise of four runs instead. That multiplies in numpy, whose threads,
those of OpenBLAS, sleep or spin.

    python benchmarks/threads.py --out threads.json
    python benchmarks/threads.py --work calibration --out threads-calibration.json
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
from typing import Any

from measuring import arguments, chosen, write_result

ASLEEP = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}
# 26 is what OpenBLAS takes by itself.
SPINNING = {"OMP_WAIT_POLICY": "ACTIVE", "OPENBLAS_THREAD_TIMEOUT": "26"}
SIDES = {"one": (1, ASLEEP), "two": (2, ASLEEP), "two_spinning": (2, SPINNING)}
SETTINGS = ("work", "model", "batch", "length", "micro_batch", "steps", "repeats")
# Sampling probability, steps and epsilon.
CALIBRATIONS = ((0.5, 4, 8.0), (0.2, 10, 3.0), (0.03, 500, 8.0), (0.01, 3000, 1.0))


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


def calibrate(_options: argparse.Namespace) -> dict[str, float]:
    """Seconds of all calibrations, processor and wall."""
    from understudy.privacy.accounting import sgd_event
    from understudy.privacy.calibration import calibrate_noise_multiplier

    cpu, wall = time.process_time(), time.perf_counter()
    for probability, steps, epsilon in CALIBRATIONS:

        def event(z: float, probability: float = probability, steps: int = steps) -> Any:
            return sgd_event(sampling_probability=probability, noise_multiplier=z, steps=steps)

        calibrate_noise_multiplier(event, epsilon=epsilon, delta=1e-5, cache=None)
    return {"processor": time.process_time() - cpu, "wall": time.perf_counter() - wall}


WORK = {"step": take_steps, "calibration": calibrate}


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
    threads, waiting = SIDES[side]
    command = [sys.executable, __file__, "--side", side, "--threads", str(threads), "--model", options.model]
    for name in ("work", "batch", "length", "micro_batch", "steps"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    environment = os.environ | waiting | {"OMP_NUM_THREADS": str(threads)}
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
    parser.add_argument("--work", choices=WORK, default="step", help="what a side does")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(WORK[options.work](options)))
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
