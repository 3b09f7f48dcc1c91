"""Clients vote for the candidates nearest to their samples: the private step of Private Evolution.

Papers: Lin et al. 2023 (arXiv 2305.15560, Algorithm 2); Hou et al. 2024 (PrE-Text, arXiv 2406.02958) for clients.
*Deviation*: a client's vector is the share of its samples, not their number, so its norm is at most 1.

A sample's vote is a function of that sample and the candidates alone. A product of float matrices rounds a row by where
it stands and by how many others there are, so that of equally near candidates, such as two equal texts, now one and now
the other would win: one client's absence would move the votes of others. Directions are therefore rounded to multiples
of 2^-20, whose products float64 adds up without error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from understudy.errors import InputError
from understudy.privacy.dpsgd.plan import DpSgdPlan
from understudy.privacy.mechanisms import Mechanisms

Vectors = npt.NDArray[np.floating[Any]]
Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOST_CLIENTS = 1 << 20
"""Of so many the float64 sum of votes is off by less than the mechanism sets aside, 2^-11 of the sensitivity."""

_CHUNK = 4096  # samples compared with all candidates at a time
_GRID = 2.0**20


@dataclass(frozen=True, eq=False)
class Samples:
    """What the clients compare candidates with; private.

    Attributes:
        vectors: (s, d) embeddings of every sample.
        owners: (s,) int64, the slot of each sample's client.
        n: Slots; a slot without a sample is a null client.
    """

    vectors: Vectors = field(repr=False)
    owners: Indices = field(repr=False)
    n: int


def check_clients(n: int) -> None:
    """Refuse more clients than the rounding of their votes' sum is covered for.

    Raises:
        InputError: n is more than `MOST_CLIENTS`.
    """
    if n > MOST_CLIENTS:
        raise InputError(
            f"n={n}: expected at most {MOST_CLIENTS:,} clients, of whom float64 rounding is covered; give fewer"
        )


def release_votes(
    samples: Samples, candidates: Vectors, *, plan: DpSgdPlan, mechanisms: Mechanisms, round: int
) -> npt.NDArray[np.float32]:
    """The noised histogram of one round.

    *Guarantee*: one Gaussian query of sensitivity 1 on a Poisson sample of the clients (unit client, add/remove one
    client realised as a null client in its slot).

    Args:
        samples: Of the clients; private.
        candidates: (m, d) embeddings.
        plan: Sampling and noise.
        mechanisms: Of the charge.
        round: Logical step.

    Returns:
        (m,) float32.

    Raises:
        InputError: There are more than `MOST_CLIENTS` slots; nothing is drawn.
    """
    check_clients(plan.n)
    (stream,) = plan.streams
    mask = mechanisms.poisson(step=round, n=plan.n, probability=plan.sampling_probability, purpose=plan.name)
    exact = vote_sum(nearest(samples.vectors, candidates), samples.owners, mask.numpy(), candidates=len(candidates))
    released = mechanisms.gaussian_sum(
        {"votes": torch.from_numpy(exact)},
        sensitivity=stream.l2_clip_norm,
        noise_multiplier=stream.noise_multiplier,
        step=round,
        purpose=f"{plan.name}/{stream.name}",
    )
    return released["votes"].numpy()


def nearest(vectors: Vectors, candidates: Vectors) -> Indices:
    """(s,) the candidate of the largest cosine similarity to each sample; ties go to the lower index.

    Args:
        vectors: (s, d); one that is zero or not finite is as near to every candidate.
        candidates: (m, d), m >= 1.
    """
    directions = _directions(candidates).T
    found = [
        (_directions(vectors[start : start + _CHUNK]) @ directions).argmax(1)
        for start in range(0, len(vectors), _CHUNK)
    ]
    return np.concatenate([*found, np.zeros(0, dtype=np.int64)]).astype(np.int64)


def vote_sum(choices: Indices, owners: Indices, taking_part: npt.NDArray[np.bool_], *, candidates: int) -> Floats:
    """Sum over the clients that take part of their vectors of shares, each clipped to L2 norm 1.

    *Guarantee*: none by itself; sensitivity 1 (unit client, add/remove one client realised as a null client in its
    slot). Shares sum to 1, so the clip never acts; it is what the sensitivity rests on if votes are ever weighted.

    *Rounding*: with u = 2^-53 a float64 sum of k shares is off by at most k u times the sum. Over all candidates shares
    sum to n, so the vector is off by at most n^2 u in L2 norm on each of two neighbours, and the shares themselves by
    4 n u: together at most 2^-11, which `Mechanisms.gaussian_sum` sets aside, of up to `MOST_CLIENTS`.

    Args:
        choices: (s,) candidate of each sample; private.
        owners: (s,) slot of each sample's client; private.
        taking_part: (n,) bool.
        candidates: m.

    Returns:
        (m,) float64.
    """
    counted = taking_part[owners]
    pairs, votes = np.unique(owners[counted] * candidates + choices[counted], return_counts=True)
    clients, chosen = np.divmod(pairs, candidates)
    shares = votes / np.bincount(clients, weights=votes, minlength=len(taking_part))[clients]
    norms = np.sqrt(np.bincount(clients, weights=shares**2, minlength=len(taking_part)))[clients]
    return np.bincount(chosen, weights=shares / np.maximum(1.0, norms), minlength=candidates).astype(np.float64)


def survival(votes: npt.NDArray[Any], *, threshold: float) -> Floats:
    """Probabilities in proportion to max(votes - threshold, 0) (Lin et al. 2023, Algorithm 2); post-processing.

    Args:
        votes: (m,) noised.
        threshold: Public.

    Returns:
        (m,) float64, sum 1; equal where none is left.
    """
    left = np.maximum(votes.astype(np.float64) - threshold, 0.0)
    total = left.sum()
    return left / total if total > 0 else np.full(len(left), 1.0 / len(left))


def _directions(vectors: Vectors) -> Floats:
    """Rows of norm 1 in whole multiples of 2^-20; zero where a row has no direction."""
    wide = vectors.astype(np.float64)
    norms = np.sqrt(np.square(wide).sum(axis=1, keepdims=True))
    unit = np.divide(wide, norms, out=np.zeros_like(wide), where=np.isfinite(norms) & (norms > 0))
    steps: Floats = np.rint(_GRID * unit)
    return steps
