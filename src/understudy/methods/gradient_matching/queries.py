"""What a run will do to the private rows, fixed before the first of them is read; public values only.

One Gaussian query releases the sums of clipped gradients of all labels: an example has one label, so it moves the
whole query by at most C. With length=as_in_data a second one releases the texts' mean length.

Noise is calibrated in one of two ways. `analytic` takes the least noise that meets the target (Balle & Wang 2018,
Theorem 8). `paper` takes GRADMM's formulas (section 4.5, unnumbered): for epsilon <= 1 sigma = C sqrt(2 ln(1.25/delta))
/ epsilon (Dwork & Roth 2014, Theorem A.1), above it sigma = C (c + sqrt(c^2 + epsilon)) / (sqrt(2) epsilon) with
c^2 = ln(2 / (sqrt(16 delta + 1) - 1)) (Lowy & Razaviyayn 2021). Deviations: the paper noises the mean, here the sum is
noised, which is the same but for the public factor n, and a label's share in n is not needed; whatever a formula
says, the charged epsilon is the event's by PLD, and noise is raised until that is at most the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from dp_accounting import DpEvent
from pydantic import BaseModel, ConfigDict, Field
from scipy.special import ndtr

from understudy.errors import InputError
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.privacy.accounting import analytic_gaussian_sigma, combined_noise_multiplier, epsilon_pld
from understudy.privacy.queries import Queries, Query, event_of

Formula = Literal["analytic", "paper"]

TARGET, LENGTH = "target", "length"
# Summed length as a share of the longest, and the number of texts: one row moves each by at most 1.
LENGTH_SENSITIVITY = math.sqrt(2)

# Who guesses from the result whether the rows were there or all null is then right at most 3 times in 4.
_HIDDEN_BELOW = 0.5
_WIDENING = 1e-6

_FROZEN = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Calibration(BaseModel):
    """What one formula asks for; a row of the table that the report shows.

    Attributes:
        formula: analytic or paper.
        sigma_sum: Standard deviation of the noise on the sum of clipped gradients.
        sigma_mean: The same on their mean over n, which is what the paper noises.
        epsilon: Of the whole event with this noise, by PLD, before any raise.
    """

    model_config = _FROZEN

    formula: Formula
    sigma_sum: float
    sigma_mean: float
    epsilon: float


class Plan(BaseModel):
    """Everything that touches private rows, with its noise; the owner of the run's list of queries.

    Attributes:
        epsilon: Target; infinity means no noise, and an output that stays private.
        delta: Target.
        n: Rows of the source, null ones included; public.
        l2_clip_norm: C, the sensitivity of the target's query.
        noise_multiplier: Noise of the target's query over C.
        length_noise_multiplier: Noise of the length's query over its sensitivity; None if length is public.
        calibrations: What both formulas ask for.
    """

    model_config = _FROZEN

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    n: int = Field(ge=1)
    l2_clip_norm: float = Field(gt=0)
    noise_multiplier: float = Field(ge=0)
    length_noise_multiplier: float | None = Field(default=None, ge=0)
    calibrations: tuple[Calibration, ...]

    @property
    def queries(self) -> Queries:
        """Everything that the rows are asked, to be charged once."""
        return _queries(self.noise_multiplier, self.length_noise_multiplier, n=self.n, clip=self.l2_clip_norm)

    @property
    def event(self) -> DpEvent:
        """The event of all queries together."""
        return event_of(self.queries)


def plan(config: GradientMatchingConfig, *, n: int, epsilon: float, delta: float) -> Plan:
    """Calibrate the noise of target and length to one (epsilon, delta), by PLD.

    *Guarantee*: `plan(...).event` is (epsilon, delta)-DP (unit example, relation replace_special, n public).

    Args:
        config: Calibration, clip norm, length.
        n: Rows of the source, null ones included; public.
        epsilon: Target; infinity gives zero noise.
        delta: Target.

    Raises:
        InputError: A value is out of range.
    """
    if n < 1 or not 0 < delta < 1 or not epsilon > 0:
        raise InputError(f"expected n >= 1, epsilon > 0 and 0 < delta < 1, found {n=}, {epsilon=}, {delta=}")
    share = config.length_share if config.length == "as_in_data" else 0.0
    length_noise = None
    if share:
        length_noise = _analytic(epsilon * share, delta * share)
    wanted: dict[Formula, float] = {
        "analytic": _rest(_analytic(epsilon, delta), length_noise),
        "paper": paper_noise_multiplier(epsilon * (1 - share), delta * (1 - share)),
    }
    clip = config.target.l2_clip_norm

    def epsilon_with(z: float) -> float:
        return epsilon_pld(event_of(_queries(z, length_noise, n=n, clip=clip)), delta)

    calibrations = tuple(
        Calibration(
            formula=formula,
            sigma_sum=noise * clip,
            sigma_mean=noise * clip / n,
            epsilon=epsilon_with(noise),
        )
        for formula, noise in wanted.items()
    )
    chosen = next(one for one in calibrations if one.formula == config.target.calibration)
    noise = wanted[chosen.formula]
    if chosen.epsilon > epsilon:
        noise = _raised(epsilon_with, noise, epsilon)
    return Plan(
        epsilon=epsilon,
        delta=delta,
        n=n,
        l2_clip_norm=clip,
        noise_multiplier=noise,
        length_noise_multiplier=length_noise,
        calibrations=calibrations,
    )


def paper_noise_multiplier(epsilon: float, delta: float) -> float:
    """Sigma over C by the paper's formulas (section 4.5) for the sum; 0 at epsilon infinity."""
    if math.isinf(epsilon):
        return 0.0
    if epsilon <= 1:
        return math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    # sqrt(16 delta + 1) - 1, without the cancellation for small delta
    c = math.sqrt(math.log(2 * (math.sqrt(16 * delta + 1) + 1) / (16 * delta)))
    return (c + math.sqrt(c * c + epsilon)) / (math.sqrt(2) * epsilon)


