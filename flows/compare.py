"""A comparison as a flow: every method with every epsilon and every seed on the same private rows, side by side.

request -> validate all, check the total -> the method's own flow for each run, one after another -> report

Each run is charged by itself, under its own flow, into a folder of its own, as if it had been started alone. Nothing is
charged unless the budget allows all of them. Of two comparisons in one folder the second waits for the first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prefect import flow

from understudy.errors import BudgetRefused, UnderstudyError
from understudy.flows.inner_run import inner_run
from understudy.flows.paid_run import check_ledger
from understudy.flows.run_in_words import tell_of_report
from understudy.flows.run_name import name_of_deployed
from understudy.flows.turns_in_folder import alone_in
from understudy.flows.worker_places import check_places
from understudy.runs.comparisons.report import Compared, complete_comparison, shortfall_of
from understudy.runs.comparisons.request import CompareRequest
from understudy.runs.comparisons.validated import Comparison, PlannedRun, charges_of, registered_comparison
from understudy.runs.registration import handed_over
from understudy.tasks.comparison import report_comparison
from understudy.tasks.engine.failures import closed_up
from understudy.tasks.engine.heartbeat import beating
from understudy.tasks.engine.run_record import OUT, SOURCES
from understudy.tasks.engine.tracking import add_to_parent, parent_run


@flow(name="compare", flow_run_name=name_of_deployed, persist_result=True, result_serializer="json")
def compare(request: CompareRequest) -> Compared:
    """Several methods, epsilons and seeds on the same private rows in, one internal report of all runs out."""
    with comparison_of(request) as (comparison, tracked):
        told = {run.cell.name: _ended(run) for run in comparison.runs}
        missing = {name: why for name, why in told.items() if why}
        cells, charges = tuple(run.cell for run in comparison.runs), charges_of(comparison)
        _track(tracked, request, charges)
        compared = report_comparison(request, cells, missing, charges)
        tell_of_report(tracked, compared.report)
        return complete_comparison(compared)


@contextmanager
def comparison_of(request: CompareRequest) -> Iterator[tuple[Comparison, str]]:
    """Validate and register all runs of a comparison; what happens inside belongs to its parent run, which is given."""
    with beating(), ExitStack() as stack:
        check_places(out=str(request.run.out))
        check_ledger()
        stack.enter_context(alone_in(str(request.run.out)))
        # What is wrong with a row is for the client's terminal: Prefect keeps the text of every error.
        comparison = closed_up("validate", lambda: registered_comparison(request))
        runs = comparison.runs
        key = hashlib.sha256(f"{request.model_dump_json()} {[run.plan.key for run in runs]}".encode()).hexdigest()
        with parent_run(key, f"compare {request.run.source}", parameters={"request": request}) as tracked:
            yield comparison, tracked


def _track(tracked: str, request: CompareRequest, charges: tuple[str, ...]) -> None:
    """Say in MLflow what the comparison was charged and where its report is."""
    origin = json.dumps([f"source:{request.run.source}@{charge}" for charge in charges])
    out = str(Path(request.run.out).expanduser().absolute())
    add_to_parent(tracked, tags={SOURCES: origin, OUT: out}, metrics={})


def _ended(run: PlannedRun) -> str:
    """Run the method's own flow unless its results are there; gives why there are none, empty where there are.

    One that fails does not keep the others from running. A refused budget does: it would refuse them too.

    Raises:
        BudgetRefused: another process has spent what was there for this run.
    """
    cell = run.cell
    try:
        if not run.is_finished:
            with handed_over(cell.request, run.plan):
                inner_run(cell.method, cell.request, name=cell.name)
    except BudgetRefused:
        raise
    except UnderstudyError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}; the flow run of {cell.method} on the Prefect server says more"
    return shortfall_of(cell)
