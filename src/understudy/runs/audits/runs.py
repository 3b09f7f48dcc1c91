"""An audit before it runs: the tables with canaries, and the three runs that it is made of, registered.

The *claim* is the run as it was asked for, on rows in which canaries stand by coins. The *positive control* is the same
on the same rows without noise: an attack that misses it is too weak to say anything. The *null control* is a run
without noise on rows in which no canary stands: an attack that finds something there is wrong.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from understudy.artifacts.access import ArtifactRef, private_store, write_table
from understudy.auditing import canaries as canary
from understudy.auditing import canary_secrets as secret
from understudy.auditing.one_run import detectable_epsilon
from understudy.data.columns import text_columns
from understudy.data.tables import RowKind
from understudy.errors import InputError, RowError
from understudy.methods import registry
from understudy.models.loading import load_tokenizer
from understudy.privacy import labels
from understudy.privacy.ledger.ledger import Ledger
from understudy.reporting.audit import is_audit
from understudy.runs.audits.request import AuditRequest, number_of_canaries
from understudy.runs.audits.withheld import check_no_release
from understudy.runs.configuration import configure, profile_named
from understudy.runs.earlier_charges import refuse_paid
from understudy.runs.evaluations.report import check_report_folder
from understudy.runs.handed_tables import as_files
from understudy.runs.handing_over import waiting
from understudy.runs.registration import handed_over, register
from understudy.runs.request import RunRequest, words_about
from understudy.runs.run_plan import RunPlan, match_of
from understudy.runs.sources import delta_of
from understudy.runs.split import SplitRows, load_and_split
from understudy.runs.units import NOUNS, client_is_held_out, row_is_held_out
from understudy.runs.validation import validate

Condition = Literal["claim", "positive_control", "null_control"]
CONDITIONS: Final[tuple[Condition, ...]] = ("claim", "positive_control", "null_control")
CONTROLS: Final[tuple[Condition, ...]] = ("positive_control", "null_control")
CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Prepared:
    """The runs of an audit, with their tables written.

    Attributes:
        requests: of each condition.
        canaries: with their coins, private.
        notes: what was assumed of the rows; shown to the user.
    """

    requests: Mapping[Condition, RunRequest]
    canaries: canary.Canaries = field(repr=False)
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Planned:
    """An audit whose runs are registered.

    Attributes:
        requests: of each condition.
        plans: of each condition; public.
        canaries: the stored canaries, with the column `included`; private.
        count: how many there are; public.
        is_charged: whether the claim was charged before, by this very audit.
        notes: what was assumed or handled; shown to the user.
    """

    requests: Mapping[Condition, RunRequest]
    plans: Mapping[Condition, RunPlan]
    canaries: ArtifactRef
    count: int
    is_charged: bool
    notes: tuple[str, ...] = ()


# Audits that this process planned for a flow it is about to start.
_HANDED_OVER: dict[str, Planned] = {}


@contextmanager
def prepared(request: AuditRequest) -> Iterator[Prepared]:
    """Within it, the tables of an audit's runs lie under the private root; nothing is registered or charged.

    The same request on the same rows gives the same files under the same names, so a repeated audit goes on.

    Raises:
        InputError: the input is wrong; the message says how to fix it.
        RowError: a row is.
    """
    run = request.run
    folders = {folder_of(condition) for condition in CONDITIONS}
    check_report_folder(
        Path(run.out).expanduser(), noun="an earlier audit", is_run=folders.__contains__, is_such=is_audit
    )
    check_no_release(Path(run.out).expanduser() / folder_of("claim"))
    chosen, ledger = registry.get(request.method), Ledger.open()
    config = configure(run, request.method)
    kind = chosen.charge.protects(config).rows
    known = next((record for record in ledger.sources() if record.name == run.source), None)
    rows = load_and_split(run, kind, known, keyed_hash=partial(ledger.keyed_hash, run.source))
    count = number_of_canaries(request, units=rows.units)
    check_power(request.method, count, delta=delta_of(run, n=rows.units))
    with profile_named(request.method, config):
        words = canary.vocabulary(load_tokenizer(config))
    made = _canaries(request, kind, rows, count=count, words=words, ledger=ledger)
    columns = _columns(kind, rows)
    tables: dict[str, pa.Table | None] = {
        "with-canaries": _with(kind, rows, made, none=False),
        "without-canaries": _with(kind, rows, made, none=True),
        "test": _named(rows.test, rows.label_names) if run.test is not None else None,
    }
    with as_files(tables) as files:

        def of(condition: Condition) -> RunRequest:
            changed = {
                **columns,
                "data": files["without-canaries" if condition == "null_control" else "with-canaries"],
                "test": files["test"],
                "out": str(Path(run.out).expanduser().absolute() / folder_of(condition)),
                "about": words_about(run),
                # Counted on the rows as they are: among canaries the number of clients would tell of the coins.
                "units": rows.units,
                **({} if condition == "claim" else {"epsilon": float("inf")}),
            }
            return RunRequest.model_validate(run.model_dump() | changed)

        yield Prepared({condition: of(condition) for condition in CONDITIONS}, made, rows.notes)


@contextmanager
def planned(request: AuditRequest) -> Iterator[Planned]:
    """Within it, an audit's runs are registered, and flows of this process take their plans; nothing is charged.

    Raises:
        InputError: the input is wrong; nothing was registered then.
        BudgetRefused: the source's budget does not allow the claim's charge.
    """
    key = request.model_dump_json()
    if key in _HANDED_OVER:
        yield _HANDED_OVER[key]
        return
    with prepared(request) as drafts, ExitStack() as stack:
        claim = validate(drafts.requests["claim"], request.method)
        refuse_paid(claim.paid_before, accepts_new=request.run.accept_new_charge)
        # On a source's first use the claim's epsilon and delta become its budget, whatever run is the first.
        controls = {
            condition: validate(drafts.requests[condition], request.method, is_part=True) for condition in CONTROLS
        }
        Path(request.run.out).expanduser().mkdir(mode=0o700, parents=True, exist_ok=True)
        plans: dict[Condition, RunPlan] = {}
        for condition, one in {"claim": claim, **controls}.items():
            plan = one.plan.model_copy(update={"budget": claim.plan.budget})
            plans[condition] = register(replace(one, record=claim.record, plan=plan))
            stack.enter_context(handed_over(drafts.requests[condition], plans[condition]))
        notes = tuple(dict.fromkeys((*drafts.notes, *claim.plan.notes)))
        stored = _stored(request.run.source, drafts.canaries)
        count = len(drafts.canaries.included)
        found = Planned(drafts.requests, plans, stored, count, claim.is_charged, notes)
        with waiting(_HANDED_OVER, key, found):
            yield found


def attackers(method: str) -> tuple[str, ...]:
    """Who attacks in an audit of a method, by what they see: the data, and what more the method may release."""
    of_method = registry.get(method)
    further = {"model": of_method.row_losses, "sums": of_method.left_over}
    return ("data", *(threat for threat, place in further.items() if place))


def reads_secrets(method: str) -> bool:
    """Whether an audit of a method guesses the secrets of canaries: of one that releases a language model."""
    return bool(registry.get(method).row_losses)


def confidence_of_each(method: str) -> float:
    """At which each attacker's bound holds, so that all of them hold together at `CONFIDENCE`."""
    return 1 - (1 - CONFIDENCE) / len(attackers(method))


