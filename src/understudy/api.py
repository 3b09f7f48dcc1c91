"""The Python API: the same flows as the command line, with tables in and tables out.

>>> import understudy                                     # doctest: +SKIP
>>> result = understudy.synthesize(table, source="reviews", epsilon=3, out="out", budget=(8, 1e-5))  # doctest: +SKIP
>>> result.synthetic.to_pylist()[0]                       # doctest: +SKIP
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.errors import InputError, UnderstudyError
from understudy.evaluation.metrics import Metrics
from understudy.lazy import load
from understudy.locks import locked_folder
from understudy.methods import registry
from understudy.runs.folders import SYNTHETIC, RunRecord, read_record
from understudy.runs.handed_tables import Table
from understudy.runs.placement import EXPORT, INTERNAL
from understudy.runs.python_requests import begin, metrics_in, requested

# Core imports no flow: they are found by name when they are called.
_SERVER = "understudy.flows.temporary_server:start_in_turn"
_RUN = "understudy.flows.run_name:run_named"


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
    begin()
    with (
        requested(data, test, out, source=source, epsilon=epsilon, budget=budget, **options) as request,
        # Outside of the flow: an error names rows, which Prefect must not keep.
        handed_over(request, register(validate(request, method))),
    ):
        load(_SERVER)()
        ended = load(_RUN)(load(chosen.flow), request)
    return _loaded(Path(request.out), expected=ended.synthetic)


def load_result(folder: str | Path) -> Result:
    """The result of a finished run, from its folder.

    Raises:
        InputError: when the folder holds no finished run, or one of its files is missing or damaged.
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
    """The files of a run.

    Raises:
        InputError: one is missing or damaged.
    """
    file = place / (INTERNAL if record.synthetic.label.kind == "private" else EXPORT) / SYNTHETIC
    try:
        table = pq.read_table(file)
        file = place / INTERNAL / "report.json"
        statement = json.loads(file.read_bytes())["statement"]
        return Result(synthetic=table, statement=statement, metrics=metrics_in(file.parent), folder=place)
    except (OSError, ValueError, KeyError):  # those of Arrow, JSON and pydantic are such
        found = "one that is damaged" if file.is_file() else "none"
    raise InputError(
        f"{file}: expected a file of the run that left {place}, found {found}; put it back, or repeat the run, which "
        "charges nothing and writes its folder anew"
    )
