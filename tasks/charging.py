"""The charge of a run: asked of the ledger every time, never taken from a cache (ADR 0001)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from understudy.artifacts.access import ArtifactRef, exchange_store, private_store, read_table
from understudy.durable import sync
from understudy.errors import UnderstudyError
from understudy.hardware import kind
from understudy.privacy.accounting import epsilon_rdp
from understudy.privacy.ledger.ledger import Charge, ChargeFields, Ledger
from understudy.privacy.queries import event_delta, event_of, queries_to_json
from understudy.runs.earlier_charges import ASKED, paid_again, paid_before, parts_of, refuse_paid
from understudy.runs.run_plan import RunPlan, asked_key_of, key_of
from understudy.settings import settings
from understudy.tasks.charge_receipt import ChargeReceipt, drop_release_log
from understudy.tasks.engine.cache_key import versions
from understudy.tasks.engine.leases import kept_results
from understudy.tasks.engine.machine import prepare_torch
from understudy.tasks.engine.runtime import code_digest, compute, task

CODE, PROCESSOR = "code", "processor"


def environment_of(*code: str) -> dict[str, str]:
    """Everything that a resumed step's bytes depend on, by name; public. The kind of processor is not in it.

    Args:
        code: `code_digest` of each task that makes the query or draws its noise.
    """
    return {
        # How torch is set up belongs to it, and is in no task's own digest: it is part of what runs tasks.
        CODE: " ".join((*code, code_digest(prepare_torch))),
        "threads": str(settings().threads),
        **{name: str(value) for name, value in compute().key_parts.items()},
        **versions(),
    }


def digest_of(environment: Mapping[str, str]) -> str:
    """What a charge knows an environment by."""
    return hashlib.sha256(json.dumps(dict(environment), sort_keys=True).encode()).hexdigest()


@task(name="charge", cache=False, computes=False)
def charge(plan: RunPlan, *, environment: dict[str, str], accept_new: bool) -> ChargeReceipt:
    """Charge the run's one event, or find the charge that this very run made before.

    Args:
        plan: of the registered run; its queries are what is charged.
        environment: `environment_of` the code that will draw noise.
        accept_new: pay again where an earlier charge of this run cannot be used any more.
    """
    ledger, queries, train = Ledger.open(), plan.queries, read_table(plan.stored_rows[0])
    left = event_delta(queries, epsilon=plan.epsilon, delta=plan.delta)
    asked = ChargeFields(
        source=plan.source,
        request_key=key_of(ledger, plan, train),
        queries=queries_to_json(queries),
        epsilon=plan.epsilon,
        delta=plan.delta,
        epsilon_rdp=epsilon_rdp(event_of(queries), left),
        unit=plan.unit,
        relation=plan.relation,
        code_digest=digest_of(environment),
    )
    here, by_name = {**environment, PROCESSOR: kind()}, asked_key_of(ledger, plan, train)
    price = (asked["queries"], plan.epsilon, plan.delta)
    paid = paid_before(ledger.charges(plan.source), key=asked["request_key"], asked=by_name, price=price)
    refuse_paid(paid, accepts_new=accept_new)
    bound = _stored(here, by_name)
    found = ledger.reserve(environment=bound, **asked)
    # More than once only where another process charges this run meanwhile, for an environment of its own.
    while not found.new and (changed := _changed(found, plan.releases, here)) is not None:
        if not accept_new:
            keep = "keep what it exported, which stays as good as it was, " if found.status == "released" else ""
            raise UnderstudyError(
                f"charge {found.id} of source {found.source!r} paid for this run, but {changed}, so computing it again "
                f"would be a new release: {keep}{paid_again(found.epsilon)} with --accept-new-charge, or restore what "
                "was there"
            )
        found = ledger.reserve(instead_of=found.id, environment=bound, **asked)
    if found.status == "reserved":
        # A charge that is bound stays so: it is known by what was asked for when it was made.
        ledger.bind_environment(found.id, found.environment or bound)
    return ChargeReceipt(
        charge_id=found.id, source=found.source, label=found.label(), queries=queries, label_names=plan.label_names
    )


@task(name="finalize", cache=False, computes=False)
def finalize(receipt: ChargeReceipt, released: ArtifactRef) -> ArtifactRef:
    """Close the charge after its last draw is stored: the salt of its noise is erased, then its release log.

    Prefect does not wait until the disk has a result. One that a loss of power took could not be made again afterwards.
    Nor does it end a task whose result a full disk refused: that one stays beside the checkpoints.
    """
    if released.label != receipt.label:
        raise UnderstudyError(f"expected an artifact labelled {receipt.label}, found {released.label}")
    stored = list(_results(receipt.charge_id))
    for path in (*stored, settings().results_root, *{path.parent for path in stored}):
        with suppress(FileNotFoundError):
            sync(path)
    Ledger.open().release(receipt.charge_id)
    drop_release_log(receipt.charge_id)
    return released


def _stored(environment: Mapping[str, str], asked: str) -> str:
    """As the ledger keeps it: code and processor are long, and nobody reads more of them than whether they differ."""
    short = {name: hashlib.sha256(environment[name].encode()).hexdigest()[:16] for name in (CODE, PROCESSOR)}
    return json.dumps({**environment, **short, ASKED: asked}, sort_keys=True)


def _without_asked(stored: str | None) -> dict[str, str]:
    """What the bytes of a charge depend on: what was asked for names it only."""
    return {name: value for name, value in parts_of(stored).items() if name != ASKED}


def _changed(found: Charge, releases: str, here: Mapping[str, str]) -> str | None:
    """Why a run cannot go on under `found`, in words; None if it can.

    It can with the same code, if it is finished and what it released is there and found by its task. Or it is
    unfinished, and began where floats are rounded as here: its noise is drawn for the exact bytes of a query.
    """
    environment = {name: value for name, value in here.items() if name != PROCESSOR}
    if found.code_digest != digest_of(environment):
        return f"with {_differences(found.environment, here)}"
    if found.status == "reserved":
        if not found.resumable:
            return "its noise was erased when its source was purged"
        as_here = found.environment is None or _without_asked(found.environment) == _without_asked(_stored(here, ""))
        return None if as_here else "it began on another kind of processor or GPU"
    store = exchange_store() if found.exportable else private_store()
    stored = {ref.id: ref for ref in store.refs()}
    if not any(ref.kind == releases and found.id in _charges(ref, stored) for ref in stored.values()):
        return f"what it released ({releases}) is no longer in {store.root}"
    if next(_results(found.id), None) is None:
        return "this UNDERSTUDY_HOME has no stored result of it"
    return None


def _results(charge_id: str) -> Iterator[Path]:
    """What tasks of this home kept that drew noise under a charge: without it, they would draw again."""
    for path in (*settings().results_root.iterdir(), *kept_results(settings().checkpoints_root)):
        with suppress(FileNotFoundError, IsADirectoryError):  # `understudy gc` may be removing it
            if charge_id in path.read_text(errors="replace"):
                yield path


def _differences(before: str | None, here: Mapping[str, str]) -> str:
    """What is not as it was when a charge began, in words."""
    now, then = _without_asked(_stored(here, "")), _without_asked(before)
    if not then:
        return "other code, library versions, threads (UNDERSTUDY_THREADS), device or precision"
    said = ["other code of Understudy or of a library that it computes with"] if then.get(CODE) != now[CODE] else []
    names = [name for name in {**then, **now} if name not in (CODE, PROCESSOR) and then.get(name) != now.get(name)]
    told = (f"{name} {then.get(name, 'unknown')}, which is {now.get(name, 'unknown')} now" for name in names)
    return " and ".join([*said, *told])


def _charges(ref: ArtifactRef, stored: Mapping[str, ArtifactRef]) -> set[str]:
    """Charges that an artifact came from: by its label or, for a private one, by its parents and theirs.

    Args:
        ref: of the artifact.
        stored: id -> every artifact of its store.
    """
    charges = {guarantee.charge_id for guarantee in ref.label.guarantees}
    unread, read = list(ref.parents), set[str]()
    while unread:
        parent = unread.pop()
        if parent in read:
            continue
        read.add(parent)
        if parent.startswith("source:"):
            _, at, charge_id = parent.rpartition("@")
            charges |= {charge_id} if at else set()
        elif parent in stored:
            unread += stored[parent].parents
    return charges