def check_power(method: str, count: int, *, delta: float) -> float:
    """The least epsilon that so many canaries could tell from 0 in a run at this delta.

    Raises:
        InputError: there is none.
    """
    least = detectable_epsilon(count, delta=delta, confidence=confidence_of_each(method))
    if math.isinf(least):
        raise InputError(
            f"--canaries {count}: even if all coins were guessed, they would prove nothing at delta={delta:.3g}; "
            "take more canaries, bring more rows, or audit at a smaller --delta"
        )
    return least


def _canaries(
    request: AuditRequest, kind: RowKind, rows: SplitRows, *, count: int, words: list[str], ledger: Ledger
) -> canary.Canaries:
    """So many, each where it is trained on if its coin puts it in."""
    source = request.run.source
    named = f"{source}\0{request.seed}"
    texts = canary.canary_rows(
        kind, count, words=words, labels=len(rows.label_names), named=named, schema=rows.whole.schema
    )
    hashed = partial(ledger.keyed_hash, source)
    if kind == "clients":
        clients = len(set(rows.train["client_id"].to_pylist()))
        _check_room(count, clients, kind)
        held = partial(client_is_held_out, units=rows.units, keyed_hash=hashed)
        names = _client_names(count, held=held, named=hashlib.sha256(named.encode()).hexdigest()[:16])
        texts = texts.set_column(0, texts.schema.field(0), pa.array(names, pa.string()))
        slots: tuple[int, ...] = ()
        identifiers = [name.encode() for name in names]
    else:
        filled = rows.train[text_columns(rows.train)[0]]
        _check_room(count, len(filled) - filled.null_count, kind)
        # Of all that are declared, filled or not: did they hang on which rows there are, one row would move them all.
        everything = request.run.test is not None
        open_slots = [slot for slot in range(rows.units) if everything or not row_is_held_out(slot, hashed)]
        slots = tuple(canary.chosen_slots(open_slots, count, named=named))
        identifiers = [slot.to_bytes(8) for slot in slots]
    included = canary.toss(identifiers, partial(hashed, f"audit/{request.seed}"))
    if not 2 <= included.sum() <= count - 2:
        raise InputError(f"--seed {request.seed}: the coins of the canaries fell alike; take another seed")
    candidates = secret.candidates_of(texts, words=words, named=named)
    places = secret.drawn_places(identifiers, partial(hashed, f"audit-secret/{request.seed}"))
    chosen = [those[place] for those, place in zip(candidates, places, strict=True)]
    return canary.Canaries(secret.with_last_words(texts, chosen), slots, included, candidates, places)


