"""The Python API's comparisons: `understudy.compare`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.evaluation.metrics import Metrics
from understudy.lazy import load
from understudy.locks import locked_folder
from understudy.runs.handed_tables import Table
from understudy.runs.python_requests import begin, requested

# Core imports no flow: they are found by name when they are called.
_COMPARE = "understudy.flows.compare:compare"
_SERVER = "understudy.flows.temporary_server:start_in_turn"
_RUN = "understudy.flows.run_name:run_named"


@dataclass(frozen=True)
class Comparison:
    """What a comparison left behind.

    Attributes:
        figures: one row per method, epsilon and figure, in columns `method`, `epsilon`, `figure`, `mean` (over seeds),
            `spread` (standard deviation over seeds, null for one), `low`, `high` (mean ends of the runs' own intervals,
            null where a figure has none) and `seeds` (how many). Computed from real rows, so not to be handed over:
            choosing by them is a look at private rows that no epsilon covers.
        metrics: the same and those of each run, under stable dotted names.
        missing: runs without results, each with the reason.
        folder: the comparison's folder, with its report and a folder for each run.
    """

    figures: pa.Table = field(repr=False)
    metrics: Metrics = field(repr=False)
    missing: tuple[str, ...]
    folder: Path


def compare(
    data: Table | str | Path,
    *,
    source: str,
    methods: Sequence[str],
    epsilons: Sequence[float],
    seeds: Sequence[int] = (0,),
    out: str | Path,
    budget: tuple[float, float] | None = None,
    test: Table | str | Path | None = None,
    **options: Any,
) -> Comparison:
    """Run every method with every epsilon and seed on the same rows; charges `source` as the command line would.

    Args:
        data: private rows, as of `synthesize`.
        source: name under which these rows keep their budget.
        methods: as on the command line.
        epsilons: of the runs; inf gives private output.
        seeds: public; each is another run.
        out: folder for the report and the runs' own folders.
        budget: (epsilon, delta) of the source, on its first use; None takes all that the runs charge together.
        test: real rows for measuring only; None holds out about one unit in ten.
        **options: further fields of `RunRequest`, such as label_names, units, profile, model, samples, overrides.

    Raises:
        InputError: the input is wrong; nothing was charged.
        BudgetRefused: the source's budget does not allow all that the runs charge together; nothing was charged.
        UnderstudyError: some runs failed; `load_comparison` gives the others.
    """
    from understudy.runs.comparisons.request import compare_request_of
    from understudy.runs.comparisons.validated import handed_comparison, register_comparison, validate_comparison

    begin()
    with requested(data, test, out, source=source, budget=budget, **options) as run:
        asked = {"methods": tuple(methods), "epsilons": tuple(epsilons), "seeds": tuple(seeds), "run": run}
        request = compare_request_of(asked)
        # Outside of the flow: an error names rows, which Prefect must not keep.
        with handed_comparison(register_comparison(validate_comparison(request))):
            load(_SERVER)()
            load(_RUN)(load(_COMPARE), request)
    return load_comparison(run.out)


def load_comparison(folder: str | Path) -> Comparison:
    """A comparison that has ended, from its folder.

    Raises:
        InputError: when the folder holds none.
    """
    from understudy.reporting.comparison import figure_rows, read_comparison

    place = Path(folder)
    with locked_folder(place) if place.is_dir() else nullcontext():
        content = read_comparison(place)
    columns = {"method": pa.string(), "epsilon": pa.float64(), "figure": pa.string(), "mean": pa.float64()}
    columns |= {name: pa.float64() for name in ("spread", "low", "high")} | {"seeds": pa.int64()}
    table = pa.Table.from_pylist(figure_rows(content), schema=pa.schema(list(columns.items())))
    return Comparison(figures=table, metrics=content.measured(), missing=content.missing, folder=place)