def signal_to_noise_bound(*, noise_multiplier: float, n: int, dimension: int) -> float:
    """The largest norm that a label's exact sum can have, over the expected norm of its noise.

    C n / (sigma sqrt(dimension)), whatever the rows hold: data-independent and public. It is reached only if all n
    rows have this label and gradients of one direction.

    Args:
        noise_multiplier: Of the target's query; 0 gives infinity.
        n: Rows that may have the label: of the whole source for a bound; n / K says what equal classes would give.
        dimension: Numbers in one label's target.
    """
    return math.inf if noise_multiplier == 0 else n / (noise_multiplier * math.sqrt(dimension))


def signal_to_noise_warning(plan: Plan, *, dimension: int, directions: int) -> str | None:
    """A sentence for the user where the noise hides the rows, or None.

    Noise in directions that no text's gradient has is harmless, so the ratio of norms alone says little: what counts
    is the rows' total pull n C against the noise sigma in one direction. Two thresholds follow from it. Replacing
    every row by null changes the probability of any result by at most 2 Phi(n C / (2 sigma)) - 1: up to one half, the
    result is called independent of the data. Else, a text's gradient is a function of the head's `directions` inputs,
    so a search can follow the noise in about that many directions, where its norm is sigma sqrt(directions): if that
    exceeds n C, noise outweighs whatever the rows hold.

    Args:
        plan: Noise of target and length, and n.
        dimension: Numbers in one label's target.
        directions: Width of the head's input.
    """
    if plan.noise_multiplier == 0:
        return None
    noise = plan.noise_multiplier
    bound = signal_to_noise_bound(noise_multiplier=noise, n=plan.n, dimension=dimension)
    begin = f"signal-to-noise ratio of the target at most {bound:.2g}: "
    both = combined_noise_multiplier(*(z for z in (noise, plan.length_noise_multiplier) if z is not None))
    influence = 2 * float(ndtr(plan.n / both / 2)) - 1
    if influence <= _HIDDEN_BELOW:
        return (
            f"{begin}the output cannot depend on the data in any way that matters, for replacing all {plan.n} rows by "
            f"null rows would change the probability of any result by at most {influence:.2g}; use more rows or a "
            "larger epsilon"
        )
    strength = math.sqrt(min(directions, dimension)) * noise / plan.n
    if strength > 1:
        return (
            f"{begin}in the directions that a text's gradient can follow, the noise is {strength:.2g} times as strong "
            f"as all {plan.n} rows together can be, so the output depends on the noise more than on the data; use "
            "more rows or a larger epsilon"
        )
    return None


def _queries(noise_multiplier: float, length_noise_multiplier: float | None, *, n: int, clip: float) -> Queries:
    target = Query(kind="gaussian_sum", name=TARGET, units=n, sensitivity=clip, noise_multiplier=noise_multiplier)
    if length_noise_multiplier is None:
        return (target,)
    length = Query(
        kind="gaussian_sum",
        name=LENGTH,
        units=n,
        sensitivity=LENGTH_SENSITIVITY,
        noise_multiplier=length_noise_multiplier,
    )
    return (target, length)


def _analytic(epsilon: float, delta: float) -> float:
    """The least noise multiplier of one Gaussian query; 0 at epsilon infinity."""
    return 0.0 if math.isinf(epsilon) else analytic_gaussian_sigma(epsilon=epsilon, delta=delta, sensitivity=1.0)


def _rest(total: float, spent: float | None) -> float:
    """What is left for a second Gaussian query: z with (z^-2 + spent^-2)^-1/2 = total."""
    return total if not spent else (total**-2 - spent**-2) ** -0.5


def _raised(epsilon_of: Callable[[float], float], noise: float, epsilon: float) -> float:
    """The least noise above `noise`, to one part in a million of it, whose epsilon is at most the target."""
    low, high = 0.0, _WIDENING  # as shares of `noise` that are added: too little, enough
    while epsilon_of(noise * (1 + high)) > epsilon:
        low, high = high, 2 * high
        if high > 1e3:
            raise InputError(f"epsilon={epsilon}: no amount of noise reaches it; ask for a larger epsilon")
    while high - low > _WIDENING:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(noise * (1 + middle)) > epsilon else (low, middle)
    return noise * (1 + high)
