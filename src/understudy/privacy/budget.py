"""Admission of a charge to a source's budget: what the charges so far leave.

`sum`: the sums of epsilons and of deltas stay within the budget. Valid however later charges depend on
earlier outputs (Rogers, Roth, Ullman & Vadhan 2016: basic composition, parameters chosen adaptively).

`renyi`: a filter at orders a_1..a_k fixed when the source is registered. At one order, stopping before the
sum of Renyi bounds exceeds B keeps the whole interaction (a, B)-RDP even if parameters were chosen adaptively
(Feldman & Zrnic 2021). With B_j = epsilon - ln(k / delta) / (a_j - 1), its privacy loss then exceeds epsilon
with probability at most delta / k (Markov's inequality, as in Mironov 2017, Proposition 3). We go on while
some order has budget left. Such a run agrees with what that order's filter alone would have let pass, so its
loss exceeds epsilon only where one of those k interactions does: probability at most delta, hence
(epsilon, delta)-DP. The union bound over k is the price for not committing to a single order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from understudy.errors import BudgetRefused
from understudy.privacy.ledger_records import SourceRecord

# Sums of floats that should meet the budget exactly may miss it by rounding, never by more than this.
_TOLERANCE: Final = 1e-9


class Cost(NamedTuple):
    """What one charge costs; `curve` holds its Renyi bounds at the source's orders, empty under `sum`."""

    epsilon: float
    delta: float
    curve: tuple[float, ...] = ()


def spent(source: SourceRecord, costs: Sequence[Cost]) -> tuple[float, float]:
    """The (epsilon, delta) that the charges so far add up to under the source's composition rule."""
    if source.composition == "sum" or not costs:
        return math.fsum(c.epsilon for c in costs), math.fsum(c.delta for c in costs)
    offsets = _offsets(source)
    sums = _sums(costs)
    return min(total + offset for total, offset in zip(sums, offsets, strict=True)), source.delta


def admit(source: SourceRecord, costs: Sequence[Cost], new: Cost) -> None:
    """Lets `new` join `costs`, or refuses it.

    Raises:
        BudgetRefused: with what was spent, is left and was asked.
    """
    used = spent(source, costs)
    if source.composition == "sum":
        after = spent(source, [*costs, new])
        fits = all(a <= b * (1 + _TOLERANCE) for a, b in zip(after, (source.epsilon, source.delta), strict=True))
    else:
        limits = [source.epsilon * (1 + _TOLERANCE) - offset for offset in _offsets(source)]
        fits = any(total <= limit for total, limit in zip(_sums([*costs, new]), limits, strict=True))
    if fits:
        return
    left = [max(0.0, budget - u) for budget, u in zip((source.epsilon, source.delta), used, strict=True)]
    rule = "" if source.composition == "sum" else ", by a Renyi filter that has one delta for all runs"
    raise BudgetRefused(
        f"source={source.name!r}: budget epsilon={source.epsilon:.6g}, delta={source.delta:.6g}{rule}; "
        f"spent epsilon={used[0]:.6g}, delta={used[1]:.6g}; left epsilon={left[0]:.6g}, delta={left[1]:.6g}; "
        f"asked epsilon={new.epsilon:.6g}, delta={new.delta:.6g}. Ask for no more than is left"
    )


def _offsets(source: SourceRecord) -> list[float]:
    """What turning a sum of Renyi bounds into epsilon adds at each order: ln(k / delta) / (order - 1)."""
    orders = source.renyi_orders
    return [math.log(len(orders) / source.delta) / (order - 1) for order in orders]


def _sums(costs: Sequence[Cost]) -> list[float]:
    return [math.fsum(values) for values in zip(*(c.curve for c in costs), strict=True)]
