"""Preflight: everything that can be refused is refused here, before Prefect starts and before anything is charged.

`check` reads and judges a request and stores nothing. `admit` does the same, then registers the source and its rows
and stores the checked rows as private artifacts. Both return the same public facts, so a dry run, the command line
and the flow agree on what a run is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from understudy.artifacts.access import ArtifactRef, exchange_store, private_store, write_table
from understudy.data import tables
from understudy.errors import InputError
from understudy.methods.method import CONFIGS, AnyConfig, Protected, check_method, planning, protected
from understudy.privacy import labels
from understudy.privacy.accounting import default_delta
from understudy.privacy.labels import Relation, Unit
from understudy.privacy.ledger.budget import Cost
from understudy.privacy.ledger.budget import admit as admit_cost
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.runs.checks import before_charge
from understudy.runs.folders import check_folder
from understudy.runs.overrides import apply_overrides
from understudy.runs.request import Budget, RunRequest, check_delta, check_epsilon
from understudy.runs.split import Intake, take_in


class Admission(BaseModel):
    """What is public about an admitted run, and references to its private rows."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    source: str
    budget: Budget = Field(description="Of the source, over all its runs.")
    unit: Unit
    relation: Relation
    n: int = Field(description="Declared number of units, an upper bound of those there are; public.")
    label_names: tuple[str, ...]
    labels_from_data: bool = Field(
        default=False, description="The label list was read from private rows and is published without any guarantee."
    )
    epsilon: float
    delta: float
    config: AnyConfig
    notes: tuple[str, ...] = Field(default=(), description="What was assumed or handled; shown to the user.")
    train: ArtifactRef | None = Field(default=None, description="Set by `admit`.")
    test: ArtifactRef | None = Field(default=None, description="Set by `admit`; for measuring only.")


@dataclass(frozen=True)
class _Inspection:
    """Private tables beside their public admission; never leaves this module."""

    admission: Admission
    record: SourceRecord
    intake: Intake
    row_digests: list[bytes]
    client_digests: list[bytes]


def configure(request: RunRequest, method: str) -> AnyConfig:
    """The method's settings: profile, then --model and --samples, then each --set.

    Raises:
        InputError: when there is no such method, or an override names an unknown setting or a value out of bounds.
    """
    shortcuts = [f"model={request.model}"] if request.model else []
    shortcuts += [f"samples={request.samples}"] if request.samples is not None else []
    plain: AnyConfig = CONFIGS[check_method(method)](profile=request.profile)
    return apply_overrides(plain, [*shortcuts, *request.overrides])


def check(request: RunRequest, method: str) -> Admission:
    """Judge a request; stores, registers and charges nothing.

    Raises:
        InputError: the user's input is wrong; the message says what was expected and how to mend it.
        BudgetRefused: the source's budget does not allow the charge.
    """
    return _inspect(request, method, Ledger.open()).admission


def admit(request: RunRequest, method: str) -> Admission:
    """Judge a request, register its source and rows, and store the checked rows; charges nothing yet.

    Raises:
        InputError: as `check`; nothing was registered then.
        BudgetRefused: as `check`.
    """
    ledger = Ledger.open()
    found = _inspect(request, method, ledger)
    ledger.register(found.record)
    ledger.register_rows(found.record.name, found.row_digests, found.client_digests)
    train, test = (
        _store_rows(ledger, found.record.name, kind, table)
        for kind, table in (("rows", found.intake.train), ("test-rows", found.intake.test))
    )
    return found.admission.model_copy(update={"train": train, "test": test})


def _store_rows(ledger: Ledger, source: str, kind: str, table: pa.Table) -> ArtifactRef:
    """Store checked rows, or find them: same content, same source, same random id."""
    match = ledger.hmac(source, kind.encode() + b"\0" + tables.canonical_digest(table))
    known = private_store().find_match(match)
    return known or write_table(table, kind=kind, label=labels.private(source), match=match)


