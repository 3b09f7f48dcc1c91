"""Whether what a run asks for was paid for already, under a key that only another version of Understudy gave it.

The environment that a charge is bound to also says what was asked for (`run_plan.asked_key_of`, ADR 0005).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Final

from understudy.errors import UnderstudyError
from understudy.privacy.ledger.ledger import Charge

ASKED: Final = "asked"  # of the parts of an environment, what was asked for
_PAID = (
    "paid for what this run asks for, but settings that the request leaves to Understudy are not what they were then: "
    "this version has others, or found others on this machine. Computing it would be a new release"
)
_MAY_HAVE_PAID = (
    "asked the same of its rows under an earlier version, which did not note for which request. If it was this one, "
    "computing it would be a new release"
)


def parts_of(stored: str | None) -> dict[str, str]:
    """What the ledger keeps of an environment, by name; empty for a charge of before parts were named."""
    try:
        return dict(json.loads(stored or "{}"))
    except ValueError:
        return {}


def paid_before(charges: Sequence[Charge], *, key: str, asked: str, price: tuple[str, float, float]) -> str:
    """Which charge paid for a run, or may have, though it is not the run's own; in words, or nothing.

    Args:
        charges: of the source, oldest first.
        key: `run_plan.key_of` the run.
        asked: `run_plan.asked_key_of` the run.
        price: its queries as JSON, epsilon and delta.
    """
    if any(charge.request_key == key for charge in charges):
        return ""
    noted = {charge.id: parts_of(charge.environment).get(ASKED) for charge in charges if charge.environment}
    again = [charge for charge in charges if noted.get(charge.id) == asked]
    alike = [one for one in charges if one.id in noted and (one.queries, one.epsilon, one.delta) == price]
    if again:
        last, why = again[-1], _PAID
    elif alike and not any(noted[one.id] for one in alike):
        last, why = alike[-1], _MAY_HAVE_PAID
    else:
        return ""
    return (
        f"charge {last.id} of source {last.source!r} {why}: keep what that charge exported, "
        f"{paid_again(last.epsilon)} with --accept-new-charge, or go back to the version that made it"
    )


def paid_again(epsilon: float) -> str:
    """What another charge of the same run costs, as an imperative.

    >>> paid_again(3.0), paid_again(math.inf)
    ('pay epsilon=3 once more', 'compute it anew, which spends nothing of the budget,')
    """
    if math.isinf(epsilon):
        return "compute it anew, which spends nothing of the budget,"
    return f"pay epsilon={epsilon:g} once more"


def refuse_paid(said: str, *, accepts_new: bool) -> None:
    """Ask before what was paid for is paid for again.

    Raises:
        UnderstudyError: with what `paid_before` said, unless that is nothing, or the user wants to pay.
    """
    if said and not accepts_new:
        raise UnderstudyError(said)
