"""Admission of a charge to a source's budget: what the charges so far leave.

`sum`: the sums of epsilons and of deltas stay within the budget. Valid however later charges depend on
earlier outputs (Rogers, Roth, Ullman & Vadhan 2016: basic composition, parameters chosen adaptively).

`renyi`: a filter at orders a_1..a_k fixed when the source is registered. At one order, stopping before the
sum of Renyi bounds exceeds B keeps the whole interaction (a, B)-RDP even if parameters were chosen adaptively
(Feldman & Zrnic 2021). With B_j = epsilon - ln(k / delta) / (a_j - 1), its privacy loss then exceeds epsilon
with probability at most delta / k (Markov's inequality, as in Mironov 2017, Proposition 3). We go on while
some order has budget left. Such a run agrees with what that order's filter alone would have let pass, so its
loss exceeds epsilon only where one of those k interactions does: probability at most delta, hence
(epsilon, delta)-DP. The union bound over k is the price for not committing to a single order. Masked sums are not quite
the Gaussian mechanisms that the bounds are of: what `delta_correction` says of all their rounds at the budget's epsilon
is taken off delta first.

Sums are exact and compared without any tolerance. An epsilon or a delta stands for the shortest decimal that prints it,
which is what was typed and what the statement shows: ten charges of 0.8 fit a budget of 8, three of 0.1 one of 0.3, and
not one unit of the last place more. Renyi bounds are computed values: they stand for themselves, and what is added to
them is rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_FLOOR, Context, Decimal, Inexact
from functools import reduce
from typing import Final, NamedTuple

from understudy.errors import BudgetRefused
from understudy.privacy.labels import ACCOUNTANT
from understudy.privacy.ledger.records import SourceRecord

# More digits than any sum of floats has; it would raise rather than round.
_EXACT: Final = Context(prec=2000, traps=[Inexact])
_SIX_DIGITS_DOWN: Final = Context(prec=6, rounding=ROUND_FLOOR)


class Cost(NamedTuple):
    """What one charge costs; `curve` holds its Renyi bounds at the source's orders, empty under `sum`.

    `masked_rounds` is how many of its releases are masked sums, whose distance from their law its own delta covers.
    """

    epsilon: float
    delta: float
    curve: tuple[float, ...] = ()
    masked_rounds: int = 0


def spent(source: SourceRecord, costs: Sequence[Cost]) -> tuple[float, float]:
    """The (epsilon, delta) that the charges so far add up to under the source's composition rule; never rounded down.

    >>> source = SourceRecord(name="a", unit="example", relation="replace_special", epsilon=1, delta=1e-4, n=100)
    >>> spent(source, [Cost(0.1, 1e-5)] * 3)
    (0.3, 3e-05)
    """
    epsilon, delta = _spent(source, costs)
    return _up(epsilon), _up(delta)


def admit(source: SourceRecord, costs: Sequence[Cost], new: Cost, *, is_default_delta: bool = False) -> None:
    """Lets `new` join `costs`, or refuses it.

    Args:
        source: whose budget it is.
        costs: charged so far.
        new: asked for.
        is_default_delta: nobody asked for this delta; where it is what does not fit, the refusal says how to ask.

    Raises:
        BudgetRefused: with what was spent, is left and was asked.
    """
    budget = _exact(source.epsilon), _exact(source.delta)
    after = _spent(source, [*costs, new])
    if all(a <= b for a, b in zip(after, budget, strict=True)):
        return
    used = _spent(source, costs)
    left = [_shown_down(_EXACT.subtract(b, u)) for b, u in zip(budget, used, strict=True)]
    rule = f"a sum of {ACCOUNTANT}" if source.composition == "sum" else "a Renyi filter that has one delta for all runs"
    raise BudgetRefused(
        f"source={source.name!r}: budget epsilon={source.epsilon:.6g}, delta={source.delta:.6g} for each "
        f"{source.unit} ({source.relation}, by {rule}); spent epsilon={_up(used[0]):.6g}, "
        f"delta={_up(used[1]):.6g}; left epsilon={left[0]}, delta={left[1]}; asked epsilon={new.epsilon:.6g}, "
        f"delta={new.delta:.6g}. Ask for no more than is left"
        f"{_default_delta_note(left[1]) if is_default_delta and after[1] > budget[1] else ''}"
    )


def _default_delta_note(left: str) -> str:
    """Where a delta that was not asked for comes from, and how to ask for another."""
    said = ". This delta was not given, so it is the default 1/(n ln n)"
    return said if left == "0" else f"{said}; name a smaller one with --delta D, of at most {left}"


def _spent(source: SourceRecord, costs: Sequence[Cost]) -> tuple[Decimal, Decimal]:
    """The exact sums; a Renyi epsilon is infinite where no order carries the charges."""
    if source.composition == "sum" or not costs:
        return _sum(_exact(cost.epsilon) for cost in costs), _sum(_exact(cost.delta) for cost in costs)
    columns = zip(*(cost.curve for cost in costs), strict=True)
    offsets = _offsets(source, masked_rounds=sum(cost.masked_rounds for cost in costs))
    bounds = [
        _sum([*map(Decimal, column), offset])
        for column, offset in zip(columns, offsets, strict=True)
        if all(map(math.isfinite, column))
    ]
    return min(bounds, default=Decimal("Infinity")), _exact(source.delta)


def _exact(value: float) -> Decimal:
    """The number that a float was typed as."""
    return Decimal(repr(float(value)))


def _sum(values: Iterable[Decimal]) -> Decimal:
    return reduce(_EXACT.add, values, Decimal(0))


def _offsets(source: SourceRecord, *, masked_rounds: int) -> list[Decimal]:
    """What turning a sum of Renyi bounds into epsilon adds at each order: ln(k / delta) / (order - 1), rounded up."""
    orders, delta = source.renyi_orders, source.delta
    if masked_rounds:
        from understudy.privacy.secure_aggregation.accounting import NEGLIGIBLE, delta_correction

        # The product's rounding is far below a part in 10^12.
        delta -= (1 + 1e-12) * delta_correction(source.epsilon, gap=NEGLIGIBLE, rounds=masked_rounds)
    if delta <= 0:
        return [Decimal("Infinity")] * len(orders)
    found = []
    for order in orders:
        value = math.log(len(orders) / delta) / (order - 1)
        # Difference, quotient, logarithm and division err by less than a unit of the last place each, and by one more
        # as an error passes through the logarithm, whose value is above 1.
        for _ in range(6):
            value = math.nextafter(value, math.inf)
        found.append(Decimal(value))
    return found


def _up(value: Decimal) -> float:
    """The least float that prints as no less than `value`."""
    found = float(value)
    return found if math.isinf(found) or _exact(found) >= value else math.nextafter(found, math.inf)


def _shown_down(value: Decimal) -> str:
    """Six digits, never more than `value`, so that a request for what is shown is met; 0 if nothing is left."""
    return "0" if value <= 0 else f"{float(_SIX_DIGITS_DOWN.plus(value)):.6g}"
