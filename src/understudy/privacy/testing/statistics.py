"""Do recorded noise and masks have the distribution that was accounted?

Exact tests where there are any: residuals (output - query) / scale are standard normal, so their pooled
distribution (Kolmogorov-Smirnov), each call's sum of squares (chi-square) and the cosine of two calls'
residuals (Student t) are known. Those of a histogram are few integers, whose sum of squares has a distribution of its
own. Those of masked sums have so fine a grid that they are judged as normal, by all but the pooled distribution. Masks
are Bernoulli(q) in every slot and step.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from understudy.privacy.mechanism_call import Mechanism

Array = NDArray[np.float64]

# Enough to tell a wrong scale or a shared draw from chance, small enough for hundreds of replays.
_POOLED, _PER_CALL, _CALLS = 200_000, 4096, 64
_LONGEST = 1 << 22  # sums of squares that are counted one by one


@dataclass(frozen=True, eq=False)
class Call:
    """One recorded call: what was asked, exactly, and what came back; equal only to itself."""

    mechanism: Mechanism
    query: dict[str, Tensor] = field(repr=False)
    output: dict[str, Tensor] = field(repr=False)

    def __str__(self) -> str:
        """The call's public name."""
        return f"{self.mechanism.kind} step={self.mechanism.step} purpose={self.mechanism.purpose!r}"


def noise_faults(calls: Sequence[Call], *, significance: float, noiseless: bool) -> list[str]:
    """What is wrong with the noise of the sums and histograms; empty when nothing is.

    Args:
        calls: of one run with real masks.
        significance: probability that a test of correct noise fails.
        noiseless: accept calls whose declared noise is zero.
    """
    noised = [call for call in calls if call.mechanism.kind != "poisson"]
    silent = [call for call in noised if call.mechanism.scale == 0]
    faults = [] if noiseless else [f"{call}: no noise" for call in silent]
    faults += [f"{call}: noise of scale 0 changed the query" for call in silent if np.any(_residual(call))]
    residuals = {call: _residual(call) / call.mechanism.scale for call in noised if call.mechanism.scale > 0}
    for call, residual in residuals.items():
        squares = float(np.square(residual).sum())
        if call.mechanism.kind == "histogram":
            chance = _integer_chance(round(squares * call.mechanism.scale**2), len(residual), call.mechanism.scale)
        else:
            chance = 2 * min(stats.chi2.cdf(squares, len(residual)), stats.chi2.sf(squares, len(residual)))
        if not chance >= significance:  # also when it is nan
            ratio = (squares / len(residual)) ** 0.5
            faults.append(f"{call}: noise is {ratio:.4g} times what was declared (p={chance:.2g})")
    gaussian = {call: r for call, r in residuals.items() if call.mechanism.kind == "gaussian_sum"}
    if gaussian:
        faults += _shape_faults(list(gaussian.values()), significance)
    normal = {call: r for call, r in residuals.items() if call.mechanism.kind != "histogram"}
    if normal:
        faults += _dependence_faults(normal, significance)
    return faults


def _integer_chance(squares: int, size: int, sigma: float) -> float:
    """Twice the probability that squares of `size` discrete Gaussians add up to so little, or to so much.

    A chi-square would call the likeliest outcome, no noise on any of a few counts, impossible. Where the convolution
    is too long, the noise is taken for rounded normals: rounding moves the norm by at most sqrt(size) / 2.
    """
    reach = math.ceil(10 * sigma) + 2
    length = size * reach**2 + 1
    if length > _LONGEST:
        norm, moved = squares**0.5, size**0.5 / 2
        below = stats.chi2.cdf(((norm + moved) / sigma) ** 2, size)
        return float(2 * min(below, stats.chi2.sf((max(0.0, norm - moved) / sigma) ** 2, size)))
    values = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (values / sigma) ** 2)
    one = np.fft.rfft(np.bincount(values**2, weights=weights / weights.sum()), length)
    sums = np.fft.irfft(one**size, length)
    return float(2 * min(sums[: squares + 1].sum(), sums[squares:].sum()))


