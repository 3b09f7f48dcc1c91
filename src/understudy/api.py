"""The Python door: the same flows as the command line, with tables in and tables out.

>>> import understudy                                     # doctest: +SKIP
>>> result = understudy.synthesize(table, source="reviews", epsilon=3, out="out", budget=(8, 1e-5))  # doctest: +SKIP
>>> result.synthetic.to_pylist()[0]                       # doctest: +SKIP
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.delivery import EXPORT, INTERNAL, read_record
from understudy.evaluation.metrics import Metrics
from understudy.methods import check_method
from understudy.requests import Budget, RunRequest
from understudy.settings import prepare_environment, private_directory, settings


@dataclass(frozen=True)
class Result:
    """What a run left behind.

    Attributes:
        synthetic: columns `text` and `label`.
        statement: the privacy statement; stable keys first.
        metrics: internal, not private: computed from real rows.
        folder: the run's folder with `export/` and `internal/`.
    """

    synthetic: pa.Table
    statement: dict[str, Any]
    metrics: Metrics
    folder: Path


def synthesize(
    data: pa.Table | str | Path,
    *,
    source: str,
    epsilon: float,
    out: str | Path,
    method: str = "conditional-generation",
    budget: tuple[float, float] | None = None,
    test: pa.Table | str | Path | None = None,
    **options: Any,
) -> Result:
    """Make a synthetic table from a private one; charges `source` exactly as the command line would.

    Args:
        data: private rows: a table, a file, a hub id or `sample:NAME`.
        source: name under which these rows keep their budget.
        epsilon: of this run; inf gives private output.
        out: folder for export/ and internal/.
        method: as on the command line.
        budget: (epsilon, delta) of the source, on its first use.
        test: real rows for measuring only; None holds out every tenth row.
        **options: further fields of `RunRequest`, such as profile, model, samples, overrides, label_names.

    Raises:
        InputError: the input is wrong; nothing was charged.
        BudgetRefused: the source's budget does not allow the charge.
    """
    check_method(method)
    prepare_environment()
    folder = Path(out).expanduser().absolute()
    with _as_files({"data": data, "test": test}) as files:
        request = RunRequest.model_validate(
            {
                **options,
                **files,
                "source": source,
                "epsilon": epsilon,
                "out": str(folder),
                "budget": Budget(epsilon=budget[0], delta=budget[1]) if budget else None,
            }
        )
        from understudy.flows.methods import flow_of

        flow_of(method)(request)
    return load_result(folder)


def load_result(folder: str | Path) -> Result:
    """The result of a finished run, from its folder.

    Raises:
        InputError: when the folder holds no finished run.
    """
    import json

    place = Path(folder)
    record = read_record(place)
    exported = (place / EXPORT / "synthetic.parquet").is_file() and record.released.label.kind != "private"
    table = pq.read_table(place / (EXPORT if exported else INTERNAL) / "synthetic.parquet")
    report = json.loads((place / INTERNAL / "report.json").read_text())
    metrics = Metrics.model_validate(
        {key: report[key] for key in ("intervals", "missing")} | {"values": report["metrics"]}
    )
    return Result(synthetic=table, statement=report["statement"], metrics=metrics, folder=place)


@contextmanager
def _as_files(tables: dict[str, pa.Table | str | Path | None]) -> Iterator[dict[str, str | None]]:
    """Tables as files under the private root for the time of a run; names and paths pass through."""
    inbox = private_directory(settings().temporary_root / f"inbox-{secrets.token_hex(8)}")
    paths: dict[str, str | None] = {}
    try:
        for name, table in tables.items():
            if isinstance(table, pa.Table):
                paths[name] = str(inbox / f"{name}.parquet")
                pq.write_table(table, paths[name])
            else:
                paths[name] = None if table is None else str(table)
        yield paths
    finally:
        for path in inbox.iterdir():
            path.unlink()
        inbox.rmdir()
