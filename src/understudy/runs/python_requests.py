"""What the functions of the Python API share: how they begin, requests made of tables, and figures read back."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from understudy.data.readers import check_source
from understudy.errors import InputError, UnreadVariable
from understudy.evaluation.metrics import Metrics
from understudy.runs.handed_tables import Table, as_files
from understudy.runs.request import RunRequest, request_of
from understudy.settings import prepare_environment, unknown_variables, unread_tracking


def begin() -> None:
    """What a function that its caller reaches the flows by does first: it warns of what a command would note."""
    prepare_environment()
    for unread in (*unknown_variables(), *unread_tracking()):
        warnings.warn(unread, UnreadVariable, stacklevel=3)


@contextmanager
def requested(
    data: Table | str | Path,
    test: Table | str | Path | None,
    out: str | Path,
    *,
    budget: tuple[float, float] | None,
    **fields: Any,
) -> Iterator[RunRequest]:
    """Within it, the request of a run, whose tables are files."""
    with as_files({"data": data, "test": test}) as files:
        request = request_of({**fields, **files, "out": folder_given(out), "budget": _budget_of(budget)})
        # Whatever Prefect is handed, it keeps and shows.
        for spec in (request.data, request.test):
            if spec is not None:
                check_source(spec)
        yield request.model_copy(update={"out": str(Path(request.out).expanduser().absolute())})


def folder_given(out: str | Path) -> str:
    """A folder as a request names it; what is no path stays what it is, for the request to refuse."""
    return str(out) if isinstance(out, Path) else out


def _budget_of(budget: tuple[float, float] | None) -> dict[str, float] | None:
    if budget is None:
        return None
    if not isinstance(budget, (tuple, list)) or len(budget) != 2:
        raise InputError(
            f"--budget: expected two numbers, found {type(budget).__name__}; give it as (epsilon, delta), for example "
            "(8, 1e-5)"
        )
    return {"epsilon": budget[0], "delta": budget[1]}


def metrics_in(folder: Path) -> Metrics:
    """The figures of the report in a folder."""
    report = json.loads((folder / "report.json").read_bytes())
    found = {name: report[name] for name in Metrics.model_fields if name in report}
    return Metrics.model_validate(found | {"values": report["metrics"]})
