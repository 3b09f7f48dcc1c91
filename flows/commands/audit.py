"""What `understudy audit` does; imported only when it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from understudy.flows.commands.run import choices_said, ended, price, request_from, say_unread_variables
from understudy.flows.commands.terminal import say, show


def audit(
    *,
    method: str,
    options: Mapping[str, Any],
    asked: Mapping[str, Any],
    dry_run: bool,
    as_json: bool,
) -> None:
    """`understudy audit`."""
    from understudy.runs.audits.request import audit_of
    from understudy.settings import prepare_environment

    request = audit_of(method, request_from(options), **asked)
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    prepare_environment()
    from understudy.auditing.canary_secrets import MOST_READ
    from understudy.auditing.metrics import bounds_of
    from understudy.auditing.reconstruction import CANDIDATES
    from understudy.auditing.secret_metrics import guessed_shares
    from understudy.evaluation.audit_metrics import THREATS
    from understudy.runs.audits.runs import attackers, check_power, planned, prepared, reads_secrets
    from understudy.runs.python_requests import metrics_in
    from understudy.runs.run_plan import dry_run_of
    from understudy.runs.validation import validate

    say_unread_variables()
    if dry_run:
        with choices_said(), prepared(request) as drafts:
            plan, count = validate(drafts.requests["claim"], method).plan, len(drafts.canaries.included)
            least = check_power(method, count, delta=plan.delta)
        facts = {
            "canaries": count,
            "attackers_see": [THREATS[threat] for threat in attackers(method)],
            "detectable_epsilon": round(least, 3),
            "secrets": (
                f"{min(count, MOST_READ)} canaries are read with {CANDIDATES} candidates each, by the public model "
                "and by that of each run"
                if reads_secrets(method)
                else "none guessed: no model"
            ),
            "runs": "two controls without noise, and this",
        }
        show({**dry_run_of(plan), **facts}, as_json=as_json, title=f"audit of {method}, dry run: nothing charged")
        return
    with choices_said(), planned(request) as audited:
        plan = audited.plans["claim"]
        for note in (*audited.notes, *plan.description.warnings):
            say(f"note: {note}")
        say(
            f"{audited.count} canaries stand in for as many units; two controls without noise run first, and charge "
            "nothing. The run itself comes last, if an attack catches it without noise:"
        )
        say(price(plan, is_charged=audited.is_charged, accepts_new=request.run.accept_new_charge))
        from understudy.flows.audit import audit as flow

        result = ended(flow, request)
    metrics = metrics_in(Path(result.report).parent)
    bounds = bounds_of(metrics)
    told = {
        **result.model_dump(),
        "claimed_epsilon": plan.epsilon,
        "detectable_epsilon": metrics.values["audit.one_run.detectable_epsilon"],
        "lower_bounds": bounds,
        "secrets_guessed": {name: share.rate for name, share in guessed_shares(metrics).items()},
        "caught": [threat for threat, found in bounds.items() if found["positive_control"] > 0],
    }
    show(told, as_json=as_json, title=f"audit of {method}: passing it does not prove privacy")
