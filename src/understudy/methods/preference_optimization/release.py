"""Everything of this method that private texts meet: one noised sum of score vectors per round.

What goes in is a pool of client embeddings, public candidates and a charged mechanism interface; what comes out is a
function of the mechanisms' outputs and public values. The record-and-replay proof wraps this.

Paper: POPri, algorithms 1 to 5. Deviations: `client_vectors` and `scoring` name those of a client's vector; here, noise
is added to the sum and never divided by a number of clients that only the data know.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from understudy.errors import InputError
from understudy.methods.preference_optimization.client_vectors import (
    CandidateSpace,
    FloatArray,
    IntArray,
    Rows,
    candidate_space,
    client_vectors,
)
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.histogram import histogram_sum, histogram_vectors, nearest_candidates
from understudy.methods.preference_optimization.pool import ClientPool
from understudy.methods.preference_optimization.queries import PARTICIPATION, SCORES, SENSITIVITY, QuerySchedule
from understudy.methods.preference_optimization.scoring import as_query, exact_sum
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.secure_aggregation.round import SecureSettings, plan_round
from understudy.quantities import rounded_up

_FEWEST_SURVIVORS = 4


def release_scores(
    pool: ClientPool,
    candidates: Rows,
    *,
    labels: IntArray | None,
    config: PreferenceOptimizationConfig,
    schedule: QuerySchedule,
    mechanisms: Mechanisms,
    round: int,
) -> Tensor:
    """The noisy sum of the clipped score vectors of the units that take part in a round.

    *Guarantee*: all rounds together are (epsilon, delta)-DP as charged, unit and relation of the variant, n public; at
    epsilon = inf none, and the result is private.

    Args:
        pool: private.
        candidates: (M, d) embeddings of the round's candidates, public or released.
        labels: (M,) label of each candidate; None without labels.
        config: the charged settings.
        schedule: what was charged.
        mechanisms: of the charge.
        round: 0 to schedule.rounds - 1; each is one release.

    Returns:
        (M,) float32 scores.

    Raises:
        InputError: the schedule is for another number of units or rounds.
    """
    if schedule.n != pool.slots or not 0 <= round < schedule.rounds:
        raise InputError(
            f"expected a round below {schedule.rounds} of {schedule.n} slots, found round {round} of {pool.slots}"
        )
    mask = np.ones(schedule.n, dtype=bool)
    if schedule.sampling_probability < 1:
        drawn = mechanisms.poisson(
            step=round,
            n=schedule.n,
            probability=schedule.sampling_probability,
            purpose=PARTICIPATION,
            unit_ids=pool.unit_ids,
        )
        mask = drawn.numpy()
    if config.scoring.aggregation == "masked":
        return mechanisms.masked_sum(
            torch.from_numpy(every_vector(pool, candidates, labels=labels, config=config)),
            secure_settings(config, schedule),
            participating=torch.from_numpy(mask),
            step=round,
            purpose=SCORES,
        )
    query = as_query(scores_without_noise(pool, candidates, mask, labels=labels, config=config), slots=schedule.n)
    released = mechanisms.gaussian_sum(
        {"scores": torch.from_numpy(query)},
        sensitivity=SENSITIVITY,
        noise_multiplier=schedule.noise_multiplier,
        step=round,
        purpose=SCORES,
        once=True,
    )
    return released["scores"]


def secure_settings(config: PreferenceOptimizationConfig, schedule: QuerySchedule) -> SecureSettings:
    """How a round's answers are masked; public."""
    return SecureSettings(
        bits=config.scoring.fractional_bits,
        noise_multiplier=schedule.noise_multiplier,
        smallest_surviving=max(_FEWEST_SURVIVORS, rounded_up(config.scoring.survivors * schedule.n)),
        colluding=config.scoring.colluding,
    )


def check_masking(config: PreferenceOptimizationConfig, schedule: QuerySchedule, *, candidates: int) -> None:
    """Plan a masked round as scoring will, before anything is charged.

    Args:
        config: the charged settings.
        schedule: what will be charged.
        candidates: M, of all labels.

    Raises:
        InputError: the settings do not fit the number of units and the noise.
    """
    try:
        plan_round(secure_settings(config, schedule), n=schedule.n, d=candidates, step=0, attempt=b"")
    except InputError as error:
        scoring = config.scoring
        raise InputError(
            f"scoring.aggregation=masked of n={schedule.n} with scoring.fractional_bits={scoring.fractional_bits}, "
            f"scoring.survivors={scoring.survivors:g} and scoring.colluding={scoring.colluding}: {error}. Change these "
            "settings (the smallest surviving set is survivors times n), or set scoring.aggregation=trusted"
        ) from None


def every_vector(
    pool: ClientPool, candidates: Rows, *, labels: IntArray | None, config: PreferenceOptimizationConfig
) -> FloatArray:
    """(n, M) what each client would send, private."""
    space = _space(candidates, labels=labels, config=config)
    if config.scoring.scorer == "cosine":
        return client_vectors(space, pool.means)
    nearest = _nearest(pool, candidates, labels=labels)
    return histogram_vectors(space, nearest, pool.owner, np.arange(pool.slots, dtype=np.int64))


def _nearest(pool: ClientPool, candidates: Rows, *, labels: IntArray | None) -> IntArray:
    """(N,) the candidate that each sample of the pool votes for, private."""
    if labels is None or pool.labels is None:
        if labels is not pool.labels:
            raise ValueError("expected labels of the samples and of the candidates, or neither")
        return nearest_candidates(pool.embeddings, candidates)
    return nearest_candidates(pool.embeddings, candidates, labels=(pool.labels, labels))


def _space(candidates: Rows, *, labels: IntArray | None, config: PreferenceOptimizationConfig) -> CandidateSpace:
    return candidate_space(
        candidates,
        normalise=config.scoring.normalise,
        over=config.scoring.over,
        per_prompt=config.candidates.per_prompt,
        labels=labels,
    )


def scores_without_noise(
    pool: ClientPool,
    candidates: Rows,
    mask: npt.NDArray[np.bool_],
    *,
    labels: IntArray | None,
    config: PreferenceOptimizationConfig,
) -> npt.NDArray[np.float64]:
    """The exact sum, private: for `release_scores`, and for internal figures that nothing exported depends on."""
    scoring = config.scoring
    if scoring.scorer == "histogram":
        space = _space(candidates, labels=labels, config=config)
        nearest = _nearest(pool, candidates, labels=labels)
        return histogram_sum(space, nearest, pool.owner, mask)
    return exact_sum(
        pool.means,
        candidates,
        mask,
        normalise=scoring.normalise,
        over=scoring.over,
        per_prompt=config.candidates.per_prompt,
        labels=labels,
    )
