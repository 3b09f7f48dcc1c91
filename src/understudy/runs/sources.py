"""What a source allows a run: which unit its promise is about, which budget it has, and what is left of it."""

from __future__ import annotations

import math
from collections.abc import Callable

from pydantic import ValidationError

from understudy.errors import BudgetRefused, InputError
from understudy.methods.method import Protected
from understudy.privacy.accounting import default_delta
from understudy.privacy.ledger.budget import Cost, admit
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.runs.request import Budget, RunRequest, check_delta
from understudy.runs.split import SplitRows


def check_unit(known: SourceRecord | None, guarded: Protected) -> None:
    """Refuse a run whose promise is about other units than the source's."""
    if known is not None and (known.unit, known.relation) != (guarded.unit, guarded.relation):
        raise InputError(
            f"source {known.name!r} is registered per {known.unit} ({known.relation}), this run protects each "
            f"{guarded.unit} ({guarded.relation}), and neither promise implies the other; use a method or variant "
            f"that protects each {known.unit}"
        )


def delta_of(request: RunRequest, *, n: int) -> float:
    """The delta of a run on so many units: as asked for, or 1/(n ln n).

    Raises:
        InputError: it is out of range, or there are too few units for any.
    """
    return check_delta(default_delta(n) if request.delta is None else request.delta, n=n)


def source_record(
    request: RunRequest,
    known: SourceRecord | None,
    found: SplitRows,
    guarded: Protected,
    *,
    epsilon: float,
    delta: float,
    is_part: bool = False,
) -> tuple[SourceRecord, list[str]]:
    """The source as registered, or as it will be on this first use.

    The budget of a new source that a run `is_part` of several on is a placeholder without `--budget`: whoever asks for
    all of them knows what they cost together.
    """
    if known is not None:
        if request.budget is not None and (request.budget.epsilon, request.budget.delta) != (
            known.epsilon,
            known.delta,
        ):
            raise InputError(
                f"--budget {request.budget.epsilon:g},{request.budget.delta:g}: source {known.name!r} is registered "
                f"with {known.epsilon:g},{known.delta:g}, which cannot be changed; leave --budget out"
            )
        return known, []
    budget, notes = request.budget, []
    if budget is None and is_part:
        budget = Budget(epsilon=1.0 if math.isinf(epsilon) else epsilon, delta=delta)
    if budget is None:
        if epsilon == float("inf"):
            kind = "--epsilon inf" if request.epsilon is not None else "a run without --epsilon"
            raise InputError(
                f"{kind} on a new source: expected --budget E,D, the total that later runs with noise may spend; this "
                "one spends nothing of it"
            )
        budget = Budget(epsilon=epsilon, delta=delta)
        notes = [
            f"first use of {request.source!r}: this run's epsilon={epsilon:g}, delta={delta:.3g} become its budget, "
            f"for each {guarded.unit} ({guarded.relation})"
        ]
    try:
        record = SourceRecord(
            name=request.source,
            unit=guarded.unit,
            relation=guarded.relation,
            epsilon=budget.epsilon,
            delta=budget.delta,
            n=found.units,
            # Read from the rows, the list is a disclosure of this run, not a declaration for every later one.
            label_names=None if found.labels_from_data else found.label_names or None,
        )
    except ValidationError as error:
        raise InputError(f"source {request.source!r}: {error.errors()[0]['msg']}") from None
    return record, notes


def check_budget(
    ledger: Ledger, record: SourceRecord, *, epsilon: float, delta: float, is_default_delta: bool = False
) -> None:
    """Refuse now what the ledger would refuse later; the ledger's own check is the one that counts.

    Args:
        ledger: of this user.
        record: of the source, registered or not.
        epsilon: of the run.
        delta: of the run.
        is_default_delta: the user named none, so that the refusal says where it comes from.

    Raises:
        BudgetRefused: with what was spent, is left and was asked.
    """
    if math.isinf(epsilon) or record.composition != "sum":
        return
    known = any(source.name == record.name for source in ledger.sources())
    spent = [Cost(*ledger.spent(record.name))] if known else []
    admit(record, spent, Cost(epsilon, delta), is_default_delta=is_default_delta)


def unless_charged(look: Callable[[], None], is_charged: Callable[[], bool]) -> None:
    """Look at the budget; a refusal does not count where this very run may be what used it up.

    The look comes first: a run that another process charges meanwhile is then found by the second question.

    Args:
        look: `check_budget`.
        is_charged: whether a charge may be this run's.

    Raises:
        BudgetRefused: by the look, and nothing is charged that may be this run.
    """
    try:
        look()
    except BudgetRefused:
        if not is_charged():
            raise


def may_be_charged(ledger: Ledger, source: str, *, epsilon: float, delta: float) -> bool:
    """Whether a charge of the source is as large as this run's, which may then be that very one, made again."""
    return any((charge.epsilon, charge.delta) == (epsilon, delta) for charge in ledger.charges(source))
