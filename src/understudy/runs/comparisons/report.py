"""What a comparison leaves in DIR beside its runs: report.html and report.json, and in sources.json whose they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from understudy.errors import InputError, UnderstudyError
from understudy.evaluation.metric_name import MetricName
from understudy.evaluation.metrics import Metrics, merge
from understudy.evaluation.statistics.comparison import MeasuredRun, compared, figures_of, headline_of
from understudy.evaluation.statistics.differences import differences
from understudy.locks import locked_folder
from understudy.privacy.ledger.budget import Cost, spent
from understudy.privacy.ledger.ledger import Ledger
from understudy.privacy.shown_cost import cost_in_words
from understudy.reporting.comparison import build_comparison
from understudy.reporting.comparison_content import ComparisonContent, Group
from understudy.reporting.differences import pairs_of
from understudy.reporting.report import Content
from understudy.runs.comparisons.request import Cell, CompareRequest, epsilon_text
from understudy.runs.evaluations.report import noted_report
from understudy.runs.exported import complete, read_exported
from understudy.runs.folders import read_record
from understudy.runs.placement import INTERNAL


class Compared(BaseModel):
    """Where a comparison's report is, and which runs it lacks; public values only, no figure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    report: str
    runs: int
    missing: dict[str, str]


class ComparisonIncomplete(UnderstudyError):
    """Some runs of a comparison failed; the others have ended and are reported."""


def report_on_runs(
    request: CompareRequest, cells: Sequence[Cell], missing: Mapping[str, str], charges: Sequence[str]
) -> Compared:
    """Write the report on all runs but the missing ones; an existing report is replaced, unless all are missing.

    Args:
        request: what was asked for.
        cells: its runs, which have ended.
        missing: name of a run -> why it has no results.
        charges: ids of all charges that were made for the runs, the missing ones too.

    Raises:
        InputError: the folder of a run that is not missing holds none.
        UnderstudyError: it holds another run's results.
    """
    out = Path(request.run.out).expanduser()
    result = Compared(report=str((out / "report.html").absolute()), runs=len(cells), missing=dict(missing))
    if len(missing) == len(cells):
        return result
    # Noted first: a purge of these rows either leaves no figures to read, or waits for the report and takes it along.
    with noted_report(out, {request.run.source}):
        build_comparison(out, _content(request, cells, missing, charges))
    return result


def _content(
    request: CompareRequest, cells: Sequence[Cell], missing: Mapping[str, str], charges: Sequence[str]
) -> ComparisonContent:
    """What the page shows, from the folders of the runs."""
    done = [cell for cell in cells if cell.name not in missing]
    measured = [MeasuredRun(cell.group, cell.seed, _measured(cell, charges)) for cell in done]
    reasons = [f"{name}: {why}" for name, why in missing.items()]
    groups, figures = _groups(cells, missing), figures_of(measured)
    found = merge(compared(measured, missing=reasons), _differences(measured, groups, figures))
    return ComparisonContent(
        title=f"Comparison on {request.run.source}",
        charged=_charged(request.run.source, charges),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        facts={
            "methods": ", ".join(request.methods),
            "epsilons": ", ".join(map(epsilon_text, request.epsilons)),
            "seeds": ", ".join(map(str, request.seeds)),
            "profile": request.run.profile,
        },
        groups=groups,
        figures=figures,
        metrics=found.values,
        intervals=found.intervals,
        missing=found.missing,
        declared=found.declared,
    )


def complete_comparison(result: Compared) -> Compared:
    """The result of a comparison that lacks no run.

    Raises:
        ComparisonIncomplete: naming the first that is missing and why; the report has them all.
        UnderstudyError: no run has results.
    """
    if not result.missing:
        return result
    (name, why), *others = result.missing.items()
    more = f"; and {len(others)} more, which the report names" if others else ""
    if len(result.missing) == result.runs:
        raise UnderstudyError(f"no run has results, so there is nothing to report: {name}: {why}")
    raise ComparisonIncomplete(
        f"{len(result.missing)} of {result.runs} runs are missing from {result.report}: {name}: {why}{more}. The same "
        "command again computes what is missing, under the charges that were made"
    )


def shortfall_of(cell: Cell) -> str:
    """Why a run that has left its results does not count as done; empty when it does."""
    try:
        complete(read_exported(cell.folder))
    except UnderstudyError as error:
        return str(error)
    return ""


def _measured(cell: Cell, charges: Sequence[str]) -> Metrics:
    """The figures of a run, which is under one of these charges.

    Raises:
        InputError: its folder holds no results.
        UnderstudyError: it holds those of another run, which took it over.
    """
    if not cell.folder.is_dir():
        raise InputError(f"{cell.folder}: expected the results of a run, found no such folder; run the same again")
    with locked_folder(cell.folder):
        found = read_record(cell.folder).charge_id
        if found not in charges:
            raise UnderstudyError(
                f"{cell.folder}: expected the results of {cell.name}, found those of charge {found}, whose run took "
                "the folder over since; give that one a folder of its own, and run the same again, which charges "
                "nothing more"
            )
        content = Content.model_validate_json((cell.folder / INTERNAL / "report.json").read_bytes())
    return content.measured()


def _differences(measured: Sequence[MeasuredRun], groups: Sequence[Group], figures: Sequence[MetricName]) -> Metrics:
    """Of the headline figure, between groups that differ in one thing."""
    headline = next((figure for figure in figures if figure.pattern == headline_of(figures)), None)
    pairs = [(one.name, other.name) for one, other in pairs_of(groups)]
    return differences(measured, pairs, headline) if headline else Metrics()


def _charged(source: str, ids: Sequence[str]) -> str:
    """What the runs charged together, in words."""
    ledger = Ledger.open()
    counted = [charge for name in ids if (charge := ledger.charge(name)).kind == "counted"]
    if not counted:
        return f"Nothing of the budget of source {source} was charged: these runs add no noise, and stay private."
    record = ledger.source(source).model_copy(update={"composition": "sum"})
    epsilon, delta = spent(record, [Cost(charge.epsilon, charge.delta) for charge in counted])
    cost = cost_in_words(epsilon, delta, unit=record.unit, relation=record.relation)
    return (
        f"The runs below were charged to source {source}: {cost} in all, the sum of {len(counted)} "
        f"charge{'' if len(counted) == 1 else 's'}."
    )


def _groups(cells: Sequence[Cell], missing: Mapping[str, str]) -> tuple[Group, ...]:
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.group, []).append(cell)
    return tuple(
        Group(
            name=name,
            method=own[0].method,
            epsilon=own[0].epsilon,
            seeds=tuple(cell.seed for cell in own if cell.name not in missing),
            missing=tuple(cell.seed for cell in own if cell.name in missing),
        )
        for name, own in found.items()
    )
