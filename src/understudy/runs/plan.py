"""The plan of an admitted run in public figures: what it charges, its noise, its expected time and memory."""

from __future__ import annotations

import math
from typing import Any

from understudy.methods.method import MethodFacts, planning
from understudy.privacy.accounting import epsilon_pld, epsilon_rdp
from understudy.privacy.queries import check_epsilon_of, event_delta, event_of
from understudy.runs.registration import Admission


def plan_of(admission: Admission) -> Any:
    """The `ChargedPlan` of an admitted run.

    Raises:
        UnderstudyError: its queries cost more than the epsilon asked for: a calibration was damaged.
    """
    found = planning(admission.config.method)
    plan = found.calibrated_plan(admission.config, n=admission.n, epsilon=admission.epsilon, delta=admission.delta)
    check_epsilon_of(plan.queries, epsilon=admission.epsilon, delta=admission.delta)
    return plan


def facts_of(admission: Admission) -> MethodFacts:
    """What the run's method says about it."""
    found = planning(admission.config.method)
    return found.method_facts(admission.config, plan_of(admission), n=admission.n, label_names=admission.label_names)


def describe_plan(admission: Admission) -> dict[str, Any]:
    """What the run will charge and how it spends it; public values only."""
    queries, facts = plan_of(admission).queries, facts_of(admission)
    event, delta = event_of(queries), event_delta(queries, epsilon=admission.epsilon, delta=admission.delta)
    private = math.isinf(admission.epsilon)
    return {
        "source": admission.source,
        "unit": f"{admission.unit} ({admission.relation}, n and label list public)",
        "units": admission.n,
        "epsilon_pld": None if private else epsilon_pld(event, delta),
        "epsilon_rdp": None if private else epsilon_rdp(event, delta),
        "delta": admission.delta,
        "budget": f"{admission.budget.epsilon:g}, {admission.budget.delta:g}",
        "model": admission.config.model,
        **facts.plan,
        "mechanisms": [
            f"{m.name}: {m.noise}, noise multiplier {m.noise_multiplier:.4g}, {m.steps} steps, "
            f"sampling probability {m.sampling_probability:.4g}, grid 2^{round(math.log2(m.grid))}"
            for m in facts.mechanisms
        ],
        "output": "private: epsilon is infinite, nothing will be exported" if private else "released, may be exported",
    }


def estimate(admission: Admission) -> dict[str, Any]:
    """Expected time and memory, measured on made-up rows of the run's public shape."""
    return planning(admission.config.method).estimate(
        admission.config, plan_of(admission), n=admission.n, label_names=admission.label_names
    )
