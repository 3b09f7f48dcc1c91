"""Everything that a run asks of the private rows, fixed before the first of them is read; public values only.

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

from pydantic import BaseModel, ConfigDict, Field
from scipy.special import ndtr

from understudy.errors import InputError, UnderstudyError
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.privacy.accounting import combined_noise_multiplier, epsilon_pld
from understudy.privacy.calibration import analytic_gaussian_sigma
from understudy.privacy.charged import Charged
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


class QuerySchedule(BaseModel):
    """The run's list of queries as the release reads it.

    Attributes:
        n: Rows of the source, null ones included; public.
        l2_clip_norm: C, the sensitivity of the target's query.
        noise_multiplier: Noise of the target's query over C.
        length_noise_multiplier: Noise of the length's query over its sensitivity; None if length is public.
    """

    model_config = _FROZEN

    n: int = Field(ge=1)
    l2_clip_norm: float = Field(gt=0)
    noise_multiplier: float = Field(ge=0)
    length_noise_multiplier: float | None = Field(default=None, ge=0)

    @property
    def queries(self) -> Queries:
        """Everything that the rows are asked, to be charged once."""
        return _queries(self.noise_multiplier, self.length_noise_multiplier, n=self.n, clip=self.l2_clip_norm)


def schedule_of(queries: Queries) -> QuerySchedule:
    """The schedule behind a list of queries, `schedule_of(schedule.queries) == schedule`.

    Raises:
        UnderstudyError: the list is not one of this method.
    """
    named = {query.name: query for query in queries}
    if TARGET in named:
        target, length = named[TARGET], named.get(LENGTH)
        found = QuerySchedule(
            n=target.units,
            l2_clip_norm=target.sensitivity,
            noise_multiplier=target.noise_multiplier,
            length_noise_multiplier=None if length is None else length.noise_multiplier,
        )
        if found.queries == queries:
            return found
    raise UnderstudyError("expected the queries of a target and, at most, a length; found others")


Asked = Charged[GradientMatchingConfig, QuerySchedule]


def queries_of(config: GradientMatchingConfig, *, n: int, epsilon: float, delta: float) -> Queries:
    """Calibrate the noise of target and length to one (epsilon, delta), by PLD.

    *Guarantee*: the queries together are (epsilon, delta)-DP (unit example, relation replace_special, n public).

    Args:
        config: Calibration, clip norm, length.
        n: Rows of the source, null ones included; public.
        epsilon: Target; infinity gives zero noise.
        delta: Target.

    Raises:
        InputError: A value is out of range.
    """
    found = calibrations(config, n=n, epsilon=epsilon, delta=delta)
    chosen = next(one for one in found if one.formula == config.target.calibration)
    clip, length_noise = config.target.l2_clip_norm, _length_noise(config, epsilon=epsilon, delta=delta)
    noise = _wanted(config, epsilon=epsilon, delta=delta)[chosen.formula]
    if chosen.epsilon > epsilon:
        noise = _raised(
            lambda z: epsilon_pld(event_of(_queries(z, length_noise, n=n, clip=clip)), delta), noise, epsilon
        )
    return _queries(noise, length_noise, n=n, clip=clip)


def calibrations(config: GradientMatchingConfig, *, n: int, epsilon: float, delta: float) -> tuple[Calibration, ...]:
    """What both formulas ask for, and what that would cost by PLD.

    Raises:
        InputError: A value is out of range.
    """
    if n < 1 or not 0 < delta < 1 or not epsilon > 0:
        raise InputError(f"expected n >= 1, epsilon > 0 and 0 < delta < 1, found {n=}, {epsilon=}, {delta=}")
    clip, length_noise = config.target.l2_clip_norm, _length_noise(config, epsilon=epsilon, delta=delta)
    return tuple(
        Calibration(
            formula=formula,
            sigma_sum=noise * clip,
            sigma_mean=noise * clip / n,
            epsilon=epsilon_pld(event_of(_queries(noise, length_noise, n=n, clip=clip)), delta),
        )
        for formula, noise in _wanted(config, epsilon=epsilon, delta=delta).items()
    )


def _share(config: GradientMatchingConfig) -> float:
    """The part of epsilon and delta that the length takes."""
    return config.length_share if config.length == "as_in_data" else 0.0


def _length_noise(config: GradientMatchingConfig, *, epsilon: float, delta: float) -> float | None:
    share = _share(config)
    return _analytic(epsilon * share, delta * share) if share else None


def _wanted(config: GradientMatchingConfig, *, epsilon: float, delta: float) -> dict[Formula, float]:
    """The noise multiplier of the target by each formula."""
    share = _share(config)
    return {
        "analytic": _rest(_analytic(epsilon, delta), _length_noise(config, epsilon=epsilon, delta=delta)),
        "paper": paper_noise_multiplier(epsilon * (1 - share), delta * (1 - share)),
    }


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


def signal_to_noise_warning(schedule: QuerySchedule, *, dimension: int, directions: int) -> str | None:
    """A sentence for the user where the noise hides the rows, or None.

    Noise in directions that no text's gradient has is harmless, so the ratio of norms alone says little: what counts
    is the rows' total pull n C against the noise sigma in one direction. Two thresholds follow from it. Replacing
    every row by null changes the probability of any result by at most 2 Phi(n C / (2 sigma)) - 1: up to one half, the
    result is called independent of the data. Else, a text's gradient is a function of the head's `directions` inputs,
    so a search can follow the noise in about that many directions, where its norm is sigma sqrt(directions): if that
    exceeds n C, noise outweighs whatever the rows hold.

    Args:
        schedule: Noise of target and length, and n.
        dimension: Numbers in one label's target.
        directions: Width of the head's input.
    """
    if schedule.noise_multiplier == 0:
        return None
    noise = schedule.noise_multiplier
    bound = signal_to_noise_bound(noise_multiplier=noise, n=schedule.n, dimension=dimension)
    begin = f"signal-to-noise ratio of the target at most {bound:.2g}: "
    both = combined_noise_multiplier(*(z for z in (noise, schedule.length_noise_multiplier) if z is not None))
    influence = 2 * float(ndtr(schedule.n / both / 2)) - 1
    if influence <= _HIDDEN_BELOW:
        return (
            f"{begin}the output cannot depend on the data in any way that matters, for replacing all {schedule.n} rows "
            f"by null rows would change the probability of any result by at most {influence:.2g}; use more rows or a "
            "larger epsilon"
        )
    strength = math.sqrt(min(directions, dimension)) * noise / schedule.n
    if strength > 1:
        return (
            f"{begin}in the directions that a text's gradient can follow, the noise is {strength:.2g} times as strong "
            f"as all {schedule.n} rows together can be, so the output depends on the noise more than on the data; use "
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
