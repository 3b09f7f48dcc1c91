"""The server's side of secure aggregation: functions of messages alone.

It relays keys and sealed shares, adds masked vectors, and takes masks off their sum. What it adds holds the self masks
of all survivors until `unmask`, and every client's noise share for ever, so nothing here is ever the sum without noise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from understudy.errors import UnderstudyError
from understudy.privacy.secure_aggregation.client import KEY_BYTES, REVEALED
from understudy.privacy.secure_aggregation.fixed_point import Integers, Words, from_words, parse_words, to_words
from understudy.privacy.secure_aggregation.masks import add_pair_mask, agree, expand, private_key, public_bytes
from understudy.privacy.secure_aggregation.round import SecureRound, UnmaskRequest
from understudy.privacy.secure_aggregation.shares import reconstruct

Shares = Mapping[int, Mapping[int, int]]  # owner -> holder's point -> share


@dataclass(frozen=True)
class Revealed:
    """What the holders sent, sorted: never both kinds for one owner.

    Attributes:
        self_shares: survivor -> point -> share of its self mask.
        key_shares: dropped client -> point -> share of its mask key.
    """

    self_shares: Shares = field(repr=False)
    key_shares: Shares = field(repr=False)


def check_keys(plan: SecureRound, keys: Mapping[int, bytes]) -> None:
    """Refuse advertisements that are not 64 bytes, of unknown clients, or too few.

    Raises:
        UnderstudyError: see above.
    """
    if not all(0 <= client < plan.n and len(payload) == 2 * KEY_BYTES for client, payload in keys.items()):
        raise UnderstudyError(f"expected {2 * KEY_BYTES} bytes of keys from clients 0 to {plan.n - 1}; refused")
    check_survivors(plan, len(keys), "advertised keys")


def check_survivors(plan: SecureRound, count: int, what: str) -> None:
    """Abort a round that has fallen below its smallest surviving set: its noise would be too small.

    Raises:
        UnderstudyError: when it has.
    """
    if count < plan.smallest_surviving:
        raise UnderstudyError(f"expected at least {plan.smallest_surviving} clients, {count} {what}; round aborted")


def add_masked(plan: SecureRound, payloads: Iterable[tuple[int, bytes]]) -> tuple[Words, frozenset[int]]:
    """Add masked vectors as they arrive.

    Args:
        plan: of the round.
        payloads: (client, its d words), each client once.

    Returns:
        The masked sum, and who is in it.

    Raises:
        UnderstudyError: when a message has the wrong length, a client speaks twice, or too few speak.
    """
    total: Words = to_words(np.zeros(plan.d, np.int64), plan.width)
    seen: set[int] = set()
    for client, payload in payloads:
        if client in seen or not 0 <= client < plan.n:
            raise UnderstudyError(f"expected one masked vector from each of {plan.n} clients, found another; refused")
        total += parse_words(payload, d=plan.d, width=plan.width)
        seen.add(client)
    check_survivors(plan, len(seen), "sent a masked vector")
    return total, frozenset(seen)


def request_unmasking(plan: SecureRound, shared: Collection[int], survivors: frozenset[int]) -> UnmaskRequest:
    """Ask for the self masks of survivors and the mask keys of those who shared and then dropped out.

    Raises:
        UnderstudyError: when a survivor never shared, or too few survived.
    """
    check_survivors(plan, len(survivors), "sent a masked vector")
    if not survivors <= set(shared):
        raise UnderstudyError("a client sent a masked vector without having shared its secrets; round aborted")
    return UnmaskRequest(survivors, frozenset(shared) - survivors)


def collect(plan: SecureRound, request: UnmaskRequest, payloads: Mapping[int, bytes]) -> Revealed:
    """Sort revealed shares, refusing what was not asked for.

    Args:
        plan: of the round.
        request: what was asked.
        payloads: holder -> its records.

    Raises:
        UnderstudyError: when a record is malformed, of a client that is no neighbour, or of the other kind than asked:
            a self-mask share and a key share of one client are never held together.
    """
    if request.survivors & request.dropped:
        raise UnderstudyError("both kinds of shares of one client would unmask it; refused")
    shares: dict[bool, dict[int, dict[int, int]]] = {True: defaultdict(dict), False: defaultdict(dict)}
    for holder, payload in payloads.items():
        if holder not in request.survivors or len(payload) % REVEALED.size:
            raise UnderstudyError("expected whole records from a survivor; refused")
        for owner, survived, share in REVEALED.iter_unpack(payload):
            if owner not in (request.survivors if survived else request.dropped):
                raise UnderstudyError("a share of the other kind than was asked for would unmask a client; refused")
            if holder not in plan.neighbours[owner] or holder + 1 in shares[survived][owner]:
                raise UnderstudyError("expected one share of each neighbour from a holder; refused")
            shares[survived][owner][holder + 1] = int.from_bytes(share)
    return Revealed(shares[True], shares[False])


def unmask(
    plan: SecureRound, masked: Words, request: UnmaskRequest, *, keys: Mapping[int, bytes], revealed: Revealed
) -> Integers:
    """Take every remaining mask off the sum.

    Args:
        plan: of the round.
        masked: of `add_masked`.
        request: of `request_unmasking`.
        keys: client -> what it advertised.
        revealed: of `collect`.

    Returns:
        The noisy integer sum, int64 (d,).

    Raises:
        UnderstudyError: when a client lost too many neighbours, a rebuilt key is not the advertised one, or the sum is
            beyond what honest clients can reach.
    """
    total = masked.copy()
    for client in sorted(request.survivors):
        seed = reconstruct(revealed.self_shares.get(client, {}), threshold=plan.threshold)
        total -= expand(seed, d=plan.d, width=plan.width)
    for client in sorted(request.dropped):
        key = private_key(reconstruct(revealed.key_shares.get(client, {}), threshold=plan.threshold))
        if public_bytes(key) != keys[client][:KEY_BYTES]:
            raise UnderstudyError("a rebuilt key is not the one that was advertised: a share is wrong; round aborted")
        for partner in plan.neighbours[client]:
            if partner in request.survivors:
                pair = agree(key, keys[partner][:KEY_BYTES], purpose=plan.session + b"mask")
                # What the partner added is what the dropped client would have taken away, and the other way round.
                add_pair_mask(total, pair, own=client, other=partner)
    noisy = from_words(total, plan.width)
    if max(abs(int(noisy.min())), abs(int(noisy.max()))) > plan.largest_total:
        raise UnderstudyError("the sum is beyond what clients within range can reach: masks do not cancel; aborted")
    return noisy
