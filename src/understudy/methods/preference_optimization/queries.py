"""Everything that a run asks of the clients, fixed before the first text is read; public values only.

One Gaussian query per round, each on a Poisson sample of the clients: T releases, one event (POPri, section 4.1).
Deviations: noise is calibrated by PLD, which needs less of it than the paper's Renyi accounting (`by_rdp` says how
much less); the promise against someone who sees who takes part, as the server does, is stated beside it.
"""

from __future__ import annotations

import math
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from understudy.errors import InputError, UnderstudyError
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.privacy.accounting import epsilon_rdp
from understudy.privacy.calibration import calibrate_noise_multiplier
from understudy.privacy.queries import Queries, Query, event_delta, event_of
from understudy.privacy.search import solve_decreasing

# One client's clipped vector has at most this norm, so adding or removing it moves the sum by as much.
SENSITIVITY = 1.0
SCORES, PARTICIPATION = "scores", "participation"


class QuerySchedule(BaseModel):
    """The run's list of queries as the rounds read it.

    Attributes:
        n: Units of the source, null ones included; public.
        rounds: T, the number of releases.
        sampling_probability: q, with which a unit takes part in a round.
        noise_multiplier: Noise of one round's query over its sensitivity.
        masked: Whether the units' vectors are added up by secure aggregation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    n: int = Field(ge=1)
    rounds: int = Field(ge=1)
    sampling_probability: float = Field(gt=0, le=1)
    noise_multiplier: float = Field(ge=0)
    masked: bool = False

    @property
    def queries(self) -> Queries:
        """Everything that the units are asked, to be charged once: one query per round, on a mask if not all count."""
        query = Query(
            kind="masked_sum" if self.masked else "gaussian_sum",
            name=SCORES,
            units=self.n,
            steps=self.rounds,
            sensitivity=SENSITIVITY,
            noise_multiplier=self.noise_multiplier,
            batch=PARTICIPATION if self.sampling_probability < 1 else None,
            sampling_probability=self.sampling_probability,
        )
        return (query,)


# What `scoring.as_query` makes up for. With labels the candidates are those of one: a unit is one text then, which adds
# exact zeros to the columns of all other labels, and each label's columns are a product of their own, so that these are
# the same to the last bit without the unit. It moves, and has rounded, the columns of its own label alone.
_MOST_UNITS = 10**6
_MOST_CANDIDATES = 10**5


def schedule_of(queries: Queries) -> QuerySchedule:
    """The schedule behind a list of queries, `schedule_of(schedule.queries) == schedule`.

    Raises:
        UnderstudyError: the list is not one of this method.
    """
    first = queries[0]
    found = QuerySchedule(
        n=first.units,
        rounds=first.steps,
        sampling_probability=first.sampling_probability,
        noise_multiplier=first.noise_multiplier,
        masked=first.kind == "masked_sum",
    )
    if found.queries != queries:
        raise UnderstudyError("expected the one query of every round, found others")
    return found


def queries_of(
    config: PreferenceOptimizationConfig, *, n: int, epsilon: float, delta: float, cache: Path | None = None
) -> Queries:
    """Calibrate the noise of all rounds together to (epsilon, delta), by PLD.

    *Guarantee*: the queries together are (epsilon, delta)-DP (unit and relation of the variant, n public).

    Args:
        config: Rounds and sampling probability.
        n: Units of the source, null ones included; public.
        epsilon: What is promised together with `delta`; at infinity the noise is zero.
        delta: See `epsilon`.
        cache: Where calibrations are kept; None: nowhere.

    Raises:
        InputError: A value is out of range.
    """
    candidates = config.candidates.prompts * config.candidates.per_prompt
    if n > _MOST_UNITS or candidates > _MOST_CANDIDATES:
        raise InputError(
            f"expected at most {_MOST_UNITS:,} units and {_MOST_CANDIDATES:,} candidates, for which the rounding of "
            f"float64 is covered, found {n:,} and {candidates:,}; lower candidates.prompts or candidates.per_prompt, "
            "or give fewer clients"
        )
    if n < 1 or not epsilon > 0 or not 0 < delta < 1:
        raise InputError(f"expected n >= 1, epsilon > 0 and 0 < delta < 1, found {n=}, {epsilon=}, {delta=}")

    def asked(noise_multiplier: float) -> Queries:
        return QuerySchedule(
            n=n,
            rounds=config.rounds,
            sampling_probability=config.clients.sampling_probability,
            noise_multiplier=noise_multiplier,
            masked=config.scoring.aggregation == "masked",
        ).queries

    noise = calibrate_noise_multiplier(
        lambda z: event_of(asked(z)),
        epsilon=epsilon,
        # Each masked sum is close to one with Gaussian noise; the rest of delta is the Gaussian's.
        delta=event_delta(asked(1.0), epsilon=epsilon, delta=delta),
        cache=cache,
    )
    return asked(noise)


def noise_multiplier_by_rdp(schedule: QuerySchedule, *, epsilon: float, delta: float) -> float:
    """The noise that Renyi accounting, the paper's, would ask for at the same (epsilon, delta); 0 at infinity."""
    if math.isinf(epsilon):
        return 0.0
    found, _ = solve_decreasing(
        lambda z: epsilon_rdp(event_of(schedule.model_copy(update={"noise_multiplier": z}).queries), delta),
        low=epsilon * (1 - 1e-3),
        high=epsilon,
        start=schedule.noise_multiplier,
    )
    return float(found)


def signal_to_noise(schedule: QuerySchedule, *, candidates: int) -> float:
    """A data-independent bound on the norm of a round's exact sum over the expected norm of its noise.

    q n / (sigma sqrt(M)): reached only if all units agree on one vector; infinity without noise.
    """
    if schedule.noise_multiplier == 0:
        return math.inf
    return schedule.sampling_probability * schedule.n / (schedule.noise_multiplier * math.sqrt(candidates))
