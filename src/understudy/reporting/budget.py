"""The source's budget as the report shows it: spent before, this run, left.

What is spent is rounded up and what is left is rounded down: the picture never flatters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from understudy.frozen import Frozen
from understudy.privacy.shown_cost import round_up
from understudy.reporting import text_formatting


class BudgetUse(Frozen):
    """What the source's budget is, and what was spent of it.

    Attributes:
        epsilon: total epsilon of the source.
        delta: total delta of the source.
        epsilon_before: spent or reserved before this run.
        delta_before: likewise.
        epsilon_run: this run's charge; 0 when a stored result was used again.
        delta_run: likewise.
    """

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(gt=0, lt=1)
    epsilon_before: float = Field(ge=0, allow_inf_nan=False)
    delta_before: float = Field(ge=0, lt=1)
    epsilon_run: float = Field(ge=0, allow_inf_nan=False)
    delta_run: float = Field(ge=0, lt=1)


def budget_of(statement: Mapping[str, Any]) -> BudgetUse | None:
    """The budget as the statement tells it, this run apart from what was spent before; None when it does not."""
    budget, run = statement.get("budget"), statement.get("this_run")
    if not isinstance(budget, Mapping) or not isinstance(run, Mapping):
        return None
    total, spent, this = (
        [text_formatting.as_float(of.get(f"{prefix}{key}")) for key in ("epsilon", "delta")]
        for of, prefix in ((budget, ""), (budget, "spent_"), (run, ""))
    )
    # A run that promises nothing (no epsilon) spent nothing either.
    epsilon_run, delta_run = (this[0], this[1] or 0.0) if this[0] is not None else (0.0, 0.0)
    if total[0] is None or total[1] is None or spent[0] is None or spent[1] is None:
        return None
    return BudgetUse(
        epsilon=total[0],
        delta=total[1],
        epsilon_before=max(0.0, spent[0] - epsilon_run),
        delta_before=max(0.0, spent[1] - delta_run),
        epsilon_run=epsilon_run,
        delta_run=delta_run,
    )


def budget_bar(budget: BudgetUse) -> dict[str, Any]:
    """Shares of the budget for the bar, and the numbers beside it."""

    def part(name: str, key: str, epsilon: float, delta: float) -> dict[str, Any]:
        return {
            "name": name,
            "key": key,
            "share": round(100 * max(0.0, min(1.0, epsilon / budget.epsilon)), 3),
            "epsilon": text_formatting.number(epsilon),
            "delta": text_formatting.number(delta),
        }

    # Never flattering: what is spent is rounded up, what is left is rounded down.
    left = budget.epsilon - budget.epsilon_before - budget.epsilon_run
    delta_left = budget.delta - budget.delta_before - budget.delta_run
    return {
        "parts": [
            part("Spent before", "before", round_up(budget.epsilon_before), round_up(budget.delta_before)),
            part("This run", "run", round_up(budget.epsilon_run), round_up(budget.delta_run)),
            part("Left", "left", _rounded_down(left), _rounded_down(delta_left)),
        ],
        "epsilon": text_formatting.number(budget.epsilon),
        "delta": text_formatting.number(budget.delta),
    }


def _rounded_down(value: float) -> float:
    """To four digits, and to zero where a sum of floats misses zero by a rounding error."""
    return 0.0 if value < 1e-12 else -round_up(-value)
