"""Who masks with whom: a public random graph in which every client has the same number of neighbours.

Source: Bell, Bonawitz, Gascon, Lepoint & Raykova 2020, Section 3: clients in random order on a circle, each joined to
the degree/2 next ones on either side (a Harary graph). Cost per client grows with the degree, not with n. Masks hide a
client as long as the clients that are honest and answer stay connected, and its secrets as long as fewer than
`threshold` of its neighbours collude. Deviation: the threshold is the largest that still recovers every client, so
that "any threshold - 1 colluding clients" holds for certain rather than with high probability.

Assumed: who drops out or colludes does not depend on the graph, which is drawn anew each round.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import hypergeom

from understudy.errors import InputError
from understudy.privacy.noise import uniform_words

Neighbours = tuple[tuple[int, ...], ...]


def neighbour_graph(n: int, degree: int, *, key: bytes) -> Neighbours:
    """The neighbours of each of n clients, in rising order; a full graph where the degree is at least n - 1.

    Args:
        n: number of clients, at least 2; public.
        degree: even, unless it is at least n - 1; public.
        key: 32 public bytes that give the order on the circle.

    Returns:
        n tuples; j is in the i-th exactly when i is in the j-th.

    Raises:
        InputError: when n or the degree is out of range.
    """
    if n < 2 or degree < 2 or (degree < n - 1 and degree % 2):
        raise InputError(f"expected n >= 2 and an even degree >= 2, found {n=}, {degree=}")
    if degree >= n - 1:
        return tuple(tuple(j for j in range(n) if j != i) for i in range(n))
    circle = np.argsort(uniform_words(key, n), kind="stable").tolist()
    reach = degree // 2
    steps = [step for step in range(-reach, reach + 1) if step]
    found: dict[int, tuple[int, ...]] = {}
    for place, client in enumerate(circle):
        found[client] = tuple(sorted(circle[(place + step) % n] for step in steps))
    return tuple(found[client] for client in range(n))


def largest_threshold(n: int, degree: int, *, smallest_surviving: int, failure: float = 1e-6) -> int:
    """The largest threshold, up to half of the smallest surviving set, that recovers every client's secret.

    If `smallest_surviving` of n clients answer to the end, whichever they are, the chance that any client keeps fewer
    than `threshold` answering neighbours is at most `failure` (hypergeometric tail, union over clients). The round
    then aborts: a loss of availability, not of privacy.

    Returns:
        At least 1; 1 means that none will do, for a single share would be the secret.
    """
    degree = min(degree, n - 1)
    candidates = np.arange(1, max(2, smallest_surviving // 2 + 1))
    chances = n * hypergeom.cdf(candidates - 1, n - 1, max(smallest_surviving - 1, 0), degree)
    within = candidates[chances <= failure]
    return int(within.max()) if len(within) else 1


def split_chance(n: int, degree: int, *, removed: int) -> float:
    """A bound on the chance that the graph falls apart when `removed` random clients drop out or collude.

    It does only if two stretches of degree/2 clients next to each other on the circle are all gone: at most n(n-1)/2
    pairs of stretches, each gone with probability prod_{i < degree} (removed - i) / (n - i).
    """
    if degree >= n - 1 or removed < degree:
        return 0.0
    if removed >= n:
        return 1.0
    logs = math.fsum(math.log((removed - i) / (n - i)) for i in range(degree))
    return min(1.0, math.exp(logs + math.log(n * (n - 1) / 2)))