def _residual(call: Call) -> Array:
    """Output minus query, one vector, in float64."""
    return _vector(call.output) - _vector(call.query)


def _vector(values: dict[str, Tensor]) -> Array:
    joined = torch.cat([values[name].double().flatten() for name in sorted(values)])
    return np.asarray(joined.cpu().numpy(), dtype=np.float64)


def _shape_faults(residuals: list[Array], significance: float) -> list[str]:
    pooled = np.concatenate(residuals)
    pooled = pooled[:: -(-len(pooled) // _POOLED)]
    chance = float(stats.kstest(pooled, "norm").pvalue)
    return [] if chance >= significance else [f"the noise is not normal with its declared scale (p={chance:.2g})"]


def _dependence_faults(residuals: dict[Call, Array], significance: float) -> list[str]:
    """Noise that one step or stream shares with another, or with the query that it hides."""
    chosen = list(residuals)[:: -(-len(residuals) // _CALLS)]
    size = min(_PER_CALL, *(len(residuals[call]) for call in chosen))
    pairs = list(itertools.combinations(chosen, 2))
    level = significance / max(1, len(pairs) + len(chosen))
    faults = []
    for one, other in pairs:
        chance = _cosine_chance(residuals[one][:size], residuals[other][:size])
        if chance < level:
            faults.append(f"{one} and {other}: the noise is dependent (p={chance:.2g})")
    for call in chosen:
        chance = _cosine_chance(residuals[call], _vector(call.query))
        if chance < level:
            faults.append(f"{call}: the noise depends on the query (p={chance:.2g})")
    return faults


def _cosine_chance(noise: Array, other: Array) -> float:
    """Probability of so large a cosine between independent normal noise and any other vector."""
    lengths = float(np.linalg.norm(noise) * np.linalg.norm(other))
    freedom = len(noise) - 1
    if lengths == 0 or freedom < 1:
        return 1.0
    cosine = float(noise @ other) / lengths
    statistic = abs(cosine) * (freedom / max(1e-300, 1 - cosine**2)) ** 0.5
    return float(2 * stats.t.sf(statistic, freedom))


def mask_faults(calls: Sequence[Call], *, significance: float) -> list[str]:
    """What is wrong with the masks; empty when nothing is."""
    trainings: dict[tuple[str, float], list[Array]] = defaultdict(list)
    for call in calls:
        if call.mechanism.kind == "poisson":
            mask = np.asarray(call.output["mask"].cpu().numpy(), dtype=np.float64)
            trainings[call.mechanism.purpose, call.mechanism.scale].append(mask)
    return [
        f"masks of {purpose!r}, q={q}: {fault}"
        for (purpose, q), masks in trainings.items()
        for fault in _training_mask_faults(np.stack(masks), q, significance)
    ]


def _training_mask_faults(masks: Array, q: float, significance: float) -> Iterator[str]:
    """Faults of the masks (steps, n) of one training."""
    steps, n = masks.shape
    total = int(masks.sum())
    chance = float(stats.binomtest(total, steps * n, q).pvalue)
    if chance < significance:
        yield f"{total} of {steps * n} taken, which does not fit (p={chance:.2g})"
    # Two steps agree in all slots by chance with probability (q^2 + (1-q)^2)^n.
    if steps * (steps - 1) / 2 * (q**2 + (1 - q) ** 2) ** n < significance:
        repeated = steps - len(np.unique(masks, axis=0))
        if repeated:
            yield f"{repeated} of {steps} steps repeat the mask of another step"
    for name, sums, each in (("steps", masks.sum(1), n), ("slots", masks.sum(0), steps)):
        variance = each * q * (1 - q)
        # The chi-square form of the dispersion test needs sums that are nearly normal.
        if variance >= 5 and len(sums) >= 10:
            squares = float(np.square(sums - each * q).sum() / variance)
            chance = 2 * min(stats.chi2.cdf(squares, len(sums)), stats.chi2.sf(squares, len(sums)))
            if chance < significance:
                yield f"sums over {name} vary {squares / len(sums):.3g} times as much as they should"
