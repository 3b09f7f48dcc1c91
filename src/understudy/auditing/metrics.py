"""What an audit found, under the stable dotted names of metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping

from understudy.auditing.attack import AttackFigures
from understudy.evaluation.audit_metrics import AUDIT_CONDITIONS, THREATS
from understudy.evaluation.metrics import Metrics

_NOTHING = {
    "data": "this run left no synthetic table",
    "model": "this method releases no language model",
    "sums": "this run released no sum whose parts are known beforehand",
}


def bounds_of(metrics: Metrics) -> dict[str, dict[str, float]]:
    """Attacker -> run (`claim`, `positive_control`, `null_control`) -> lower bound on epsilon, as far as measured."""
    found: dict[str, dict[str, float]] = {}
    for threat in THREATS:
        for prefix in AUDIT_CONDITIONS:
            name = f"audit.one_run.{threat}.{prefix}epsilon_lower_bound"
            if name in metrics.values:
                found.setdefault(threat, {})[prefix.rstrip(".") or "claim"] = metrics.values[name]
    return found


def metrics_of(
    figures: Mapping[str, Mapping[str, AttackFigures]],
    *,
    claimed: float,
    canaries: int,
    detectable: float,
    confidence: float,
) -> Metrics:
    """The figures of an audit.

    Args:
        figures: condition (`claim`, `positive_control`, `null_control`) -> attacker (of `THREATS`) -> what was reached.
        claimed: epsilon that the run promises.
        canaries: how many there were.
        detectable: least epsilon that could be told from 0; infinity is left out.
        confidence: of bounds and intervals.
    """
    values = {
        "audit.one_run.canaries": float(canaries),
        "audit.one_run.claimed_epsilon": claimed,
        "audit.one_run.confidence_level": confidence,
    }
    if math.isfinite(detectable):
        values["audit.one_run.detectable_epsilon"] = detectable
    intervals: dict[str, tuple[float, float]] = {}
    for condition, by_threat in figures.items():
        for threat, found in by_threat.items():
            name = f"audit.one_run.{threat}.{'' if condition == 'claim' else f'{condition}.'}"
            values |= {
                f"{name}epsilon_lower_bound": found.epsilon,
                f"{name}guesses": float(found.guesses),
                f"{name}right_guesses": float(found.right),
                f"{name}auc": found.auc,
            }
            intervals[f"{name}auc"] = found.auc_interval
            for rate in found.rates:
                full = f"{name}tpr_at_fpr_{f'{rate.false_alarms:g}'.replace('.', '_')}"
                values[full], intervals[full] = rate.found, rate.interval
    missing = [
        f"{sees}: {_NOTHING[threat]}" for threat, sees in THREATS.items() if threat not in figures["positive_control"]
    ]
    if "claim" not in figures:
        missing.append("the run itself: no attack catches it without noise, so it was not charged and not run")
    return Metrics(values=values, intervals=intervals, missing=tuple(missing))
