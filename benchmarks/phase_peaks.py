"""What benchmarks of predicted peaks share: a table of phases, each measured in a process of its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measuring import arguments, in_fresh_process, parse_side, write_result

TARGETS = {"prediction": 0.25}


def parse(
    description: str | None, cases: Mapping[str, object], figure: Callable[[argparse.Namespace], float]
) -> argparse.Namespace:
    """What is asked of a benchmark; a process that measures one case ends here, with its figure.

    Args:
        description: of the benchmark.
        cases: by name.
        figure: the measured peak of the case that is asked for, in MiB.
    """
    parser = arguments(description)
    parser.add_argument("--case", choices=tuple(cases), help=argparse.SUPPRESS)
    parser.add_argument("--cases", default=",".join(cases), help="which cases, separated by commas")
    parser.add_argument("--models", type=Path, help="folder for the random models; by default one that is removed")
    return parse_side(parser, ("peak",), figure)


def run(
    options: argparse.Namespace,
    script: str,
    cases: Mapping[str, Any],
    *,
    place: Callable[[str, Path], object],
    predicted: Callable[[Any, Path], float],
) -> None:
    """Measure and predict every case that is asked for, print them, and write them down.

    Args:
        options: from `parse`.
        script: the benchmark's file.
        cases: by name; each has the name of its `model`.
        place: puts a model into a folder.
        predicted: the peak of a case in MiB, with the folder of models.
    """
    with TemporaryDirectory() as folder:
        options.models = options.models or Path(folder)
        for case in cases.values():
            place(case.model, options.models)
        found = {name: _compared(options, script, name, cases[name], predicted) for name in options.cases.split(",")}
    print(f"{'phase':<26}{'measured MiB':>14}{'predicted':>11}{'ratio':>7}")
    for name, one in found.items():
        print(f"{name:<26}{one['measured_mib']:>14.0f}{one['predicted_mib']:>11.0f}{one['ratio']:>7.2f}")
    write_result(options.out, {"targets": TARGETS, "threads": options.threads, "cases": found})


def _compared(
    options: argparse.Namespace, script: str, name: str, case: Any, predicted: Callable[[Any, Path], float]
) -> dict[str, float]:
    expected = predicted(case, options.models)
    asked = {"case": name, "side": "peak", "threads": options.threads, "models": options.models}
    measured = in_fresh_process(script, asked)
    found = {"measured_mib": measured, "predicted_mib": expected, "ratio": expected / measured}
    print(name, {key: round(value, 2) for key, value in found.items()}, file=sys.stderr, flush=True)
    return found
