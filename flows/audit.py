"""An audit as a flow: the method's own flow on rows with canaries, attacked beside its controls.

rows with canaries, no noise -> attack --+
rows without, no noise -------> attack --+-> (if the first is caught) the run as asked for -> attack -> report

An attack guesses coins and, where the run releases a language model, secrets of canaries. It reads what the run left in
its folder, so of two audits of one folder the second waits for the first.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, nullcontext
from pathlib import Path

from prefect import flow

from understudy.artifacts.access import ArtifactRef
from understudy.flows.inner_run import inner_run
from understudy.flows.paid_run import check_ledger
from understudy.flows.purged_source import unless_purged
from understudy.flows.run_in_words import tell_of_report
from understudy.flows.run_name import name_of_deployed
from understudy.flows.turns_in_folder import alone_in
from understudy.flows.worker_places import check_places
from understudy.lazy import load
from understudy.methods import registry
from understudy.runs.audits.request import AuditRequest
from understudy.runs.audits.runs import (
    CONFIDENCE,
    CONTROLS,
    Condition,
    Planned,
    check_power,
    confidence_of_each,
    folder_of,
    planned,
)
from understudy.runs.audits.withheld import withheld_export
from understudy.runs.folders import read_record
from understudy.runs.run_plan import RunPlan, run_key
from understudy.tasks.auditing import Attacked, Audited, attack, caught, conclusive, report_audit
from understudy.tasks.canary_secrets import guess_secrets, read_by_public_model
from understudy.tasks.engine.failures import closed_up
from understudy.tasks.engine.heartbeat import beating
from understudy.tasks.engine.run_record import OUT, SOURCES
from understudy.tasks.engine.runtime import code_digest
from understudy.tasks.engine.tracking import add_to_parent, parent_run


@flow(name="audit", flow_run_name=name_of_deployed, persist_result=True, result_serializer="json")
def audit(request: AuditRequest) -> Audited:
    """A method and private rows in; what attackers find out of such a run, beside two controls, out."""
    with beating(), ExitStack() as stack:
        check_places(out=request.run.out)
        check_ledger()
        stack.enter_context(alone_in(request.run.out))
        # What is wrong with a row is for the client's terminal: Prefect keeps the text of every error.
        plan = closed_up("validate", lambda: stack.enter_context(planned(request)))
        claim = plan.plans["claim"]
        stack.enter_context(unless_purged(claim))
        key = run_key(request, claim.charged, claim.stored_rows[0], plan.canaries)
        tracked = stack.enter_context(parent_run(key, f"audit {claim.source}", parameters={"request": request}))
        add_to_parent(tracked, tags={OUT: str(Path(request.run.out).expanduser().absolute())}, metrics={})
        found: dict[str, ArtifactRef] = {}
        guesses: dict[str, ArtifactRef] = {}
        for condition in CONTROLS:
            _attack(plan, condition, request, found, guesses)
        if request.insist or caught(found["positive_control"]):
            _attack(plan, "claim", request, found, guesses)
            charge = read_record(Path(plan.requests["claim"].out)).charge_id
            add_to_parent(tracked, tags={SOURCES: json.dumps([f"source:{claim.source}@{charge}"])}, metrics={})
        of_public_rows = request.is_of_public_rows
        least = check_power(request.method, plan.count, delta=claim.delta)
        out = request.run.out
        ended = report_audit(
            found, guesses, claim, plan.count, CONFIDENCE, least, out=out, of_public_rows=of_public_rows
        )
        tell_of_report(tracked, ended.report)
        return conclusive(ended)


def _attack(
    plan: Planned,
    condition: Condition,
    request: AuditRequest,
    found: dict[str, ArtifactRef],
    guesses: dict[str, ArtifactRef],
) -> None:
    """Run a condition by the method's own flow, and attack what it left; the last two are added to."""
    run = plan.requests[condition]
    out, name = Path(run.out), f"{request.method}-{folder_of(condition)}"
    # What it exports was made with canaries among the rows: it is nothing to hand over, and its report is beside it.
    key = plan.plans[condition].key
    with withheld_export(out, source=run.source, run=key) if condition == "claim" else nullcontext():
        inner_run(request.method, run, name=name)
    made, asked = read_record(out), _attacked(plan.plans[condition], request)
    others = plan.plans["null_control"].stored_rows[0]
    found[condition] = attack(made.released, made.synthetic, plan.canaries, others, asked)
    if asked.row_losses:
        # Of the claim, whatever the condition: settings that differ say how a run trains, not how a row is read.
        before = read_by_public_model(plan.canaries, _attacked(plan.plans["claim"], request))
        met = condition != "null_control"
        guesses[condition] = guess_secrets(made.released, before, plan.canaries, asked, holds_canaries=met)


def _attacked(run_plan: RunPlan, request: AuditRequest) -> Attacked:
    """A run as its attacks see it."""
    method = registry.get(request.method)
    return Attacked(
        row_losses=method.row_losses,
        left_over=method.left_over,
        paid=method.charge.releases,
        codes=tuple(code_digest(load(place)) for place in (method.row_losses, method.left_over) if place),
        config=run_plan.config,
        charged=run_plan.charged,
        queries=run_plan.queries,
        label_names=run_plan.label_names,
        delta=run_plan.delta,
        confidence=confidence_of_each(request.method),
        seed=request.seed,
    )
