"""Everything that a run asks of the private rows; public values only.

Without a charge nothing is asked through a mechanism, and the list is empty: its event is not private. With one, every
expert is a DP-SGD over all rows, and all steps of all experts are composed under one noise multiplier.
"""

from __future__ import annotations

import math
from pathlib import Path

from understudy.errors import InputError
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.selection import free_rows, rows_wanted
from understudy.privacy.calibration import calibrate_noise_multiplier
from understudy.privacy.dpsgd.plan import DpSgdPlan, Stream
from understudy.privacy.queries import Queries, event_of

GRADIENT = "adapters"


def plans_of(config: TrajectoryMatchingConfig, *, n: int, noise_multiplier: float) -> tuple[DpSgdPlan, ...]:
    """One DP-SGD for each expert; a step samples every row with probability `batch_size` / n, at most 1."""
    experts = config.experts
    probability = min(1.0, experts.batch_size / n)
    stream = Stream(name=GRADIENT, l2_clip_norm=experts.l2_clip_norm, noise_multiplier=noise_multiplier)
    return tuple(
        DpSgdPlan(
            name=f"expert-{number}",
            n=n,
            sampling_probability=probability,
            steps=experts.epochs * steps_per_epoch(config, n),
            streams=(stream,),
        )
        for number in range(experts.count)
    )


def steps_per_epoch(config: TrajectoryMatchingConfig, n: int) -> int:
    """Steps between two snapshots of n declared rows."""
    return max(1, round(n / config.experts.batch_size))


def queries_of(
    config: TrajectoryMatchingConfig, *, n: int, epsilon: float, delta: float, cache: Path | None = None
) -> Queries:
    """Calibrate the noise of all experts together to (epsilon, delta), by PLD.

    *Guarantee*: the queries together are (epsilon, delta)-DP (unit example, relation replace_special, n public); an
    empty list, of a run without private experts, promises nothing.

    Args:
        config: number of experts, epochs, batch, clip norm.
        n: rows of the source, null ones included; public.
        epsilon: target; infinity gives no noise.
        delta: target.
        cache: folder of earlier calibrations, or None.

    Raises:
        InputError: a value is out of range, more rows are to be chosen than there are, or a finite epsilon is asked of
            experts that are not private.
    """
    if n < 1:
        raise InputError(f"n={n}: expected at least one row")
    if config.carrier == "selected":
        rows_wanted(config.selecting, free_rows(config.selecting, n))
    if not config.experts.private:
        if math.isfinite(epsilon):
            raise InputError(
                f"epsilon={epsilon:g}: expected experts.private=true, for other experts promise nothing; leave "
                "experts.private out, or leave --epsilon out"
            )
        return ()

    def asked(noise_multiplier: float) -> Queries:
        plans = plans_of(config, n=n, noise_multiplier=noise_multiplier)
        return tuple(query for plan in plans for query in plan.queries)

    noise = calibrate_noise_multiplier(lambda z: event_of(asked(z)), epsilon=epsilon, delta=delta, cache=cache)
    return asked(noise)


def part_of_rows(config: TrajectoryMatchingConfig, queries: Queries, *, dimension: int) -> float:
    """How much of an expert's way over an epoch the rows can account for, as a part of its expected squared length.

    An epoch adds up about n clipped gradients, so the rows move the expert by at most n C together. The noise of its
    T steps has the expected squared length T d (z C)^2, in a direction that no row is about. Hence at most
    n^2 / (n^2 + T d z^2), whatever the rows hold: data-independent and public. Adam rescales both, and more or fewer
    than n rows may be drawn, so it is an estimate of the best case.

    Args:
        config: sizes of an epoch.
        queries: of the charge; without noise the rows account for everything.
        dimension: d, numbers in an expert's adapters.
    """
    plan = plan_of_expert(config, queries, 0)
    noise = plan.streams[0].noise_multiplier
    return plan.n**2 / (plan.n**2 + steps_per_epoch(config, plan.n) * dimension * noise**2)


def plan_of_expert(config: TrajectoryMatchingConfig, queries: Queries, number: int) -> DpSgdPlan:
    """The DP-SGD of one expert, from the charged list.

    Raises:
        InputError: the list holds none such.
    """
    found = [query for query in queries if query.batch == f"expert-{number}"]
    if not found:
        raise InputError(f"expected the queries of expert {number} on the charged list, found {len(queries)} others")
    plans = plans_of(config, n=found[0].units, noise_multiplier=found[0].noise_multiplier)
    return plans[number]