def _inspect(request: RunRequest, method: str, ledger: Ledger) -> _Inspection:
    epsilon = check_epsilon(request.epsilon)
    check_folder(Path(request.out).expanduser(), exports=math.isfinite(epsilon))
    config = configure(request, method)
    _check_stores()
    known = next((record for record in ledger.sources() if record.name == request.source), None)
    guarded = protected(config)
    _check_unit(known, guarded)
    found = take_in(request, guarded.rows, known, keyed_hash=partial(ledger.keyed_hash, request.source))
    delta = check_delta(request.delta if request.delta is not None else default_delta(found.units), n=found.units)
    base = planning(method).check_model(config.model_copy(update={"model_digest": ""}), found.label_names)
    before_charge(Path(request.out).expanduser(), base)
    record, budget_note = _source_record(request, known, found, guarded, epsilon=epsilon, delta=delta)
    digests, clients = tables.row_digests(found.whole), tables.client_digests(found.whole)
    ledger.check_rows(request.source, digests, clients)
    admission = Admission(
        source=record.name,
        budget=Budget(epsilon=record.epsilon, delta=record.delta),
        unit=guarded.unit,
        relation=guarded.relation,
        n=found.units,
        label_names=found.label_names,
        labels_from_data=found.labels_from_data,
        epsilon=epsilon,
        delta=delta,
        config=config.model_copy(update={"model_digest": base.digest}),
        notes=(*found.notes, *base.notes, *budget_note),
    )
    if not (known and _is_charged(ledger, admission, found.train) and not request.accept_new_charge):
        _check_budget(ledger, record, known is not None, admission)
    return _Inspection(admission, record, found, digests, clients)


def _check_stores() -> None:
    """Open both stores, so that one that cannot be written is refused before anything is charged."""
    for store in (private_store(), exchange_store()):
        store.check_writable()


def _check_unit(known: SourceRecord | None, guarded: Protected) -> None:
    """Refuse a run whose promise is about other units than the source's."""
    if known is not None and (known.unit, known.relation) != (guarded.unit, guarded.relation):
        raise InputError(
            f"source {known.name!r} is registered per {known.unit} ({known.relation}), this run protects each "
            f"{guarded.unit} ({guarded.relation}), and neither promise implies the other; use a method or variant "
            f"that protects each {known.unit}"
        )


def _source_record(
    request: RunRequest,
    known: SourceRecord | None,
    found: Intake,
    guarded: Protected,
    *,
    epsilon: float,
    delta: float,
) -> tuple[SourceRecord, list[str]]:
    """The source as registered, or as it will be on this first use."""
    if known is not None:
        if request.budget is not None and (request.budget.epsilon, request.budget.delta) != (
            known.epsilon,
            known.delta,
        ):
            raise InputError(
                f"--budget {request.budget.epsilon:g},{request.budget.delta:g}: source {known.name!r} is registered "
                f"with {known.epsilon:g},{known.delta:g}, which cannot be changed; leave --budget out"
            )
        return known, []
    budget, notes = request.budget, []
    if budget is None:
        if epsilon == float("inf"):
            raise InputError("--epsilon inf on a new source: expected --budget E,D, for inf cannot be a budget")
        budget = Budget(epsilon=epsilon, delta=delta)
        notes = [
            f"first use of {request.source!r}: this run's epsilon={epsilon:g}, delta={delta:.3g} become its budget"
        ]
    try:
        record = SourceRecord(
            name=request.source,
            unit=guarded.unit,
            relation=guarded.relation,
            epsilon=budget.epsilon,
            delta=budget.delta,
            n=found.units,
            # Read from the rows, the list is a disclosure of this run, not a declaration for every later one.
            label_names=None if found.labels_from_data else found.label_names or None,
        )
    except ValidationError as error:
        raise InputError(f"source {request.source!r}: {error.errors()[0]['msg']}") from None
    return record, notes


def request_key(ledger: Ledger, admission: Admission, train: pa.Table) -> str:
    """What makes two runs one charge (ADR 0005), as a keyed digest: it says nothing without the ledger's key.

    Args:
        ledger: gives the key.
        admission: the public part of the run.
        train: the checked rows that are trained on, private.
    """
    return ledger.request_key(
        admission.config.method,
        admission.source,
        tables.canonical_digest(train),
        repr((admission.epsilon, admission.delta, admission.n, admission.label_names)),
        planning(admission.config.method).charged_settings(admission.config).model_dump_json(),
    )


def _is_charged(ledger: Ledger, admission: Admission, train: pa.Table) -> bool:
    key = request_key(ledger, admission, train)
    return any(charge.request_key == key for charge in ledger.charges(admission.source))


def _check_budget(ledger: Ledger, record: SourceRecord, known: bool, admission: Admission) -> None:
    """Refuse now what the ledger would refuse later; the ledger's own check is the one that counts."""
    if admission.epsilon == float("inf"):
        return
    costs = [Cost(*ledger.spent(record.name))] if known else []
    if record.composition == "sum":
        admit_cost(record, costs, Cost(admission.epsilon, admission.delta))
