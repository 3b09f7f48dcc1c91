"""The plan of an admitted run in public figures: what it charges, its noise, its expected time and memory."""

from __future__ import annotations

import math
import resource
import time
from typing import Any

from understudy.admission import Admission
from understudy.conditional_generation.config import ConditionalGenerationConfig
from understudy.conditional_generation.plan import Plan, plan
from understudy.privacy.accounting import epsilon_pld, epsilon_rdp
from understudy.privacy.statement import MechanismFacts
from understudy.settings import settings

_TIMED_STEPS = 3


def calibrated_plan(config: ConditionalGenerationConfig, *, n: int, epsilon: float, delta: float) -> Plan:
    """`plan`, with earlier calibrations of the same public values reused."""
    return plan(config, n=n, epsilon=epsilon, delta=delta, cache=settings().home / "calibrations")


def mechanism_facts(planned: Plan) -> tuple[MechanismFacts, ...]:
    """Every noised query of a plan, as the privacy statement lists it."""
    series = [
        MechanismFacts(
            name=f"{training.name}/{stream.name}",
            query=f"sum of per-example gradients of the {stream.name} loss",
            noise="gaussian",
            noise_multiplier=stream.noise_multiplier,
            sensitivity=stream.l2_clip_norm,
            l2_clip_norm=stream.l2_clip_norm,
            steps=training.steps,
            sampling_probability=training.sampling_probability,
        )
        for training in planned.trainings
        for stream in training.streams
    ]
    if planned.histogram_sigma is None:
        return tuple(series)
    histogram = MechanismFacts(
        name="class-sizes",
        query="number of rows of each label",
        noise="discrete gaussian",
        noise_multiplier=planned.histogram_sigma,
        sensitivity=1.0,
        steps=1,
        sampling_probability=1.0,
        sampler="none: every row counts",
    )
    return (histogram, *series)


def describe_plan(admission: Admission) -> dict[str, Any]:
    """What the run will charge and how it spends it; public values only."""
    planned = calibrated_plan(admission.config, n=admission.n, epsilon=admission.epsilon, delta=admission.delta)
    private = math.isinf(admission.epsilon)
    return {
        "source": admission.source,
        "unit": "example (replace by null, n and label list public)",
        "rows": admission.n,
        "epsilon_pld": None if private else epsilon_pld(planned.event, admission.delta),
        "epsilon_rdp": None if private else epsilon_rdp(planned.event, admission.delta),
        "delta": admission.delta,
        "budget": f"{admission.budget.epsilon:g}, {admission.budget.delta:g}",
        "model": admission.config.model,
        "steps": planned.steps,
        "mechanisms": [
            f"{m.name}: {m.noise}, noise multiplier {m.noise_multiplier:.4g}, {m.steps} steps, "
            f"sampling probability {m.sampling_probability:.4g}"
            for m in mechanism_facts(planned)
        ],
        "output": "private: epsilon is infinite, nothing will be exported" if private else "released, may be exported",
    }


def estimate(admission: Admission) -> dict[str, Any]:
    """Expected time and memory, measured on a few steps with made-up rows of the run's public shape."""
    from understudy.conditional_generation.fitting import train_on_table
    from understudy.privacy.ledger_records import KeyMaterial
    from understudy.privacy.mechanisms import Gateway

    config = admission.config
    planned = calibrated_plan(config, n=admission.n, epsilon=admission.epsilon, delta=admission.delta)
    short = planned.model_copy(
        update={
            "trainings": tuple(t.model_copy(update={"steps": min(t.steps, _TIMED_STEPS)}) for t in planned.trainings)
        }
    )
    # Keys of no charge: what this trains on is made up, and the result is thrown away.
    gateway = Gateway.live(KeyMaterial(b"estimate" * 4, "estimate", b"estimate" * 4))
    text = "a text of the padded length " * config.train.max_length
    rows = [text] * admission.n
    marks: list[float] = [time.perf_counter()]
    train_on_table(
        rows,
        [0] * admission.n,
        label_names=admission.label_names,
        config=config,
        plan=short,
        gateway=gateway,
        progress=lambda _step, _total: marks.append(time.perf_counter()),
    )
    # The first interval also holds loading and encoding, so it counts only where it is the only one.
    per_step = (marks[-1] - marks[1]) / (len(marks) - 2) if len(marks) > 2 else marks[1] - marks[0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "expected_training_minutes": round(per_step * planned.steps / 60, 1),
        "expected_peak_memory_mib": round(peak),
    }
