"""What the commands of the ledger, the zone keys and the secret do; imported only when one of them runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, Any, Final

from rich.table import Column, Table

from understudy.errors import InputError
from understudy.flows.commands.run import named, say_unknown_variables
from understudy.flows.commands.terminal import console, say, show
from understudy.quantities import LEAST_DELTA
from understudy.runs.request import LEAST_EPSILON, Budget, parse_budget

if TYPE_CHECKING:
    from understudy.privacy.ledger.ledger import Ledger, SourceRecord

# A float prints every decimal of so many digits as it is.
_DOWN: Final = Context(prec=15, rounding=ROUND_FLOOR)


def ledger_register(*, source: str, budget: str, declared: Mapping[str, Any], as_json: bool) -> None:
    """`understudy ledger register`; `declared` are its rows, unit, label names, composition and `disjoint_from`."""
    from pydantic import ValidationError

    from understudy.data.tables import declared_names
    from understudy.privacy.ledger.ledger import Ledger, SourceRecord

    relations = {"example": "replace_special", "client": "add_or_remove_one"}
    unit, label_names = declared["unit"], named(declared["label_names"])
    if unit not in relations:
        raise InputError(f"--unit {unit}: expected one of {', '.join(relations)}")
    total: Budget = parse_budget(budget)
    if total.epsilon < LEAST_EPSILON or total.delta < LEAST_DELTA:
        raise InputError(
            f"--budget {budget}: expected at least {LEAST_EPSILON:g},{LEAST_DELTA:g}, the least that a run spends; "
            "name a larger one, for it cannot be changed later"
        )
    try:
        record = SourceRecord.model_validate(
            {
                "name": source,
                "unit": unit,
                "relation": relations[unit],
                "epsilon": total.epsilon,
                "delta": total.delta,
                "n": declared["rows"],
                "label_names": None if label_names is None else declared_names(label_names),
                "composition": declared["composition"],
                "disjoint_from": tuple((declared["disjoint_from"] or "").replace(",", " ").split()),
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else "source"
        option = {"n": "--rows", "composition": "--composition"}.get(field, field)
        found = f" {declared[option.removeprefix('--')]}" if option != field else ""
        raise InputError(f"{option}{found}: {first['msg']}") from None
    say_unknown_variables()
    show(Ledger.open().register(record).model_dump(mode="json"), as_json=as_json, title="registered")


def ledger_show(*, source: str | None, as_json: bool) -> None:
    """`understudy ledger show`."""
    from understudy.privacy.ledger.ledger import Ledger
    from understudy.privacy.shown_cost import round_up

    ledger = Ledger.open()
    if source is not None:
        ledger.source(source)
    charges = ledger.charges(source)
    if not charges:
        say(f"note: no run has been charged{f' to source {source}' if source else ''}; {_sources_in_words(ledger)}")
    if as_json:
        console.print_json(json.dumps([charge.model_dump(mode="json", exclude={"new"}) for charge in charges]))
        return
    folded = [
        Column(name, overflow="fold") for name in ("epsilon", "delta", "unit", "relation", "by", "status", "source")
    ]
    table = Table(Column("charge", no_wrap=True), Column("made", no_wrap=True), *folded, box=None, padding=(0, 1, 0, 0))
    for charge in charges:
        # What stays private is not counted.
        status = charge.status if charge.kind == "counted" else f"{charge.status}, private"
        made = charge.created_at[:16].replace("T", " ")
        # As they were announced: never less than they are.
        epsilon, delta = round_up(charge.epsilon, digits=6), round_up(charge.delta, digits=3)
        cost, promise = (f"{epsilon:g}", f"{delta:g}"), (charge.unit, charge.relation, charge.accountant)
        table.add_row(charge.id, made, *cost, *promise, status, charge.source)
    if charges:
        console.print(table)
    for loss in ledger.losses():
        known = "an unknown number of" if loss["entries"] is None else f"{loss['entries']}"
        console.print(
            f"[bold]Entries were lost:[/bold] on {loss['at']} a loss was accepted, {loss['left']} of {known} entries "
            "were left. What the missing charges spent is not counted here."
        )


def ledger_budget(*, source: str | None, as_json: bool) -> None:
    """`understudy ledger budget`."""
    from understudy.privacy.ledger.ledger import Ledger

    ledger = Ledger.open()
    if source is not None:
        show(_spent_and_left(ledger, ledger.source(source)), as_json=as_json)
        return
    found = [_spent_and_left(ledger, record) for record in ledger.sources()]
    if as_json:
        console.print_json(json.dumps(found))
        return
    if not found:
        say(f"note: {_sources_in_words(ledger)}")
        return
    numbers = ("budget_epsilon", "spent_epsilon", "left_epsilon", "budget_delta", "spent_delta", "left_delta")
    columns = ("source", "unit", "relation", "accountant", *numbers)
    table = Table(*(Column(name.replace("_", " "), overflow="fold") for name in columns), box=None)
    for facts in found:
        table.add_row(*(str(facts[name]) for name in columns))
    console.print(table)


def _sources_in_words(ledger: Ledger) -> str:
    names = ", ".join(record.name for record in ledger.sources())
    return (
        f"registered sources: {names}"
        if names
        else "no source is registered yet: its first run with --budget does that"
    )


def _spent_and_left(ledger: Ledger, record: SourceRecord) -> dict[str, Any]:
    from understudy.privacy.labels import ACCOUNTANT

    epsilon, delta = ledger.spent(record.name)
    return {
        "source": record.name,
        "unit": record.unit,
        "relation": record.relation,
        "accountant": ACCOUNTANT if record.composition == "sum" else "RDP",
        "composition": record.composition,
        "budget_epsilon": record.epsilon,
        "budget_delta": record.delta,
        "spent_epsilon": epsilon,
        "spent_delta": delta,
        "disjoint_from": list(record.disjoint_from),
        "left_epsilon": _left(record.epsilon, epsilon),
        "left_delta": _left(record.delta, delta),
    }


def _left(total: float, used: float) -> float:
    """What a budget still has, of the numbers as they print: never more than that, so a run that asks for it is met.

    >>> _left(8.0, 7.1), _left(0.01, 0.001), _left(1.0, 2.0)
    (0.9, 0.009, 0.0)
    """
    # 0.0 comes first: rounded down, the difference of equal numbers is -0.0, and of equal ones `max` takes the first.
    return max(0.0, float(_DOWN.subtract(Decimal(repr(total)), Decimal(repr(used)))))


def ledger_accept_loss(*, as_json: bool) -> None:
    """`understudy ledger accept-loss`."""
    from understudy.privacy.ledger.upkeep import accept_ledger_loss

    show(dict(accept_ledger_loss()), as_json=as_json, title="loss accepted")


def keys_show(*, as_json: bool) -> None:
    """`understudy keys show`."""
    from understudy.artifacts.zone_keys import own_keys

    show({f"{key.zone}_zone": key.public.text for key in own_keys()}, as_json=as_json)


def keys_trust(*, key: str, as_json: bool) -> None:
    """`understudy keys trust`."""
    from understudy.artifacts.zone_keys import trust

    show({"trusted": trust(key).text}, as_json=as_json)


def secret_rotate(*, as_json: bool) -> None:
    """`understudy secret rotate`."""
    from understudy.privacy.ledger.upkeep import rotate_stored_secret

    show({"secret": "replaced", "key_id": rotate_stored_secret()}, as_json=as_json)
