"""What the runs of a comparison charge together, and whether a source's budget allows it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from understudy.errors import BudgetRefused, InputError
from understudy.frozen import not_in_keys
from understudy.methods import registry
from understudy.privacy.accounting import epsilon_pld, renyi_curve
from understudy.privacy.events import composed_event
from understudy.privacy.ledger.budget import Cost, admit, spent
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.privacy.queries import Queries, event_delta, event_of, masked_rounds
from understudy.runs.comparisons.request import Cell, CompareRequest
from understudy.runs.configuration import configure
from understudy.runs.run_plan import RunPlan

# Losses are rounded up to multiples of it: coarser than a charge's own, for a total that is shown and not charged.
_INTERVAL: Final = 1e-3


def check_early(
    request: CompareRequest, cells: Sequence[Cell], ledger: Ledger, found: SourceRecord, delta: float, *, is_new: bool
) -> None:
    """Refuse before a model is loaded what `check_total` would refuse after, which takes minutes for each run.

    What a Renyi filter adds up follows from the noise, which is not known yet.

    Args:
        request: what was asked for.
        cells: its runs.
        ledger: of this user.
        found: the source as registered, or with a budget for the time being.
        delta: of each run.
        is_new: the source is not registered yet.

    Raises:
        InputError: the total is no budget that a new source may have.
        BudgetRefused: with what was spent, is left and was asked.
    """
    costs = _least_costs(cells, delta)
    if not costs or found.composition != "sum":
        return
    accepts_new = request.run.accept_new_charge
    of_others = [] if accepts_new else [(charge.epsilon, charge.delta) for charge in ledger.charges(found.name)]
    # Each may be one of these runs, made again.
    earlier = Counter(of_others)
    new = []
    for cost in costs:
        if earlier[cost.epsilon, cost.delta] > 0:
            earlier[cost.epsilon, cost.delta] -= 1
        else:
            new.append(cost)
    record = new_source(request, found, new) if is_new else found
    check_total(ledger, record, new, accepts_new=accepts_new, at_least=len(new) < len(costs))


def _least_costs(cells: Sequence[Cell], delta: float) -> list[Cost]:
    """What is charged at least if nothing was before: runs that differ in what no private row meets share a charge."""
    apart = {(cell.method, cell.epsilon, _charged(cell)) for cell in cells if math.isfinite(cell.epsilon)}
    return [Cost(epsilon, delta) for _, epsilon, _ in sorted(apart)]


def _charged(cell: Cell) -> str:
    """The settings of a run that its charge is known by, as they are asked for."""
    charged = registry.get(cell.method).charge.settings(configure(cell.request, cell.method))
    dumped: str = charged.model_dump_json(exclude=not_in_keys(charged))
    return dumped


def new_source(request: CompareRequest, found: SourceRecord, asked: Sequence[RunPlan | Cost]) -> SourceRecord:
    """The source as it will be on this first use: with the named budget, or all that the runs charge together.

    Raises:
        InputError: no run adds noise, or the total is no budget that a source may have.
    """
    budget = request.run.budget
    if budget is None and not asked:
        raise InputError(
            "--epsilon inf on a new source: expected --budget E,D, the total that later runs with noise may spend; "
            "these runs spend nothing of it"
        )
    if budget is not None:
        try:
            return SourceRecord.model_validate(found.model_dump() | {"epsilon": budget.epsilon, "delta": budget.delta})
        except InputError as error:
            found_wrong = str(error).removeprefix("--budget: ")
            raise InputError(f"--budget {budget.epsilon:g},{budget.delta:g}: {found_wrong}") from None
    epsilon, delta = sum_of(found, [Cost(plan.epsilon, plan.delta) for plan in asked])
    if delta >= 1 / found.n:
        fits = rounded_down(0.99 / found.n / len(asked))
        raise InputError(
            f"--delta: expected deltas that add up to less than 1/n = {1 / found.n:.3g}, found {len(asked)} charges "
            f"with {delta:.3g} in all; name --delta {fits} or less, or compare fewer runs"
        )
    return SourceRecord.model_validate(found.model_dump() | {"epsilon": epsilon, "delta": delta})


def cost_of(record: SourceRecord, plan: RunPlan) -> Cost:
    """What the charge of a run costs under the source's composition rule."""
    if record.composition == "sum":
        return Cost(plan.epsilon, plan.delta)
    curve = renyi_curve(event_of(plan.queries), record.renyi_orders)
    return Cost(plan.epsilon, plan.delta, curve, masked_rounds(plan.queries))


def sum_of(record: SourceRecord, costs: Sequence[Cost]) -> tuple[float, float]:
    """The sums, whatever the source adds up: never rounded down."""
    return spent(record.model_copy(update={"composition": "sum"}), costs)


def check_total(
    ledger: Ledger, record: SourceRecord, costs: Sequence[Cost], *, accepts_new: bool, at_least: bool = False
) -> None:
    """Refuse now what the ledger would refuse at one of the charges; the ledger's own check is the one that counts.

    Args:
        ledger: of this user.
        record: of the source.
        costs: of the charges to be made.
        accepts_new: also of those that were made before.
        at_least: there may be more of them.

    Raises:
        BudgetRefused: with what was spent, is left and was asked.
    """
    if not costs:
        return
    earlier = [*ledger.costs(record.name).values()]
    epsilon, delta = sum_of(record, costs)
    # Sums are compared as one; bounds of Renyi are added by the filter itself, charge after charge.
    whole = [Cost(epsilon, delta)] if record.composition == "sum" else list(costs)
    try:
        admit(record, [*earlier, *whole[:-1]], whole[-1])
    except BudgetRefused as error:
        left = (record.delta - sum_of(record, earlier)[1]) / len(costs)
        hint = f", or --delta {rounded_down(left)} or less" if left > 0 and max(c.delta for c in costs) > left else ""
        again = ", counting those made before once more, for --accept-new-charge" if accepts_new else ""
        many = f"{'at least ' if at_least else ''}{len(costs)} charges"
        raise BudgetRefused(
            f"this comparison makes {many}, epsilon={epsilon:.6g} and delta={delta:.3g} in all{again}: "
            f"{error}: name fewer methods, epsilons or seeds{hint}. Nothing was charged"
        ) from None


def pld_total(asked: Sequence[Queries], epsilon: float, delta: float) -> float | None:
    """Epsilon of all charges of a plan at the sum of their deltas, by PLD; None where it says no more than the sum."""
    if len(asked) < 2:
        return None
    import dp_accounting as dp

    left = event_delta([query for queries in asked for query in queries], epsilon=epsilon, delta=delta)
    if left <= 0:
        return None
    # Runs with other seeds ask alike.
    events = {repr(event): event for event in map(event_of, asked)}
    counts: Mapping[str, int] = Counter(repr(event_of(queries)) for queries in asked)
    parts = [dp.SelfComposedDpEvent(event, counts[name]) for name, event in events.items()]
    found = epsilon_pld(composed_event(*parts), left, interval=_INTERVAL)
    return found if found < epsilon else None


def rounded_down(value: float) -> str:
    """Two digits, never more than `value`.

    >>> rounded_down(2.0625e-4)
    '0.0002'
    """
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.floor(value / unit) * unit:.2g}"
