"""The charge of a run: asked of the ledger every time, never taken from a cache (ADR 0001)."""

from __future__ import annotations

import hashlib
from importlib.metadata import version

from understudy.artifacts.access import ArtifactRef, exchange_store, private_store, read_table
from understudy.errors import UnderstudyError
from understudy.hardware import kind
from understudy.privacy.accounting import epsilon_rdp
from understudy.privacy.ledger.ledger import Charge, ChargeFields, Ledger
from understudy.privacy.queries import event_delta, event_of, queries_to_json
from understudy.runs.run_plan import RunPlan, key_of
from understudy.settings import settings
from understudy.tasks.charge_receipt import ChargeReceipt, drop_release_log
from understudy.tasks.engine.runtime import compute, task

# What the bytes of a query depend on besides code: a resumed charge must find them unchanged.
PACKAGES = ("torch", "transformers", "tokenizers", "peft", "numpy")


def environment_digest(*code: str) -> str:
    """Digest of everything that a resumed step's bytes depend on.

    Args:
        code: `code_digest` of each task that makes the query or draws its noise.
    """
    parts = [*code, f"threads={settings().threads}"]
    parts += [f"{name}={value}" for name, value in compute().key_parts.items()]
    parts += [f"{name}={version(name)}" for name in PACKAGES]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@task(name="charge", cache=False, computes=False)
def charge(plan: RunPlan, *, code: str, accept_new: bool) -> ChargeReceipt:
    """Charge the run's one event, or find the charge that this very run made before.

    Args:
        plan: of the registered run; its queries are what is charged.
        code: `environment_digest` of the code that will draw noise.
        accept_new: pay again where an earlier charge of this run cannot be used any more.
    """
    ledger, queries = Ledger.open(), plan.queries
    left = event_delta(queries, epsilon=plan.epsilon, delta=plan.delta)
    asked = ChargeFields(
        source=plan.source,
        request_key=key_of(ledger, plan, read_table(plan.stored_rows[0])),
        queries=queries_to_json(queries),
        epsilon=plan.epsilon,
        delta=plan.delta,
        epsilon_rdp=epsilon_rdp(event_of(queries), left),
        unit=plan.unit,
        relation=plan.relation,
        code_digest=code,
    )
    found = ledger.reserve(**asked)
    environment = f"{code} {hashlib.sha256(kind().encode()).hexdigest()[:16]}"
    changed = None if found.new else _changed(found, plan.releases, code, environment)
    if changed is not None:
        if not accept_new:
            raise UnderstudyError(
                f"charge {found.id} of source {found.source!r} paid for this run, but {changed}, so computing it again "
                f"would be a new release: pay epsilon={found.epsilon:g} once more with --accept-new-charge, or "
                "restore what was there"
            )
        found = ledger.reserve(accept_new=True, **asked)
    if found.status == "reserved":
        ledger.bind_environment(found.id, environment)
    return ChargeReceipt(
        charge_id=found.id, source=found.source, label=found.label(), queries=queries, label_names=plan.label_names
    )


@task(name="finalize", cache=False, computes=False)
def finalize(receipt: ChargeReceipt, released: ArtifactRef) -> ArtifactRef:
    """Close the charge after its last draw is stored: the salt of its noise is erased, then its release log."""
    if released.label != receipt.label:
        raise UnderstudyError(f"expected an artifact labelled {receipt.label}, found {released.label}")
    Ledger.open().release(receipt.charge_id)
    drop_release_log(receipt.charge_id)
    return released


def _changed(found: Charge, releases: str, code: str, environment: str) -> str | None:
    """Why a run cannot go on under `found`, in words; None if it can.

    It can with the same code, if it is finished and what it released is there. Or it is unfinished, and began where
    floats are rounded as here: its noise is drawn for the exact bytes of a query.
    """
    if found.code_digest != code:
        return "with other code, library versions, threads (UNDERSTUDY_THREADS), device or precision"
    if found.status == "reserved":
        return None if found.environment in (None, environment) else "it began on another kind of processor"
    store = exchange_store() if found.exportable else private_store()
    if any(ref.kind == releases and found.id in _charges(ref) for ref in store.refs()):
        return None
    return f"the {releases} that it released is no longer in {store.root}"


def _charges(ref: ArtifactRef) -> set[str]:
    """Charges that an artifact came from: by its label or, for a private one, by its parents."""
    parents = (parent.rpartition("@") for parent in ref.parents if parent.startswith("source:"))
    return {g.charge_id for g in ref.label.guarantees} | {charge for _, at, charge in parents if at}
