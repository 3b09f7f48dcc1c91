"""The report of an evaluation of any synthetic table; internal, for it is made from real rows."""

from __future__ import annotations

from understudy.frozen import Frozen
from understudy.runs.evaluations.request import EvaluateRequest
from understudy.tasks.engine.runtime import compute, progress, task


class Evaluated(Frozen):
    """What an evaluation tells Prefect when it has ended: no figure, for figures are made of private rows.

    Attributes:
        report: the page; internal, not private. report.json beside it has the figures.
    """

    report: str


# Not cached: files that are read by their path may have changed since.
@task(name="report-evaluation", cache=False)
def report_evaluation(request: EvaluateRequest) -> Evaluated:
    """Measure the tables, as they are now or as the command has just read them, and write the report's two files."""
    from understudy.runs.evaluations.inputs import tables_of
    from understudy.runs.evaluations.report import report_on_tables

    files, _ = report_on_tables(
        tables_of(request), request.folder.absolute(), device=compute().device, progress=progress
    )
    return Evaluated(report=str(files.html))
