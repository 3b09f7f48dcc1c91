"""Labels on artifacts: who may see a value, and what was paid for it.

A value is `public`, `private(source, ...)` or `released(source@charge, ...)`. Post-processing keeps a label;
joining two values joins their labels: private dominates, and the guarantees of released values are merged so
that one charge counts once however often its output is used. Labels are the program's own check; access
control is the separate stores and credentials per zone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from understudy.frozen import Frozen

Unit = Literal["example", "client"]
Relation = Literal["replace_special", "add_or_remove_one"]
ACCOUNTANT: Final = "PLD"  # By which the epsilon of a charge is met: privacy loss distributions.


class Guarantee(Frozen):
    """What one charge of the ledger promises to one unit of one source."""

    source: str = Field(min_length=1)
    charge_id: str = Field(min_length=1)
    unit: Unit
    relation: Relation
    epsilon: float = Field(ge=0, allow_inf_nan=False)
    delta: float = Field(ge=0, lt=1, allow_inf_nan=False)
    accountant: str = Field(min_length=1)


class Label(Frozen):
    """The label of one artifact; make it with `public`, `private` or `released`."""

    kind: Literal["public", "private", "released"]
    sources: tuple[str, ...] = ()
    guarantees: tuple[Guarantee, ...] = ()

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        expected = {
            "public": (False, False),
            "private": (True, False),
            "released": (False, True),
        }[self.kind]
        found = (bool(self.sources), bool(self.guarantees))
        if found != expected:
            raise ValueError(
                f"label kind={self.kind!r}: expected (has sources, has guarantees)={expected}, found {found}"
            )
        charges = [g.charge_id for g in self.guarantees]
        if len(set(charges)) != len(charges):
            raise ValueError(f"label names a charge twice: charges={charges}")
        return self

    def __str__(self) -> str:
        """`public`, `private(reviews)` or `released(reviews@CHARGE)`."""
        if self.kind == "public":
            return "public"
        if self.kind == "private":
            return f"private({', '.join(self.sources)})"
        return f"released({', '.join(f'{g.source}@{g.charge_id}' for g in self.guarantees)})"


def public() -> Label:
    """The label of a value that no private row has influenced.

    >>> str(public())
    'public'
    """
    return Label(kind="public")


def private(*sources: str) -> Label:
    """The label of a value that private rows of `sources` influenced outside a mechanism.

    >>> str(private("reviews", "clinic", "reviews"))
    'private(clinic, reviews)'

    Raises:
        ValueError: when no source or an empty name is given.
    """
    if not sources or not all(sources):
        raise ValueError(f"a private label needs the names of its sources, found {sources!r}")
    return Label(kind="private", sources=tuple(sorted(set(sources))))


def released(*guarantees: Guarantee) -> Label:
    """The label of a value that left through mechanisms paid for by `guarantees`.

    Raises:
        ValueError: when no guarantee is given, or one charge id comes with two different contents.
    """
    return Label(kind="released", guarantees=_merged(guarantees))


def join(*labels: Label) -> Label:
    """The label of a value computed from values with `labels`.

    Private dominates and keeps every source, also those only seen through released values. Otherwise the
    guarantees are merged, distinct by charge id. Commutative, associative and idempotent; `public()` is
    neutral.

    Raises:
        ValueError: when one charge id comes with two different contents.
    """
    guarantees = _merged(g for label in labels for g in label.guarantees)
    if any(label.kind == "private" for label in labels):
        return private(*(s for label in labels for s in label.sources), *(g.source for g in guarantees))
    return released(*guarantees) if guarantees else public()


def post_process(label: Label) -> Label:
    """The label after a computation that reads nothing private but this value: unchanged.

    Source: Dwork & Roth 2014, Proposition 2.1.
    """
    return label


def total(label: Label, source: str, *, disjoint: Collection[str] = ()) -> tuple[float, float]:
    """What a released value cost a unit of a source: the sum of (epsilon, delta) over distinct charges.

    A unit of one source may also be in another, so the charges of all sources add, except those of sources that were
    registered as disjoint from this one (basic composition; valid whatever the charges depended on).

    Args:
        label: the label to add up; a public one costs nothing.
        source: whose units.
        disjoint: names of sources that have no unit in common with it.

    Raises:
        ValueError: for a private label, whose cost has no bound, and for charges that may touch these units but protect
            different units or use different relations: their epsilons cannot be added.
    """
    if label.kind == "private":
        raise ValueError(f"expected a public or released label, found {label}: private values have no finite total")
    counted = [one for one in label.guarantees if one.source == source or one.source not in disjoint]
    kinds = sorted({(one.unit, one.relation) for one in counted})
    if len(kinds) > 1:
        raise ValueError(
            f"the charges that may touch source={source!r} have different units or relations: {kinds}; "
            "their epsilons cannot be added, so keep the artifacts apart or register the sources as disjoint"
        )
    # fsum is exact up to one rounding, so the total does not depend on the order of the charges.
    return math.fsum(one.epsilon for one in counted), math.fsum(one.delta for one in counted)


def _merged(guarantees: Iterable[Guarantee]) -> tuple[Guarantee, ...]:
    by_charge: dict[str, Guarantee] = {}
    for guarantee in guarantees:
        known = by_charge.setdefault(guarantee.charge_id, guarantee)
        if known != guarantee:
            raise ValueError(f"charge_id={guarantee.charge_id!r} has two different guarantees: {known} and {guarantee}")
    return tuple(sorted(by_charge.values(), key=lambda g: (g.source, g.charge_id)))
