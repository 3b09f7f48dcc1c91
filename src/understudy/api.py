"""The Python API: the same flows as the command line, with tables in and tables out.

>>> import understudy                                     # doctest: +SKIP
>>> result = understudy.synthesize(table, source="reviews", epsilon=3, out="out", budget=(8, 1e-5))  # doctest: +SKIP
>>> result.synthetic.to_pylist()[0]                       # doctest: +SKIP
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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
from understudy.runs.request import RunRequest, request_of
from understudy.settings import prepare_environment, settings

# Core imports no flow and no task: they are found by name when they are called.
_PREPARED = "understudy.tasks.engine.machine:prepared"
_SERVER = "understudy.flows.temporary_server:start_in_turn"


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


@dataclass(frozen=True)
class Audit:
    """What an audit found; internal, as it is computed on private rows.

    Attributes:
        bounds: attacker (`data`, `model`) -> run (`claim`, `positive_control`, `null_control`) -> lower bound on
            epsilon.
        claimed_epsilon: what the run promises.
        detectable_epsilon: the least epsilon that the best attack on so many canaries would tell from 0.
        metrics: all figures.
        folder: of the report and of the runs.
    """

    bounds: dict[str, dict[str, float]]
    claimed_epsilon: float
    detectable_epsilon: float
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
    with (
        _requested(data, test, out, source=source, epsilon=epsilon, budget=budget, **options) as request,
        # Outside of the flow: an error names rows, which Prefect must not keep.
        handed_over(request, register(validate(request, method))),
    ):
        load(_SERVER)()
        ended = load(chosen.flow)(request)
    return _loaded(Path(request.out), expected=ended.synthetic)


def audit(  # noqa: PLR0913 - one parameter per option of the command
    data: Table | str | Path,
    *,
    source: str,
    out: str | Path,
    epsilon: float,
    method: str = "conditional-generation",
    budget: tuple[float, float] | None = None,
    test: Table | str | Path | None = None,
    canaries: int | None = None,
    seed: int = 0,
    insist: bool = False,
    public_rows: bool = False,
    **options: Any,
) -> Audit:
    """Attack a run on rows with canaries in them, beside two controls; charges `source` for that run.

    Args:
        data: private rows, as of `synthesize`; rows of a public table of the same shape charge no private source.
        source: name under which these rows keep their budget.
        out: folder of the report and of the runs.
        epsilon: whose promise is audited; finite.
        method: as on the command line.
        budget: (epsilon, delta) of the source, on its first use.
        test: real rows for measuring only; None holds out about one unit in ten.
        canaries: how many; None takes 100, or a fifth of fewer than 500 units.
        seed: of the canaries; public.
        insist: charge and attack the run even where the attack misses it without noise.
        public_rows: later statements of this method and model may name what is found.
        **options: further fields of `RunRequest`.

    Raises:
        InputError: the input is wrong; nothing was charged.
        BudgetRefused: the source's budget does not allow the charge.
        UnderstudyError: the audit refutes the promise, or can say nothing; its report says so too.
    """
    from understudy.runs.audit_request import audit_of
    from understudy.runs.audited import planned

    prepare_environment()
    with _requested(data, test, out, source=source, epsilon=epsilon, budget=budget, **options) as run:
        request = audit_of(method, run, canaries=canaries, seed=seed, insist=insist, public_rows=public_rows)
        with planned(request):
            load(_SERVER)()
            ended = load("understudy.flows.audit:audit")(request)
    folder = Path(run.out)
    return Audit(
        bounds=ended.bounds,
        claimed_epsilon=ended.claimed_epsilon,
        detectable_epsilon=ended.detectable_epsilon,
        metrics=_metrics_in(folder),
        folder=folder,
    )


def evaluate(
    synthetic: Table | str | Path,
    *,
    real: Table | str | Path,
    test: Table | str | Path,
    out: str | Path,
    text_column: str = "text",
    label_column: str = "label",
    label_names: dict[str, str] | None = None,
) -> Metrics:
    """Measure any synthetic table of labelled texts against real rows; charges nothing, and exports nothing.

    Args:
        synthetic: table with columns `text` and `label`.
        real: real rows that a stand-in is compared with.
        test: real rows that nothing was trained on.
        out: folder of report.html and report.json, which are made from real rows.
        text_column: of the real rows.
        label_column: of the real rows.
        label_names: value in the label column -> name; None where the values are the names.

    Returns:
        The figures; internal, as they are computed from real rows.

    Raises:
        InputError: a table is not what is expected.
    """
    from understudy.evaluation.tables import read_tables
    from understudy.runs.evaluated import report_on_tables
    from understudy.runs.folders import try_folder

    prepare_environment()
    folder = Path(out).expanduser().absolute()
    try_folder(folder)
    with as_files({"synthetic": synthetic, "real": real, "test": test}) as files:
        compared = read_tables(
            str(files["synthetic"]),
            real=str(files["real"]),
            test=str(files["test"]),
            text_column=text_column,
            label_column=label_column,
            label_names=label_names,
        )
        with load(_PREPARED)(report_on_tables, inside=True):
            _, metrics = report_on_tables(compared, folder, device=settings().device_type)
    return metrics


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
    exported = (place / EXPORT / "synthetic.parquet").is_file() and record.released.label.kind != "private"
    table = pq.read_table(place / (EXPORT if exported else INTERNAL) / "synthetic.parquet")
    statement = json.loads((place / INTERNAL / "report.json").read_text())["statement"]
    return Result(synthetic=table, statement=statement, metrics=_metrics_in(place / INTERNAL), folder=place)


def _metrics_in(folder: Path) -> Metrics:
    """The figures of the report in a folder."""
    report = json.loads((folder / "report.json").read_text())
    return Metrics.model_validate(
        {key: report[key] for key in ("intervals", "missing", "declared")} | {"values": report["metrics"]}
    )


@contextmanager
def _requested(
    data: Table | str | Path,
    test: Table | str | Path | None,
    out: str | Path,
    *,
    budget: tuple[float, float] | None,
    **fields: Any,
) -> Iterator[RunRequest]:
    """Within it, the request of a run, whose tables are files."""
    with as_files({"data": data, "test": test}) as files:
        given = {"epsilon": budget[0], "delta": budget[1]} if budget else None
        request = request_of({**fields, **files, "out": str(out), "budget": given})
        # Whatever Prefect is handed, it keeps and shows.
        for spec in (request.data, request.test):
            if spec is not None:
                check_source(spec)
        yield request.model_copy(update={"out": str(Path(request.out).expanduser().absolute())})
