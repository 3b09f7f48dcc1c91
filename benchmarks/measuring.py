"""What the benchmarks of speed share: clocks, peak memory, fresh processes, options and the files they write."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
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


def on_device(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The same parser with `--device`; on a GPU figures are of the clock, for nobody counts its processors' time."""
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="what computes")
    return parser


def prepare(options: argparse.Namespace) -> None:
    """Threads, and what tasks ask of torch on a GPU: algorithms that repeat, whole float32 products."""
    import torch

    from understudy.tasks.engine.machine import prepare_torch

    if options.device == "cpu":
        torch.set_num_threads(options.threads)
    else:
        prepare_torch(options.threads, options.device)


def clock(device: str) -> float:
    """Seconds of this process's processor time; on a GPU seconds of the clock once it has done all it was asked."""
    if device == "cpu":
        return time.process_time()
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def described(device: str) -> str:
    """What computes, for a table of results."""
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def parse_side(
    parser: argparse.ArgumentParser, sides: Sequence[str], memory_of_side: Callable[[argparse.Namespace], float]
) -> argparse.Namespace:
    """The options, with threads set; a process that was started for one side's memory prints it and ends here."""
    import torch

    parser.add_argument("--side", choices=sides, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if "device" in options:
        prepare(options)
    else:
        torch.set_num_threads(options.threads)
    if options.side:
        print(memory_of_side(options))
        raise SystemExit
    return options


def chosen(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Some of the options, by name."""
    return {name: getattr(options, name) for name in names}


def peak_memory(work: Callable[[], object], device: str = "cpu") -> float:
    """MiB that some work needs beyond what is held before it: resident in this process, or allocated on a GPU."""
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - held) / 2**20
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
