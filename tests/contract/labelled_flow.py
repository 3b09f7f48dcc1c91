"""What the contracts of the methods of labelled rows share: the run's options, one replay, fifty neighbours."""

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from contract.flow_under_replay import FlowRun, Places, nothing_found, smaller
from contract.private_files import NAMES, ROW_KINDS, ROWS, row_of, without_row

from understudy.privacy.testing.replay import ReplayReport, replay_check
from understudy.runs.request import Budget

OPTIONS = {"source": "replayed", "epsilon": 8.0, "delta": 1e-3, "budget": Budget(epsilon=8, delta=1e-3)}


def labelled_flow(
    method: str,
    overrides: Sequence[str],
    model: Path,
    folder: Path,
    places: Places,
    patch: pytest.MonkeyPatch,
    *,
    samples: int,
) -> FlowRun:
    """A run of `method` on the rows of `private_files`."""
    smaller(patch)
    options = {"label_names": NAMES, "units": ROWS, "model": str(model), "samples": samples, "overrides": overrides}
    return FlowRun(method, OPTIONS | options, folder, places, patch)


def replayed(run: FlowRun, *, kind: str, number: int, forced: str | tuple[()] = ()) -> ReplayReport:
    """The report of a pair of files that differ in one row of `kind`; no run of them may show which it was."""
    slot = run.trained_slot(number)
    report = replay_check(run, data=row_of(kind, slot), neighbour=without_row(slot), forced=forced)
    nothing_found(run, report, f"{kind} row in slot {slot}")
    return report


def fifty(variants: Sequence[str]) -> list[tuple[str, str, int]]:
    """Fifty neighbours: (variant, kind of row, number of the slot), every variant with every kind."""
    pairs = islice(zip(cycle(variants), cycle(ROW_KINDS), strict=False), 50)
    return [(variant, kind, place // 4) for place, (variant, kind) in enumerate(pairs)]


def few_and_fifty(few: Sequence[tuple[str, str]], many: Sequence[tuple[str, str, int]]) -> list[Any]:
    """Parameters (variant, kind, number) of a test: a few in every run of the tests, fifty in `make prove`."""
    slow = [pytest.param(*one, marks=pytest.mark.slow) for one in many]
    return [*(pytest.param(variant, kind, 3) for variant, kind in few), *slow]