def folder_of(condition: Condition) -> str:
    """Name of a condition's folder in that of the audit."""
    return condition.replace("_", "-")


def _check_room(count: int, trained: int, kind: RowKind) -> None:
    if 2 * count > trained:
        # How many there are is private where --units declares more.
        raise RowError(
            f"--canaries {count}: expected at most half as many as there are {NOUNS[kind]}s to train on; ask for "
            f"fewer, or bring more {NOUNS[kind]}s"
        )


def _client_names(count: int, *, held: Callable[[str], bool], named: str) -> list[str]:
    """Identifiers of canaries, none of which is held out; of another source or seed, others."""
    names: list[str] = []
    number = 0
    while len(names) < count:
        name = f"canary {named} x{number}"
        names += [] if held(name) else [name]
        number += 1
    return names


def _with(kind: RowKind, rows: SplitRows, made: canary.Canaries, *, none: bool) -> pa.Table:
    """The table of a condition, labels by name."""
    included = [False if none else bool(coin) for coin in made.included]
    if kind != "clients":
        return _named(canary.placed(rows.whole, made, included=included, units=rows.units), rows.label_names)
    # As many clients leave as there are canaries, whatever the coins, so that there are never more than declared.
    trained = sorted(set(rows.train["client_id"].to_pylist()))
    return canary.joined(rows.whole, made, included=included, leaving=set(trained[: len(included)]))


def _named(table: pa.Table, names: tuple[str, ...]) -> pa.Table:
    if "label" not in table.column_names:
        return table
    of_rows = [None if index is None else names[index] for index in table["label"].to_pylist()]
    return table.set_column(table.schema.get_field_index("label"), "label", pa.array(of_rows, pa.string()))


def _columns(kind: RowKind, rows: SplitRows) -> dict[str, object]:
    """What a request says of a checked table's columns: those of every kind are named alike."""
    plain = {
        name: RunRequest.model_fields[name].default
        for name in ("text_column", "label_column", "client_column", "instruction_column", "response_column")
    }
    system = "system" if kind == "instructions" and "system" in rows.whole.column_names else None
    names = {name: name for name in rows.label_names} if kind == "labelled" else None
    return {**plain, "system_column": system, "label_names": names}


def _stored(source: str, made: canary.Canaries) -> ArtifactRef:
    """Store the canaries with coins and secrets, or find them: same content, same source, same random id."""
    table = made.rows.append_column(canary.INCLUDED, pa.array(made.included.tolist()))
    table = table.append_column(secret.OTHERS, pa.array(made.candidates, pa.list_(pa.string())))
    table = table.append_column(secret.SECRET, pa.array(made.secrets, pa.int32()))
    match = match_of(Ledger.open(), source, "canaries", table)
    label = labels.private(source)
    return private_store().find_match(match) or write_table(table, kind="canaries", label=label, match=match)
