"""Claim: two experts in processes of their own, a thread each, take at most 0.65 of the time of one after the other.

The same mapped tasks run twice in a flow, in two fresh homes: with `UNDERSTUDY_PROCESSES=1` and with 2. Wall time is
from the first task's start to the last one's end, so starting the processes counts and starting Prefect does not. The
experts' bytes are compared. Both cores must be quiet.

    python benchmarks/fan_out.py --rows 600 --out fan_out.json
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from measuring import arguments, chosen, write_result

TARGET = 0.65
WORDS = ("world", "sports", "business", "science")


def pairs(rows: int) -> pa.Table:
    """Rows of no meaning that fill about a hundred tokens."""
    text = " ".join(WORDS * 12)
    return pa.table(
        {
            "instruction": [f"number {row}: {text}" for row in range(rows)],
            "response": [WORDS[row % len(WORDS)] for row in range(rows)],
        }
    )


def run_experts(options: argparse.Namespace) -> None:
    """Print the seconds and the digests of the experts, in the home that the environment names."""
    from understudy.settings import prepare_environment

    prepare_environment()
    from prefect import flow, unmapped

    from understudy.artifacts.access import path_of, write_table
    from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
    from understudy.privacy.labels import private
    from understudy.tasks.charge_receipt import ChargeReceipt
    from understudy.tasks.trajectory_matching import TRAJECTORY, train_expert

    label = private("fan-out")
    config = TrajectoryMatchingConfig.model_validate(
        {"model": options.model, "experts": {"count": options.experts, "private": False}, "carrier": "selected"}
    )
    receipt = ChargeReceipt(charge_id="fan-out", source="fan-out", label=label, queries=())

    @flow(name="fan-out")
    def fan_out() -> tuple[float, list[str]]:
        rows = write_table(pairs(options.rows), kind="rows", label=label)
        began = time.perf_counter()
        numbers = list(range(options.experts))
        experts = train_expert.map(unmapped(rows), unmapped(receipt), unmapped(config), numbers).result()
        seconds = time.perf_counter() - began
        contents = [(path_of(expert) / TRAJECTORY).read_bytes() for expert in experts]
        return seconds, [hashlib.sha256(content).hexdigest() for content in contents]

    seconds, digests = fan_out()
    print(f"{seconds} {' '.join(digests)}")


def in_fresh_home(options: argparse.Namespace, processes: int) -> tuple[float, list[str]]:
    """Seconds and digests with a number of processes."""
    with TemporaryDirectory() as home:
        environment = os.environ | {
            "UNDERSTUDY_HOME": str(Path(home) / "home"),
            "UNDERSTUDY_MLFLOW_URI": f"sqlite:///{home}/mlflow.db",
            "UNDERSTUDY_EXCHANGE": str(Path(home) / "exchange"),
            "PREFECT_HOME": str(Path(home) / "prefect"),
            "UNDERSTUDY_PROCESSES": str(processes),
            "UNDERSTUDY_THREADS": str(options.threads),
            "UNDERSTUDY_DEVICE": "cpu",
        }
        environment.pop("PREFECT_API_URL", None)
        command = [sys.executable, __file__, "--side"]
        for name in ("model", "rows", "experts"):
            command += [f"--{name}", str(getattr(options, name))]
        done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    seconds, *digests = done.stdout.split()
    return float(seconds), digests


def main() -> None:
    parser = arguments(__doc__, rows=600, experts=2)
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        run_experts(options)
        return
    (one, bytes_of_one), (two, bytes_of_two) = (in_fresh_home(options, processes) for processes in (1, 2))
    same = bytes_of_one == bytes_of_two
    print(f"one after the other {one:.1f} s, side by side {two:.1f} s: {two / one:.2f}; same bytes: {same}")
    settings = chosen(options, ("model", "rows", "experts", "threads"))
    result = {"one_after_the_other_s": one, "side_by_side_s": two, "ratio": two / one, "same_bytes": same}
    write_result(options.out, {"settings": settings, "target": TARGET, "results": result})


if __name__ == "__main__":
    main()
