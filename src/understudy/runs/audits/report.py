"""The report of an audit in its folder, where `purge` finds it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from understudy.evaluation.metrics import Metrics
from understudy.reporting.audit import sections
from understudy.reporting.report import About, build_report
from understudy.runs.evaluations.report import noted_report
from understudy.runs.placement import INTERNAL
from understudy.runs.run_plan import RunPlan


def write_audit(out: Path, plan: RunPlan, found: Callable[[], Metrics], *, claim: Path | None) -> tuple[Path, Metrics]:
    """Write report.html and report.json of an audit; internal, closed to others.

    Args:
        out: the audit's folder.
        plan: of the claim.
        found: reads what was found. Called when the folder is noted and locked: a purge of the rows either leaves
            nothing to read, or waits for the report and takes it along.
        claim: folder of the claim's run, whose statement the page shows; None where it was not run.

    Returns:
        The page, and what was found.
    """
    facts = {"method": plan.method, "model": plan.model_name, **plan.report_facts}
    with noted_report(out, {plan.source}):
        statement, metrics = _promise(plan) if claim is None else _statement_of(claim), found()
        made = f"{metrics.values['audit.one_run.canaries']:.0f} canaries among at most {plan.n} units of {plan.source}"
        files = build_report(
            out,
            title=f"Audit of {plan.method}",
            metrics=metrics,
            statement=statement,
            sections=sections,
            method=plan.method,
            about=About(made=made, facts=facts),
        )
    return files.html, metrics


def _statement_of(claim: Path) -> dict[str, Any]:
    """The claim's statement, from its report: its export does not stay."""
    statement: dict[str, Any] = json.loads((claim / INTERNAL / "report.json").read_text())["statement"]
    return statement


def _promise(plan: RunPlan) -> Mapping[str, Any]:
    """In place of a statement, where the claim was not run: nothing was promised."""
    said = (
        f"The claim, epsilon {plan.epsilon:g} at delta {plan.delta:g}, was not run: nothing was charged or released "
        "for it. What the controls made is without noise."
    )
    return {
        "verdict": "none",
        "promise": said,
        **{name: getattr(plan, name) for name in ("unit", "relation", "source")},
    }
