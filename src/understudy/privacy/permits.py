"""What the mechanism interface lets through: the calls on the list of queries that the charge stores, and no others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NoReturn

from understudy.errors import UnderstudyError

if TYPE_CHECKING:
    from understudy.privacy.ledger.records import KeyMaterial


def check_mask(material: KeyMaterial, *, step: int, name: str, units: int, probability: float) -> None:
    """Let a Poisson mask pass if a query of the charge is taken on it at this step.

    Raises:
        UnderstudyError: when none is, or it is charged with another number of units or another probability.
    """
    for query in material.queries:
        if (query.batch, query.units, query.sampling_probability) == (name, units, probability) and step in range(
            query.steps
        ):
            return
    _refuse(material, f"the mask {name!r}, {step=}, {units=}, {probability=}")


def check_query(
    material: KeyMaterial,
    *,
    kind: str,
    step: int,
    name: str,
    asked: Mapping[str, float],
    masks: Collection[str],
) -> None:
    """Let a query pass if the charge paid for exactly it.

    Args:
        material: of the charge.
        kind: of the mechanism.
        step: logical step.
        name: of the query.
        asked: field of `Query` -> what the caller holds it to be.
        masks: names of the masks that were drawn for this step.

    Raises:
        UnderstudyError: when kind, name, step or a field differs, or the mask that it is charged on was not drawn.
    """
    found = next((query for query in material.queries if (query.kind, query.name) == (kind, name)), None)
    differ = found is None or any(getattr(found, field) != value for field, value in asked.items())
    if found is None or differ or step not in range(found.steps):
        fields = "".join(f", {field}={value!r}" for field, value in asked.items())
        _refuse(material, f"the {kind} {name!r}, {step=}{fields}")
    if found.batch is not None and found.batch not in masks:
        _refuse(material, f"the {kind} {name!r}, {step=}, without its mask {found.batch!r}")


def _refuse(material: KeyMaterial, call: str) -> NoReturn:
    paid = "; ".join(
        f"{q.kind} {q.name!r} of {q.units} units, steps 0 to {q.steps - 1}, sensitivity {q.sensitivity!r}, noise "
        f"multiplier {q.noise_multiplier!r}, mask {q.batch!r} with probability {q.sampling_probability!r}"
        for q in material.queries
    )
    raise UnderstudyError(
        f"{call} is not what charge {material.charge_id} paid for ({paid}); nothing was drawn. Put the query into the "
        "method's list of queries and run again: it is charged before it is asked"
    )
