"""A comparison before it starts: every run of it is validated, and what they charge together fits the budget.

Nothing is charged here, and nothing is registered unless every run of the comparison may begin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from understudy.errors import BudgetRefused, InputError, RowError, UnderstudyError
from understudy.methods import registry
from understudy.methods.method import Protected
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.reporting.comparison import is_comparison
from understudy.runs.comparisons.cells import cells_of
from understudy.runs.comparisons.compared_before import note_comparison, with_comparisons
from understudy.runs.comparisons.request import Cell, CompareRequest
from understudy.runs.comparisons.total import (
    check_early,
    check_total,
    cost_of,
    new_source,
    pld_total,
    sum_of,
)
from understudy.runs.configuration import configure
from understudy.runs.evaluations.report import check_report_folder
from understudy.runs.handing_over import waiting
from understudy.runs.registration import register
from understudy.runs.request import Budget
from understudy.runs.run_plan import RunPlan, key_of
from understudy.runs.validation import CheckAll, Validated, validate

# Comparisons that the command line or a program registered for a flow that it is about to start.
_HANDED_OVER: dict[str, Comparison] = {}


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison, validated.

    Attributes:
        cell: what it is.
        plan: of the run; public.
        charge: what its charge is known by; runs that differ only in what no private row meets share one.
        is_charged: it was charged before.
        is_finished: its results lie in its folder.
        replaces: what is to be said where it replaces the results of another charge.
        paid_before: what is to be said where another version's charge paid for it.
    """

    cell: Cell
    plan: RunPlan
    charge: str
    is_charged: bool
    is_finished: bool
    replaces: str = ""
    paid_before: str = ""


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison and what they charge together; public.

    Attributes:
        request: what was asked for.
        runs: in their order.
        budget: of the source.
        spent: (epsilon, delta) of it so far.
        charges: how many charges are still to be made.
        epsilon: sum over these.
        delta: sum over these.
        epsilon_pld: of the whole plan at `delta`, by PLD; None where some of it was charged before, so that it may not
            have been fixed in advance, or where it says nothing.
        takes_budget: the source is new and takes this total as its budget.
    """

    request: CompareRequest
    runs: tuple[PlannedRun, ...]
    budget: Budget
    spent: tuple[float, float]
    charges: int
    epsilon: float
    delta: float
    epsilon_pld: float | None
    takes_budget: bool

    @property
    def is_finished(self) -> bool:
        """Whether every run has left its results."""
        return all(run.is_finished for run in self.runs)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said before anything is charged, each once, with the runs that it is about if not all."""
        said: dict[str, list[str]] = {}
        for run in self.runs:
            plan = run.plan
            for note in (*plan.notes, *plan.description.warnings, *filter(None, [run.replaces])):
                said.setdefault(note, []).append(run.cell.name)
        whole = len(self.runs)
        return tuple(note if len(names) == whole else f"{note} ({_few(names)})" for note, names in said.items())


@dataclass(frozen=True)
class ValidatedComparison:
    """A comparison, and the private tables behind its runs, which go to registration and nowhere else."""

    comparison: Comparison
    validated: tuple[Validated, ...] = field(repr=False)


def validate_comparison(request: CompareRequest) -> ValidatedComparison:
    """Check all runs of a comparison and their total; stores, registers and charges nothing.

    Raises:
        InputError: the user's input is wrong; the message says what was expected and how to fix it.
        BudgetRefused: the source's budget does not allow all that the runs charge together.
    """
    cells = cells_of(request)
    methods = registry.names()
    check_report_folder(
        Path(request.run.out).expanduser(),
        noun="an earlier comparison",
        is_run=lambda name: is_cell_folder(name, methods),
        is_such=is_comparison,
    )
    _check_alike(cells)
    ledger = Ledger.open()
    known = next((record for record in ledger.sources() if record.name == request.run.source), None)
    _check_named_budget(request.run.budget, known)
    validated = _validated(cells, check_all=partial(check_early, request, cells, ledger, is_new=known is None))
    runs = tuple(_planned(ledger, cell, one) for cell, one in zip(cells, validated, strict=True))
    asked = _to_charge(runs, accepts_new=request.run.accept_new_charge)
    record = known or new_source(request, validated[0].record, asked)
    costs = [cost_of(record, plan) for plan in asked]
    epsilon, delta = sum_of(record, costs)
    check_total(ledger, record, costs, accepts_new=request.run.accept_new_charge)
    budget = Budget(epsilon=record.epsilon, delta=record.delta)
    new = not any(run.is_charged for run in runs)
    comparison = Comparison(
        request=request,
        runs=tuple(replace(run, plan=_as_one_of(run, budget, len(runs))) for run in runs),
        budget=budget,
        spent=(0.0, 0.0) if known is None else ledger.spent(record.name),
        charges=len(asked),
        epsilon=epsilon,
        delta=delta,
        epsilon_pld=pld_total([plan.queries for plan in asked], epsilon, delta) if new else None,
        takes_budget=known is None and request.run.budget is None,
    )
    return ValidatedComparison(
        comparison,
        tuple(replace(one, record=record, plan=run.plan) for one, run in zip(validated, comparison.runs, strict=True)),
    )


