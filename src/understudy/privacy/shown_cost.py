"""Epsilon and delta as they are shown: never less than they are, and never without what they are of."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal

from understudy.privacy.labels import ACCOUNTANT, Relation, Unit


def round_up(value: float, *, digits: int = 4) -> float:
    """The least float >= value with so many significant digits; infinity stays.

    >>> round_up(2.99951), round_up(3.0), round_up(1e-5)
    (3.0, 3.0, 1e-05)
    """
    if not math.isfinite(value) or value == 0:
        return value
    # The shortest decimal that is this very float; rounding it up and back keeps the order.
    return float(Context(prec=digits, rounding=ROUND_CEILING).plus(Decimal(repr(float(value)))))


def cost_in_words(epsilon: float, delta: float, *, unit: Unit, relation: Relation, accountant: str = ACCOUNTANT) -> str:
    """What is charged, and for what, as it is announced: never less than it is.

    >>> cost_in_words(0.1 + 0.2, 3.001e-4, unit="client", relation="add_or_remove_one")
    'epsilon=0.300001, delta=0.000301 for one client (add_or_remove_one, PLD)'
    """
    cost = f"epsilon={round_up(epsilon, digits=6):g}, delta={round_up(delta, digits=3):g}"
    return f"{cost} for one {unit} ({relation}, {accountant})"
