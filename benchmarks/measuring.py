"""What the benchmarks of speed measure with: peak memory, fresh processes, and the options and files they share."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def arguments(description: str | None, **sizes: int) -> argparse.ArgumentParser:
    """Options of a benchmark of speed on a shipped model: `--out`, `--model`, its sizes, `--threads`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--model", default="tiny-llama")
    for name, default in {**sizes, "threads": 1}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    return parser


def parse_side(
    parser: argparse.ArgumentParser, sides: Sequence[str], memory_of_side: Callable[[argparse.Namespace], float]
) -> argparse.Namespace:
    """The options, with threads set; a process that was started for one side's memory prints it and ends here."""
    import torch

    parser.add_argument("--side", choices=sides, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.side:
        print(memory_of_side(options))
        raise SystemExit
    return options


def chosen(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Some of the options, by name."""
    return {name: getattr(options, name) for name in names}


def peak_memory(work: Callable[[], object]) -> float:
    """MiB that some work needs beyond what is resident before it, in this process."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = memory("VmRSS")
    work()
    return memory("VmHWM") - before


def memory(field: str) -> float:
    """MiB of a field of /proc/self/status."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    if found is None:
        raise SystemExit(f"expected {field} in /proc/self/status: memory is measured on Linux only")
    return int(found[1]) / 1024


def in_fresh_process(script: str, options: Mapping[str, Any]) -> float:
    """The number that a script prints when it is started with the options."""
    command = [sys.executable, script]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most of what repeats gave."""
    named = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: round(value, 3) for name, value in named.items()}


def write_result(path: Path | None, result: Mapping[str, Any]) -> None:
    """Write the figures where a file is wanted."""
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