def register_comparison(checked: ValidatedComparison) -> Comparison:
    """Register the source and its rows, store the rows, and complete the run plans with references to them.

    Raises:
        InputError: another process registered other facts of the source, or these rows, in the meantime: nothing is
            registered then.
    """
    comparison = checked.comparison
    Path(comparison.request.run.out).expanduser().mkdir(mode=0o700, parents=True, exist_ok=True)
    plans = [register(one) for one in checked.validated]
    if len(comparison.runs) > 1:
        note_comparison({run.charge for run in comparison.runs}, runs=len(comparison.runs))
    runs = tuple(replace(run, plan=plan) for run, plan in zip(comparison.runs, plans, strict=True))
    return replace(comparison, runs=runs)


@contextmanager
def handed_comparison(comparison: Comparison) -> Iterator[None]:
    """Within it, a flow of this process with the same request takes this registered comparison, once."""
    with waiting(_HANDED_OVER, comparison.request.model_dump_json(), comparison):
        yield


def registered_comparison(request: CompareRequest) -> Comparison:
    """The comparison of a flow's request: the one handed over, or one made here.

    Raises:
        InputError: the user's input is wrong; nothing was registered then.
        BudgetRefused: the source's budget does not allow all that the runs charge together.
    """
    handed = _HANDED_OVER.pop(request.model_dump_json(), None)
    return handed or register_comparison(validate_comparison(request))


def charges_of(comparison: Comparison) -> tuple[str, ...]:
    """The ids of the charges that were made for the runs of a comparison, finished or not, oldest first."""
    known = {run.charge for run in comparison.runs}
    charges = Ledger.open().charges(comparison.request.run.source)
    return tuple(charge.id for charge in charges if charge.request_key in known)


def is_cell_folder(name: str, methods: Sequence[str]) -> bool:
    """Whether a folder of this name is that of a run in a comparison of any of these methods."""
    return any(name.startswith(f"{method}-eps") and "-seed" in name for method in methods)


def _check_alike(cells: Sequence[Cell]) -> None:
    """Refuse settings that a method does not have, and methods that protect different things."""
    protected: dict[Protected, str] = {}
    for cell in cells:
        try:
            config = configure(cell.request, cell.method)
        except InputError as error:
            raise InputError(
                f"{error} (in {cell.method}; --set {cell.method}.section.key=value is for this method alone)"
            ) from None
        found = registry.get(cell.method).charge.protects(config)
        protected.setdefault(found, cell.method)
    if len(protected) > 1:
        (one, first), (other, second) = list(protected.items())[:2]
        raise InputError(
            f"METHOD {first},{second}: expected methods that protect the same, found {first} (each {one.unit} of "
            f"{one.rows} rows) and {second} (each {other.unit} of {other.rows} rows); compare methods, or variants, "
            "that read the same rows"
        )


def _check_named_budget(budget: Budget | None, known: SourceRecord | None) -> None:
    """Refuse another budget than the source has: the runs themselves are asked without one."""
    if known is None or budget is None or (budget.epsilon, budget.delta) == (known.epsilon, known.delta):
        return
    raise InputError(
        f"--budget {budget.epsilon:g},{budget.delta:g}: source {known.name!r} is registered with {known.epsilon:g},"
        f"{known.delta:g}, which cannot be changed; leave --budget out"
    )


class _OfAllRuns(Exception):
    """A refusal that is of no run by itself."""

    def __init__(self, error: UnderstudyError) -> None:
        super().__init__(str(error))
        self.error = error


def _validated(cells: Sequence[Cell], *, check_all: CheckAll) -> tuple[Validated, ...]:
    """Each run validated by itself; the rows, which are the same, are kept once.

    Args:
        cells: the runs.
        check_all: refuses them together when the first of them has been looked at.
    """

    def of_all(record: SourceRecord, delta: float) -> None:
        try:
            check_all(record, delta)
        except (InputError, BudgetRefused) as error:
            raise _OfAllRuns(error) from None

    found: list[Validated] = []
    for cell in cells:
        try:
            one = validate(cell.request, cell.method, is_part=True, check_all=None if found else of_all)
        except _OfAllRuns as refused:
            raise refused.error from None
        except (InputError, BudgetRefused) as error:
            raise type(error)(f"{error} (in {cell.name})") from None
        first = found[0] if found else one
        if (one.row_digests, one.client_digests) != (first.row_digests, first.client_digests):
            raise RowError("--data: expected the same rows for every run, found that they changed meanwhile; repeat")
        found.append(replace(one, rows=first.rows, row_digests=first.row_digests, client_digests=first.client_digests))
    return tuple(found)


def _planned(ledger: Ledger, cell: Cell, one: Validated) -> PlannedRun:
    return PlannedRun(
        cell=cell,
        plan=one.plan,
        charge=key_of(ledger, one.plan, one.rows.train),
        is_charged=one.is_charged,
        is_finished=one.is_finished,
        replaces=one.replaces,
        paid_before=one.paid_before,
    )


def _as_one_of(run: PlannedRun, budget: Budget, count: int) -> RunPlan:
    """The plan of a run among several, whose statement says that there are others."""
    others = (count,) if count > 1 else ()
    said = with_comparisons(run.plan.description, run.charge, *others)
    return run.plan.model_copy(update={"budget": budget, "description": said})


def _to_charge(runs: Sequence[PlannedRun], *, accepts_new: bool) -> list[RunPlan]:
    """One plan for each charge that is still to be made, or may be made again."""
    by_charge = {run.charge: run for run in reversed(runs) if accepts_new or not run.is_charged}
    return [run.plan for run in reversed(by_charge.values()) if math.isfinite(run.plan.epsilon)]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
