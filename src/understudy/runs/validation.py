"""Validation: everything that can be refused is refused here, before Prefect starts and before anything is charged.

`validate` reads the request and its file once, checks both, and makes the run plan. It stores, registers and charges
nothing; what it read goes on to `registration` in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from understudy.artifacts.access import exchange_store, private_store
from understudy.data import tables
from understudy.errors import InputError, RowError, system_error_in_words
from understudy.hardware import chosen as chosen_compute
from understudy.methods import registry
from understudy.methods.method import Method, Promise, Protected
from understudy.models.folders import folder_digest, model_folder, parameter_count
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.privacy.ledger.records import Charge, disjoint_sources
from understudy.privacy.queries import check_epsilon_of, queries_to_json
from understudy.runs import finished_plans, public_tables
from understudy.runs.checks.before_charge import before_charge
from understudy.runs.comparisons.compared_before import with_comparisons
from understudy.runs.configuration import configure, profile_named
from understudy.runs.earlier_charges import paid_before
from understudy.runs.earlier_releases import earlier_releases, note_of
from understudy.runs.folders import check_folder, read_record
from understudy.runs.given_settings import given_settings
from understudy.runs.request import Budget, RunRequest, check_epsilon
from understudy.runs.run_plan import RunPlan, asked_key_of, match_of, request_key, run_key
from understudy.runs.sources import check_budget, check_unit, delta_of, may_be_charged, source_record, unless_charged
from understudy.runs.split import SplitRows, load_and_split

CheckAll = Callable[[SourceRecord, float], None]


@dataclass(frozen=True)
class Validated:
    """A run plan, and the private tables behind it, which go to registration and nowhere else."""

    request: RunRequest
    plan: RunPlan
    record: SourceRecord
    rows: SplitRows = field(repr=False)
    row_digests: list[bytes] = field(repr=False)
    client_digests: list[bytes] = field(repr=False)
    is_charged: bool = False
    is_finished: bool = False
    replaces: str = ""
    paid_before: str = ""


def _epsilon_of(request: RunRequest, chosen: Method[Any]) -> float:
    """The run's epsilon; infinity for one that has none.

    Raises:
        InputError: the epsilon is missing or out of range, or real rows are to be shared by a run that makes none.
    """
    optional = chosen.charge.by_epsilon is not None
    if request.share_real_rows and (not optional or request.epsilon is not None):
        raise InputError(
            "--share-real-rows: expected a run without --epsilon of a method whose output holds real rows, found "
            f"{chosen.name} with --epsilon {request.epsilon}; leave --share-real-rows out"
        )
    if request.epsilon is not None:
        return check_epsilon(request.epsilon)
    if not optional:
        raise InputError(
            f"--epsilon is missing: {chosen.name} promises differential privacy, so it needs one; common values are "
            "0.1 to 10, and inf adds no noise and keeps the output private"
        )
    return math.inf


@contextmanager
def _permitted() -> Iterator[None]:
    """Within it a file or folder that this user may not use is told as wrong input."""
    try:
        yield
    except PermissionError as error:
        raise InputError(f"{system_error_in_words(error)}; fix its permissions or name another") from None


@_permitted()
def validate(
    request: RunRequest, method: str, *, is_part: bool = False, check_all: CheckAll | None = None
) -> Validated:
    """Check a request; stores, registers and charges nothing.

    Args:
        request: what is asked for.
        method: its name.
        is_part: the run is one of several that are asked for together, which gives a new source its budget.
        check_all: refuses all of these runs as soon as the source and the run's delta are known, before a model is.

    Raises:
        InputError: the user's input is wrong; the message says what was expected and how to fix it.
        BudgetRefused: the source's budget does not allow the charge.
    """
    chosen, out = registry.get(method), Path(request.out).expanduser()
    epsilon = _epsilon_of(request, chosen)
    check_folder(out, exports=math.isfinite(epsilon) or request.share_real_rows)
    config, ledger = configure(request, method), Ledger.open()
    for store in (private_store(), exchange_store()):
        store.check_writable()
    sources = ledger.sources()
    known = next((record for record in sources if record.name == request.source), None)
    guarded = chosen.charge.protects(config)
    check_unit(known, guarded)
    public = chosen.preparation.public_tables(config)
    public_tables.check_names(public, request)
    public_tables.check_labels(config, public, request)
    rows = load_and_split(request, guarded.rows, known, keyed_hash=partial(ledger.keyed_hash, request.source))
    public_tables.check_texts(public, rows, ledger)
    is_default_delta = request.delta is None
    delta = delta_of(request, n=rows.units)
    record, budget_note = source_record(request, known, rows, guarded, epsilon=epsilon, delta=delta, is_part=is_part)
    row_digests, client_digests = tables.row_digests(rows.whole), tables.client_digests(rows.whole)
    ledger.check_rows(request.source, row_digests, client_digests)
    _check_measured(ledger, request, rows)
    look = partial(check_budget, ledger, record, epsilon=epsilon, delta=delta, is_default_delta=is_default_delta)
    # Before the model is loaded and its learning rate is looked for, which takes minutes.
    unless_charged(look, lambda: may_be_charged(ledger, request.source, epsilon=epsilon, delta=delta))
    if check_all is not None:
        check_all(record, delta)
    promised = (epsilon, delta, rows.units, rows.label_names)
    with profile_named(method, config):
        asked = _asked(chosen, config, ledger, promised, known, request, rows)
    named_files = public_tables.named_files(config, public)
    apart = disjoint_sources(request.source, sources)
    charged = {charge.id: charge.guarantee() for charge in ledger.charges() if charge.exportable}
    disjoint = {name: _charge_ids(ledger, name) for name in apart}
    inherited = earlier_releases(named_files, disjoint=disjoint, charged=charged)
    notes = (*rows.notes, *asked.notes, *budget_note, *map(note_of, inherited))
    of_request = {"inherited": inherited, "has_test": request.test is not None}
    plan = _plan(chosen, asked, guarded, record, rows, notes=notes).model_copy(update=of_request)
    is_charged = bool(asked.charges)
    if not is_charged:
        # Of a run that is charged, only its flow sees whether --accept-new-charge charges it anew; the ledger checks.
        unless_charged(look, lambda: bool(_charges_under(ledger, request.source, asked.key)))
    finished = _is_finished(asked, ledger, request, rows)
    if asked.finished is not None and not finished:
        # Its results are still to be written and recorded, here or in another folder.
        before_charge(out, None)
    replaced, paid = _replaced(out, asked.charges), _paid_before(ledger, plan, rows, key=asked.key)
    return Validated(request, plan, record, rows, row_digests, client_digests, is_charged, finished, replaced, paid)


def _check_measured(ledger: Ledger, request: RunRequest, rows: SplitRows) -> None:
    """Refuse rows of --test that another source has: what is measured on them would be this one's, also for `purge`."""
    if request.test is None:
        return
    try:
        ledger.check_rows(request.source, tables.row_digests(rows.test), tables.client_digests(rows.test))
    except RowError as error:
        raise RowError(
            f"--test: {error}; `understudy evaluate` measures on rows of several sources, and its report is of each"
        ) from None


