"""What the ledger keeps and hands out: sources, charges, key material."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NotRequired, Self, TypedDict

from pydantic import ConfigDict, Field, field_validator, model_validator

from understudy.errors import InputError, UnderstudyError
from understudy.frozen import Frozen
from understudy.privacy.labels import ACCOUNTANT, Guarantee, Label, Relation, Unit, private, released

if TYPE_CHECKING:
    # Only for its name: the accountants behind it take a second to import.
    from understudy.privacy.queries import Query

# Orders of a Renyi filter unless the source registers others.
RENYI_ORDERS: Final = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0)

_LONGEST_NAME: Final = 100
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_LONGEST_NAME - 1}}}")


class SourceRecord(Frozen):
    """A source: its name, what it protects, its budget, and what is public about it. Registered once."""

    name: str = Field(description="Letters, digits, . _ -; at most 100.")
    unit: Unit
    relation: Relation
    epsilon: float = Field(gt=0, allow_inf_nan=False, description="Budget of all runs together.")
    delta: float = Field(gt=0, lt=1, description="Budget of all runs together; below 1/n.")
    n: int = Field(ge=1, description="Number of units or an upper bound; public.")
    label_names: tuple[str, ...] | None = Field(default=None, description="Declared classes; public.")
    max_length: int | None = Field(default=None, ge=1, description="Maximum length of a text; public.")
    composition: Literal["sum", "renyi"] = "sum"
    renyi_orders: tuple[float, ...] = Field(
        default=(), description="Fixed orders > 1 of a Renyi filter; empty takes the standard ones."
    )
    disjoint_from: tuple[str, ...] = Field(
        default=(), description="Registered sources that no unit of this one is in, as its owner declares."
    )
    registered_at: str | None = Field(default=None, description="ISO 8601, UTC; set by the ledger.")

    @field_validator("disjoint_from")
    @classmethod
    def _in_order(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(set(value)))

    @model_validator(mode="before")
    @classmethod
    def _fill_orders(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("composition") == "renyi" and not data.get("renyi_orders"):
            return {**data, "renyi_orders": RENYI_ORDERS}
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.delta >= 1 / self.n:
            # Not a ValueError: pydantic lets it through as it is, with its exit code.
            raise InputError(
                f"--budget: expected a delta below 1/n = {1 / self.n:.6g}, found {self.delta:.6g}; name a smaller one"
            )
        if not _NAME.fullmatch(self.name):
            found = repr(self.name) if len(self.name) <= _LONGEST_NAME else f"{len(self.name)} characters"
            raise InputError(
                f"source name (--source): expected at most {_LONGEST_NAME} letters, digits, . _ -, the first a letter "
                f"or a digit, found {found}; name another"
            )
        if (self.composition == "renyi") != bool(self.renyi_orders):
            raise ValueError("renyi_orders belong to composition='renyi' and to no other")
        if not all(1 < order < math.inf for order in self.renyi_orders):
            raise ValueError(f"expected finite orders > 1, found renyi_orders={self.renyi_orders}")
        return self


class ChargeFields(TypedDict):
    """The keyword arguments of `Ledger.reserve`."""

    source: str
    request_key: str
    queries: str
    epsilon: float
    delta: float
    epsilon_rdp: float
    unit: Unit
    relation: Relation
    code_digest: str
    accountant: NotRequired[str]
    simulation: NotRequired[bool]


class ChargeRequest(Frozen):
    """What a run asks the ledger for, before it reads its first private byte."""

    source: str
    request_key: str = Field(min_length=1)
    queries: str = Field(description="Canonical JSON of the list of everything that the run asks private rows.")
    epsilon: float = Field(gt=0, description="Infinity for a run whose output stays private.")
    delta: float = Field(ge=0, lt=1)
    epsilon_rdp: float = Field(ge=0, description="The cross-check, infinity included.")
    unit: Unit
    relation: Relation
    code_digest: str
    accountant: str = Field(default=ACCOUNTANT, min_length=1)
    simulation: bool = Field(default=False, description="The user gave the noise seed: never exported.")

    @field_validator("queries")
    @classmethod
    def _canonical(cls, value: str) -> str:
        from understudy.privacy.queries import queries_from_json, queries_to_json

        try:
            found = queries_to_json(queries_from_json(value))
        except UnderstudyError as error:
            raise ValueError(str(error)) from None
        if found != value:
            raise ValueError("expected the list of queries as queries_to_json writes it")
        return value

    @field_validator("epsilon", "epsilon_rdp")
    @classmethod
    def _not_nan(cls, value: float) -> float:
        if math.isnan(value):
            raise ValueError("expected a number or infinity, found nan")
        return value

    @property
    def counted(self) -> bool:
        """Whether it spends budget; otherwise its output stays private."""
        return math.isfinite(self.epsilon) and not self.simulation


class Charge(Frozen):
    """One charge of the ledger. It never holds the salt."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    id: str
    source: str
    request_key: str
    attempt: int
    kind: Literal["counted", "internal"]
    queries: str
    epsilon: float
    delta: float
    unit: Unit
    relation: Relation
    accountant: str
    epsilon_rdp: float
    status: Literal["reserved", "released"]
    simulation: bool
    key_id: str
    code_digest: str
    created_at: str
    released_at: str | None
    environment: str | None = Field(default=None, description="What its bytes depend on; set once, as it is made.")
    new: bool = Field(description="True if this very call made it.")
    resumable: bool = Field(default=True, description="False once its salt is erased: no noise can be drawn any more.")

    @property
    def event(self) -> str:
        """The canonical JSON of the event that the queries amount to."""
        from understudy.privacy.events import event_to_json
        from understudy.privacy.queries import event_of, queries_from_json

        return event_to_json(event_of(queries_from_json(self.queries)))

    @property
    def exportable(self) -> bool:
        """Whether outputs under this charge may leave: it was counted and its noise is secret."""
        return self.kind == "counted" and not self.simulation

    def guarantee(self) -> Guarantee:
        """What this charge promises to one unit of its source.

        Raises:
            UnderstudyError: for an internal charge or a simulation, which promise nothing.
        """
        if not self.exportable:
            raise UnderstudyError(f"charge {self.id} promises nothing: {self.kind}, simulation={self.simulation}")
        promised = {name: getattr(self, name) for name in Guarantee.model_fields if name != "charge_id"}
        return Guarantee(charge_id=self.id, **promised)

    def label(self) -> Label:
        """The label of what mechanisms put out under this charge: private if it was not counted."""
        return released(self.guarantee()) if self.exportable else private(self.source)


def disjoint_sources(name: str, records: Iterable[SourceRecord]) -> frozenset[str]:
    """The sources that were declared to have no unit in common with one, whichever of the two was registered later."""
    by_name = {record.name: frozenset(record.disjoint_from) for record in records}
    return by_name.get(name, frozenset()) | {other for other, declared in by_name.items() if name in declared}


@dataclass(frozen=True, repr=False)
class KeyMaterial:
    """What the noise of one charge is derived from, and what it may be drawn for. Never written, logged or shown.

    Attributes:
        secret: private; of the client zone, under which the charge was made.
        charge_id: public.
        salt: private; of the charge.
        queries: public; everything that the charge pays for.
    """

    secret: bytes
    charge_id: str
    salt: bytes
    queries: tuple[Query, ...]

    def __repr__(self) -> str:
        """Names the charge only, so that no log line or traceback shows a key."""
        return f"KeyMaterial(charge_id={self.charge_id!r})"
