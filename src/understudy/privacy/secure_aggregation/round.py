"""What is public about one round of secure aggregation, fixed before any client speaks, and the messages' forms."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final, Literal

from understudy.errors import InputError
from understudy.privacy.secure_aggregation.accounting import share_scale, total_variation
from understudy.privacy.secure_aggregation.fixed_point import WordBits, integer_sensitivity, largest_total, word_bits
from understudy.privacy.secure_aggregation.graph import Neighbours, largest_threshold, neighbour_graph, split_chance

Kind = Literal["keys", "shares", "masked", "unmask"]

DEGREE: Final = 64
_SPLIT: Final = 2.0**-40  # largest bound on the chance that the graph falls apart, all colluders counted


@dataclass(frozen=True)
class SecureSettings:
    """What the caller chooses; all of it public.

    Attributes:
        bits: fractional bits, 1 to 24.
        noise_multiplier: of the sum against the server and `colluding` clients, if `smallest_surviving` answer; 0
            gives the exact sum, whose label is private.
        smallest_surviving: the round aborts with fewer answers; 4 to n.
        colluding: clients that may work with the server; below the threshold.
        degree: neighbours of a client, even; n - 1 or more is the full graph.
        threshold: shares that give a secret; None takes the largest that recovers every client.
    """

    bits: int
    noise_multiplier: float
    smallest_surviving: int
    colluding: int = 0
    degree: int = DEGREE
    threshold: int | None = None


@dataclass(frozen=True)
class SecureRound:
    """The public plan of a round; make it with `plan_round`.

    Attributes:
        n: clients, by number 0 to n - 1.
        d: coordinates of a vector.
        bits: fractional bits.
        share_scale: discrete Gaussian parameter of one client's noise, in steps.
        smallest_surviving: the round aborts with fewer masked vectors.
        threshold: shares that give a client's secret; any threshold - 1 clients may work with the server.
        neighbours: with whom each client masks and shares.
        width: words are residues modulo 2^width.
        largest_total: no coordinate of the noisy integer sum is beyond it, but for a chance of 2^-60.
        step: the round.
        session: 32 bytes that tell this round from any other.
    """

    n: int
    d: int
    bits: int
    share_scale: float
    smallest_surviving: int
    threshold: int
    neighbours: Neighbours = field(repr=False)
    width: WordBits
    largest_total: int
    step: int
    session: bytes = field(repr=False)


@dataclass(frozen=True)
class Message:
    """Bytes that cross to the server.

    Attributes:
        sender: a client.
        receiver: the client that a sealed share is for; None for the server itself.
        kind: `keys`, `shares`, `masked` or `unmask`.
        payload: the bytes.
    """

    sender: int
    receiver: int | None
    kind: Kind
    payload: bytes = field(repr=False)


@dataclass(frozen=True)
class UnmaskRequest:
    """Whose secrets the server asks for.

    Attributes:
        survivors: clients whose masked vector arrived; their self masks must come off.
        dropped: clients that shared and then fell silent; the masks that others had with them must come off.
    """

    survivors: frozenset[int]
    dropped: frozenset[int]


def plan_round(settings: SecureSettings, *, n: int, d: int, step: int, attempt: bytes) -> SecureRound:
    """Fix a round.

    Args:
        settings: what the caller chooses.
        n: clients.
        d: coordinates.
        step: the round.
        attempt: names a try at the round, and where clients keep one secret for several charges, the charge. A second
            try must have another name, or the server could unmask a client that answered in one and dropped out in
            the other; clients that keep records refuse it.

    Raises:
        InputError: when the values do not fit each other.
    """
    smallest, colluding, bits = settings.smallest_surviving, settings.colluding, settings.bits
    if not 4 <= smallest <= n:
        raise InputError(f"expected a smallest surviving set of 4 to n={n} clients, found {smallest}")
    integer_sensitivity(d, bits)
    degree = min(settings.degree, n - 1)
    threshold = settings.threshold or largest_threshold(n, degree, smallest_surviving=smallest)
    if not max(1, colluding) < threshold <= degree:
        raise InputError(
            f"expected a threshold of 2 to {degree} shares, above {colluding=}, found {threshold}; "
            "raise the degree or the smallest surviving set"
        )
    if split_chance(n, degree, removed=n - smallest + threshold - 1) > _SPLIT:
        raise InputError(f"a graph of degree={degree} may fall apart when clients drop out; raise the degree")
    scale = share_scale(settings.noise_multiplier, bits=bits, smallest_surviving=smallest, colluding=colluding)
    total_variation(scale, shares=smallest - colluding, d=d)
    session = hashlib.sha256(b"understudy/secure/round/1" + repr((settings, n, d, step, attempt)).encode()).digest()
    most = largest_total(n, d, bits=bits, share_scale=scale)
    return SecureRound(
        n=n,
        d=d,
        bits=bits,
        share_scale=scale,
        smallest_surviving=smallest,
        threshold=threshold,
        neighbours=neighbour_graph(n, degree, key=session),
        width=word_bits(most),
        largest_total=most,
        step=step,
        session=session,
    )
