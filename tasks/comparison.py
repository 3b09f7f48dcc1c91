"""The report of a comparison."""

from __future__ import annotations

from understudy.runs.comparisons.report import Compared, report_on_runs
from understudy.runs.comparisons.request import Cell, CompareRequest
from understudy.tasks.engine.runtime import task


@task(name="report-comparison", cache=False, computes=False)
def report_comparison(
    request: CompareRequest, cells: tuple[Cell, ...], missing: dict[str, str], charges: tuple[str, ...]
) -> Compared:
    """Write DIR/report.html and DIR/report.json of runs that have ended; internal, for they are of real rows.

    Args:
        request: of the comparison.
        cells: its runs.
        missing: name of a run -> why it has no results; public, as the messages of all errors are.
        charges: ids of the charges that were made for the runs.
    """
    return report_on_runs(request, cells, missing, charges)
