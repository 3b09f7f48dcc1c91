"""The Python API: the same flows as the command line, with tables in and tables out.

>>> import understudy                                     # doctest: +SKIP
>>> result = understudy.synthesize(table, source="reviews", epsilon=3, out="out", budget=(8, 1e-5))  # doctest: +SKIP
>>> result.synthetic.to_pylist()[0]                       # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.data.readers import check_source
from understudy.errors import UnderstudyError
from understudy.evaluation.metrics import Metrics
from understudy.lazy import load
from understudy.locks import locked_folder
from understudy.methods import registry
from understudy.runs.folders import RunRecord, read_record
from understudy.runs.handed_tables import Table, as_files
from understudy.runs.placement import EXPORT, INTERNAL
from understudy.runs.request import request_of
from understudy.settings import prepare_environment

# Core imports no flow: they are found by name when they are called.
_SERVER = "understudy.flows.temporary_server:start_in_turn"
_COMPARE = "understudy.flows.compare:compare"


@dataclass(frozen=True)
class Result:
    """What a run left behind.

    Attributes:
        synthetic: columns `text` and, where the rows have labels, `label`; or `instruction` and `response`.
        statement: the privacy statement; stable keys first.
        metrics: computed from real rows, so not to be handed over.
        folder: the run's folder with `export/` and `internal/`.
    """

    synthetic: pa.Table = field(repr=False)
    statement: dict[str, Any]
    metrics: Metrics
    folder: Path


def synthesize(
    data: Table | str | Path,
    *,
    source: str,
    out: str | Path,
    epsilon: float | None = None,
    method: str = "conditional-generation",
    budget: tuple[float, float] | None = None,
    test: Table | str | Path | None = None,
    **options: Any,
) -> Result:
    """Make a synthetic table from a private one; charges `source` exactly as the command line would.

    Args:
        data: private rows: a table (of pyarrow, pandas, polars or datasets), a file, `hub:OWNER/NAME` or
            `sample:NAME`.
        source: name under which these rows keep their budget.
        out: folder for export/ and internal/.
        epsilon: of this run; inf gives private output. None where the method runs without one.
        method: as on the command line.
        budget: (epsilon, delta) of the source, on its first use.
        test: real rows for measuring only; None holds out about one unit in ten.
        **options: further fields of `RunRequest`, such as label_names, units, profile, model, samples, overrides.

    Raises:
        InputError: the input is wrong; nothing was charged.
        BudgetRefused: the source's budget does not allow the charge.
        UnderstudyError: another run has put its results into `out` since.
    """
    from understudy.runs.registration import handed_over, register
    from understudy.runs.validation import validate

    chosen = registry.get(method)
    prepare_environment()
    with as_files({"data": data, "test": test}) as files:
        request = request_of(
            {
                **options,
                **files,
                "source": source,
                "epsilon": epsilon,
                "out": str(out),
                "budget": {"epsilon": budget[0], "delta": budget[1]} if budget else None,
            }
        )
        folder = Path(request.out).expanduser().absolute()
        request = request.model_copy(update={"out": str(folder)})
        # Whatever Prefect is handed, it keeps and shows.
        for spec in (request.data, request.test):
            if spec is not None:
                check_source(spec)
        # Outside of the flow: an error names rows, which Prefect must not keep.
        with handed_over(request, register(validate(request, method))):
            load(_SERVER)()
            ended = load(chosen.flow)(request)
    return _loaded(folder, expected=ended.synthetic)


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
    from understudy.runs.comparison import handed_comparison, register_comparison, validate_comparison
    from understudy.runs.comparison_request import compare_request_of

    prepare_environment()
    with as_files({"data": data, "test": test}) as files:
        folder = Path(out).expanduser().absolute()
        total = {"epsilon": budget[0], "delta": budget[1]} if budget else None
        run = request_of({**options, **files, "source": source, "out": str(folder), "budget": total})
        # Whatever Prefect is handed, it keeps and shows.
        for spec in (run.data, run.test):
            if spec is not None:
                check_source(spec)
        asked = {"methods": tuple(methods), "epsilons": tuple(epsilons), "seeds": tuple(seeds), "run": run}
        request = compare_request_of(asked)
        # Outside of the flow: an error names rows, which Prefect must not keep.
        with handed_comparison(register_comparison(validate_comparison(request))):
            load(_SERVER)()
            load(_COMPARE)(request)
    return load_comparison(folder)


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


def load_result(folder: str | Path) -> Result:
    """The result of a finished run, from its folder.

    Raises:
        InputError: when the folder holds no finished run.
    """
    return _loaded(Path(folder))


def _loaded(folder: Path, *, expected: str = "") -> Result:
    """The result in a folder, of one run: that which made the artifact `expected`, or any."""
    with locked_folder(folder) if folder.is_dir() else nullcontext():
        record = read_record(folder)
        if expected not in ("", record.synthetic.id):
            raise UnderstudyError(
                f"out={folder}: expected the results of this run, found another one's, which took the folder over "
                "since; call again with a folder of its own, which charges nothing"
            )
        return _read(folder, record)


def _read(place: Path, record: RunRecord) -> Result:
    import json

    exported = (place / EXPORT / "synthetic.parquet").is_file() and record.released.label.kind != "private"
    table = pq.read_table(place / (EXPORT if exported else INTERNAL) / "synthetic.parquet")
    report = json.loads((place / INTERNAL / "report.json").read_text())
    metrics = Metrics.model_validate(
        {key: report[key] for key in ("intervals", "missing", "declared")} | {"values": report["metrics"]}
    )
    return Result(synthetic=table, statement=report["statement"], metrics=metrics, folder=place)