@dataclass(frozen=True)
class _Asked:
    """What the method says of the run."""

    config: Any
    charged: Any
    promise: Promise
    description: Any
    notes: tuple[str, ...]
    charges: tuple[str, ...]
    key: str
    given: str
    finished: finished_plans.FinishedPlan | None = None


def _asked(
    method: Method[Any],
    config: Any,
    ledger: Ledger,
    promised: tuple[float, float, int, tuple[str, ...]],
    known: SourceRecord | None,
    request: RunRequest,
    rows: SplitRows,
) -> _Asked:
    """Settings, queries and description; of a run whose charge is released already, as they were when it was planned.

    Nothing can be refused any more of what is paid for and finished, so its model is not loaded again. What is around
    the run is looked at by `validate`, which knows whether there is anything left to do.
    """
    epsilon, delta, n, label_names = promised
    unresolved, digest = config, folder_digest(model_folder(config.model))
    if config.model_digest not in ("", digest):
        raise InputError(
            f"--set model_digest={config.model_digest!r}: expected that of model={config.model!r}, {digest}; leave it "
            "out, or bring the model that has it"
        )
    config = method.preparation.resolve(config, n, label_names, epsilon)
    named = config.model_copy(update={"model_digest": digest})
    charged = method.charge.settings(named)
    given = given_settings(method, unresolved, charged)
    key = request_key(ledger, rows.train, method=method.name, source=request.source, promised=promised, charged=charged)
    paid = _charges_under(ledger, request.source, key) if known else []
    charges = tuple(charge.id for charge in paid)
    if paid and not request.accept_new_charge and all(charge.status == "released" for charge in paid):
        earlier = finished_plans.recall(key, named)
        if earlier is not None:
            return _Asked(
                named,
                charged,
                Promise(earlier.queries, n, epsilon, delta, label_names),
                earlier.description,
                earlier.notes,
                charges,
                key,
                given,
                finished=earlier,
            )
    base = method.preparation.check_model(config.model_copy(update={"model_digest": ""}), label_names)
    before_charge(Path(request.out).expanduser(), base)
    queries = method.charge.queries(named, n=n, epsilon=epsilon, delta=delta)
    check_epsilon_of(queries, epsilon=epsilon, delta=delta)
    promise = Promise(queries, n, epsilon, delta, label_names)
    described = method.preparation.describe(named, promise)
    return _Asked(named, charged, promise, described, base.notes, charges, key, given)


