"""What a run will do to the clients, fixed before the first text is read; public values only.

One Gaussian query per round, each on a Poisson sample of the clients: T releases, one event (POPri, section 4.1).
Deviations: noise is calibrated by PLD, which needs less of it than the paper's Renyi accounting (`by_rdp` says how
much less); the promise against someone who sees who takes part, as the server does, is stated beside it.
"""

from __future__ import annotations

import math
from pathlib import Path

from dp_accounting import DpEvent
from pydantic import BaseModel, ConfigDict, Field

from understudy.errors import InputError
from understudy.preference_optimization.config import PreferenceOptimizationConfig
from understudy.privacy.accounting import calibrate_noise_multiplier, epsilon_rdp
from understudy.privacy.events import sgd_event
from understudy.privacy.search import solve_decreasing
from understudy.privacy.secure_accounting import NEGLIGIBLE, delta_correction

# One client's clipped vector has at most this norm, so adding or removing it moves the sum by as much.
SENSITIVITY = 1.0


class Plan(BaseModel):
    """Everything that touches private texts, with its noise; the owner of the run's one event.

    Attributes:
        epsilon: Target; infinity means no noise, and an output that stays private.
        delta: Target.
        n: Units of the source, null ones included; public.
        rounds: T, the number of releases.
        sampling_probability: q, with which a unit takes part in a round.
        noise_multiplier: Noise of one round's query over its sensitivity.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    n: int = Field(ge=1)
    rounds: int = Field(ge=1)
    sampling_probability: float = Field(gt=0, le=1)
    noise_multiplier: float = Field(ge=0)

    @property
    def event(self) -> DpEvent:
        """The run's whole event, to be charged once."""
        return sgd_event(
            sampling_probability=self.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            steps=self.rounds,
        )


def plan(
    config: PreferenceOptimizationConfig, *, n: int, epsilon: float, delta: float, cache: Path | None = None
) -> Plan:
    """Calibrate the noise of all rounds together to (epsilon, delta), by PLD.

    *Guarantee*: `plan(...).event` is (epsilon, delta)-DP (unit and relation of the variant, n public).

    Args:
        config: Rounds and sampling probability.
        n: Units of the source, null ones included; public.
        epsilon: Target; infinity gives zero noise.
        delta: Target.
        cache: Folder of earlier calibrations, or None.

    Raises:
        InputError: A value is out of range.
    """
    if n < 1:
        raise InputError(f"n={n}: expected at least one client or row")
    probability = config.clients.sampling_probability
    within = delta
    if config.scoring.aggregation == "masked" and math.isfinite(epsilon):
        # Each masked sum is this close to one with Gaussian noise; the rest of delta is the Gaussian's.
        within -= delta_correction(epsilon, gap=NEGLIGIBLE, rounds=config.rounds)
    noise = calibrate_noise_multiplier(
        lambda z: sgd_event(sampling_probability=probability, noise_multiplier=z, steps=config.rounds),
        epsilon=epsilon,
        delta=within,
        cache=cache,
    )
    return Plan(
        epsilon=epsilon,
        delta=delta,
        n=n,
        rounds=config.rounds,
        sampling_probability=probability,
        noise_multiplier=noise,
    )


def noise_multiplier_by_rdp(planned: Plan) -> float:
    """The noise that Renyi accounting, the paper's, would ask for at the same (epsilon, delta); 0 at infinity."""
    if math.isinf(planned.epsilon):
        return 0.0
    found, _ = solve_decreasing(
        lambda z: epsilon_rdp(planned.model_copy(update={"noise_multiplier": z}).event, planned.delta),
        low=planned.epsilon * (1 - 1e-3),
        high=planned.epsilon,
        start=planned.noise_multiplier,
    )
    return float(found)


def signal_to_noise(planned: Plan, *, candidates: int) -> float:
    """A data-independent bound on the norm of a round's exact sum over the expected norm of its noise.

    q n / (sigma sqrt(M)): reached only if all units agree on one vector; infinity without noise.
    """
    if planned.noise_multiplier == 0:
        return math.inf
    return planned.sampling_probability * planned.n / (planned.noise_multiplier * math.sqrt(candidates))
