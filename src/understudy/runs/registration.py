"""Registration: a validated run's source and rows become known to the ledger, and its checked rows are stored.

Nothing is charged yet. The command line registers before it starts the flow and hands the run plan over in memory; a
flow that Prefect started by itself validates and registers its request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from understudy.artifacts.access import ArtifactRef, private_store, write_table
from understudy.privacy import labels
from understudy.privacy.ledger.ledger import Ledger
from understudy.runs.evaluations.unregistered import take_over
from understudy.runs.handing_over import waiting
from understudy.runs.request import RunRequest
from understudy.runs.run_plan import RunPlan, match_of, run_key
from understudy.runs.validation import Validated, validate

# Run plans that this process registered for a flow it is about to start.
_HANDED_OVER: dict[tuple[str, str], RunPlan] = {}


def register(validated: Validated) -> RunPlan:
    """Register the source and its rows, store the rows, and complete the run plan with references to them.

    Raises:
        InputError: another process registered other facts of the source, or these rows, in the meantime: nothing is
            registered then.
    """
    ledger, source = Ledger.open(), validated.record.name
    ledger.register(validated.record, validated.row_digests, validated.client_digests)
    take_over(source, validated.row_digests)
    train, test = (
        _store_rows(ledger, source, kind, table)
        for kind, table in (("rows", validated.rows.train), ("test-rows", validated.rows.test))
    )
    key = run_key(validated.request, validated.plan.charged, train, test)
    # What is said before the charge depends on what was registered by then: a resumed run would be another.
    return validated.plan.model_copy(update={"train": train, "test": test, "key": key, "notes": ()})


@contextmanager
def handed_over(request: RunRequest, plan: RunPlan) -> Iterator[None]:
    """Within it, a flow of this process with the same request takes this registered run plan, once."""
    key = plan.method, request.model_dump_json()
    with waiting(_HANDED_OVER, key, plan):
        yield


def registered(request: RunRequest, method: str) -> RunPlan:
    """The run plan of a flow's request: the one handed over, or one made here.

    Raises:
        InputError: the user's input is wrong; nothing was registered then.
        BudgetRefused: the source's budget does not allow the charge.
    """
    handed = _HANDED_OVER.pop((method, request.model_dump_json()), None)
    return handed or register(validate(request, method))


def _store_rows(ledger: Ledger, source: str, kind: str, table: pa.Table) -> ArtifactRef:
    """Store checked rows, or find them: same content, same source, same random id."""
    match = match_of(ledger, source, kind, table)
    known = private_store().find_match(match)
    return known or write_table(table, kind=kind, label=labels.private(source), match=match)