def _charges_under(ledger: Ledger, source: str, key: str) -> list[Charge]:
    """The charges of this very run."""
    return [charge for charge in ledger.charges(source) if charge.request_key == key]


def _charge_ids(ledger: Ledger, source: str) -> frozenset[str]:
    return frozenset(charge.id for charge in ledger.charges(source))


def _paid_before(ledger: Ledger, plan: RunPlan, rows: SplitRows, *, key: str) -> str:
    """What is to be said where another version's charge paid for this run already, or nothing."""
    return paid_before(
        ledger.charges(plan.source),
        key=key,
        asked=asked_key_of(ledger, plan, rows.train),
        price=(queries_to_json(plan.queries), plan.epsilon, plan.delta),
    )


def _plan(
    chosen: Method[Any],
    asked: _Asked,
    guarded: Protected,
    record: SourceRecord,
    rows: SplitRows,
    *,
    notes: tuple[str, ...],
) -> RunPlan:
    """What is public about the run."""
    promise, compute = asked.promise, chosen_compute()
    promised = {name: getattr(promise, name) for name in ("n", "label_names", "epsilon", "delta", "queries")}
    return RunPlan(
        **promised,
        method=chosen.name,
        source=record.name,
        budget=Budget(epsilon=record.epsilon, delta=record.delta),
        config=asked.config,
        charged=asked.charged,
        given=asked.given,
        description=with_comparisons(asked.description, asked.key),
        report_facts=chosen.report.facts(asked.config),
        releases=chosen.charge.releases,
        sections=chosen.report.sections,
        device=compute.device,
        precision=compute.precision_of(parameter_count(model_folder(asked.config.model))),
        rows=guarded.rows,
        unit=guarded.unit,
        relation=guarded.relation,
        labels_from_data=rows.labels_from_data,
        notes=notes,
        model_notes=asked.notes,
    )


def _replaced(out: Path, charges: tuple[str, ...]) -> str:
    """What is to be said where this run puts its results in the place of another charge's, or nothing."""
    try:
        there = read_record(out)
    except InputError:
        return ""
    if there.charge_id in charges:
        return ""
    return (
        f"{out} holds the results of charge {there.charge_id} of source {there.source!r}, which this run replaces; "
        "name another --out to keep them"
    )


def _is_finished(asked: _Asked, ledger: Ledger, request: RunRequest, rows: SplitRows) -> bool:
    """Whether this very request, on these very rows, has left its results where it is to leave them."""
    if asked.finished is None:
        return False
    store = private_store()
    train, test = (
        store.find_match(match_of(ledger, request.source, kind, table))
        for kind, table in (("rows", rows.train), ("test-rows", rows.test))
    )
    if train is None or test is None:
        return False
    key = run_key(request, asked.charged, train, test)
    return finished_plans.is_intact(asked.finished, key, Path(request.out).expanduser().absolute())
