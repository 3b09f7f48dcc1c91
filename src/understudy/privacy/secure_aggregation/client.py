"""A client's side of secure aggregation: what it sends, as a function of its secret, its vector and what it received.

Source: Bonawitz et al. 2017, Figure 4, without the signatures that a lying server calls for. Deviation: every key is a
function of the client's secret, the session and its vector, so that a round that is resumed repeats its messages byte
for byte, and one on another vector shares no key, mask or noise with it. What is sent is on the client's disk before
(`secure_answers`), so that a client that was restarted repeats it or refuses.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import ArrayLike, NDArray

from understudy.errors import UnderstudyError
from understudy.privacy.noise import derive_key
from understudy.privacy.secure_aggregation.answers import Answers, Sent
from understudy.privacy.secure_aggregation.fixed_point import Words, encode, to_words
from understudy.privacy.secure_aggregation.masks import (
    add_pair_mask,
    agree,
    expand,
    private_key,
    public_bytes,
    seal,
    unseal,
)
from understudy.privacy.secure_aggregation.noise import share_noise
from understudy.privacy.secure_aggregation.round import SecureRound, UnmaskRequest
from understudy.privacy.secure_aggregation.shares import SHARE_BYTES, share_secret

# One revealed share: whose it is, whether of the self mask, and the share.
REVEALED: Final = struct.Struct(f"<I?{SHARE_BYTES}s")
KEY_BYTES: Final = 32


@dataclass(frozen=True)
class Client:
    """What one client knows; all of it private to it.

    Attributes:
        index: its number.
        encoded: its integer vector, int32 (d,).
        secret: its own secret.
        mask_key: pair for the masks; shared, so that others can remove them.
        channel_key: pair for sealed shares; never shared.
        self_seed: gives its self mask; shared.
        channels: neighbour -> the key of their envelopes, once `distribute` ran.
        answered: the request that it answered; it answers no other.
        answers: its record of what it sent; None keeps none, which is for tests and for clients that end with the
            process.
    """

    index: int
    encoded: NDArray[np.int32] = field(repr=False)
    secret: bytes = field(repr=False)
    mask_key: X25519PrivateKey = field(repr=False)
    channel_key: X25519PrivateKey = field(repr=False)
    self_seed: bytes = field(repr=False)
    channels: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    answered: UnmaskRequest | None = None
    answers: Answers | None = field(default=None, repr=False)


def start(
    plan: SecureRound, index: int, vector: ArrayLike | None, *, secret: bytes, records: Path | None = None
) -> Client:
    """A client at the start of a round.

    Args:
        plan: of the round.
        index: the client's number.
        vector: (d,) of norm at most 1; None where the client takes no part: it then sends masked zeros and noise like
            any other, which nobody can tell.
        secret: the client's own, at least 16 bytes.
        records: folder of this client that keeps what it sends, on a disk that lasts until the round is over and
            its attempt is never used again. A client that may be restarted needs it.

    Raises:
        InputError: when the vector is out of range.
        UnderstudyError: when its length is not d.
    """
    encoded = np.zeros(plan.d, np.int64) if vector is None else encode(vector, bits=plan.bits)
    if len(encoded) != plan.d:
        raise UnderstudyError(f"expected a vector of d={plan.d} scores, found {len(encoded)}")
    kept = encoded.astype(np.int32)
    keys = {purpose: _key(plan, secret, kept, purpose) for purpose in ("mask", "channel", "self")}
    pair, channel = private_key(keys["mask"]), private_key(keys["channel"])
    answers = None if records is None else Answers(records, plan.session, index, secret)
    return Client(index, kept, secret, pair, channel, keys["self"], answers=answers)


def advertise(client: Client) -> bytes:
    """The client's two public keys, 64 bytes.

    Raises:
        UnderstudyError: when it sent anything for another vector in this session.
    """
    return _recorded(client, "keys", (), public_bytes(client.mask_key) + public_bytes(client.channel_key))


def distribute(plan: SecureRound, client: Client, keys: Mapping[int, bytes]) -> tuple[Client, dict[int, bytes]]:
    """Share both secrets among the neighbours, sealed for each.

    Args:
        plan: of the round.
        client: this client.
        keys: neighbour -> what it advertised; those that did not are left out.

    Returns:
        The client, who now has its channels, and neighbour -> sealed shares.

    Raises:
        UnderstudyError: when fewer than `threshold` neighbours advertised keys, a key is malformed, or it sent shares
            for other keys or anything for another vector in this session.
    """
    holders = _neighbours(plan, client, keys)
    if len(holders) < plan.threshold:
        raise UnderstudyError(f"expected at least {plan.threshold} neighbours with keys, found {len(holders)}; aborted")
    points = [holder + 1 for holder in holders]
    shared = []
    for purpose, secret in (("mask", client.mask_key.private_bytes_raw()), ("self", client.self_seed)):
        key = _key(plan, client.secret, client.encoded, f"{purpose}/shares")
        shared.append(share_secret(secret, points=points, threshold=plan.threshold, key=key))
    channels, sealed = {}, {}
    for holder, *shares in zip(holders, *shared, strict=True):
        channels[holder] = agree(client.channel_key, keys[holder][KEY_BYTES:], purpose=plan.session + b"channel")
        text = b"".join(share.to_bytes(SHARE_BYTES) for share in shares)
        sealed[holder] = seal(_one_way(channels[holder], client.index), text, context=plan.session)
    asked = [part for holder in holders for part in (holder.to_bytes(8), keys[holder])]
    kept = _recorded(client, "shares", asked, b"".join(sealed.values()))
    size = len(kept) // len(holders)
    repeated = {holder: kept[i * size : (i + 1) * size] for i, holder in enumerate(holders)}
    return replace(client, channels=channels), repeated


def masked_input(plan: SecureRound, client: Client, keys: Mapping[int, bytes]) -> bytes:
    """Vector plus noise share plus self mask plus the masks with every neighbour that shared.

    Args:
        plan: of the round.
        client: this client.
        keys: neighbour that shared its secrets -> what it advertised.

    Returns:
        d words; uniform to whoever lacks the self mask or the mask with one neighbour.

    Raises:
        UnderstudyError: when fewer than `threshold` neighbours shared, or it sent a masked vector for other partners
            or anything for another vector in this session.
    """
    partners = _neighbours(plan, client, keys)
    if len(partners) < plan.threshold:
        raise UnderstudyError(f"expected at least {plan.threshold} neighbours to share, found {len(partners)}; aborted")
    noise_key = _key(plan, client.secret, client.encoded, "noise")
    noise = share_noise(noise_key, plan.d, scale=plan.share_scale)
    total: Words = to_words(client.encoded + noise, plan.width)
    total += expand(client.self_seed, d=plan.d, width=plan.width)
    for partner in partners:
        key = agree(client.mask_key, keys[partner][:KEY_BYTES], purpose=plan.session + b"mask")
        add_pair_mask(total, key, own=client.index, other=partner)
    asked = [part for partner in partners for part in (partner.to_bytes(8), keys[partner])]
    return _recorded(client, "masked", asked, total.tobytes())


def reveal(
    plan: SecureRound, client: Client, request: UnmaskRequest, sealed: Mapping[int, bytes]
) -> tuple[Client, bytes]:
    """For each neighbour one of its two shares: of the self mask if it survived, of the mask key if it dropped.

    Args:
        plan: of the round.
        client: this client.
        request: the server's.
        sealed: neighbour -> the shares it sealed for this client.

    Returns:
        The client, who will answer no other request, and the records.

    Raises:
        UnderstudyError: when the request names a client as both, has fewer survivors than the smallest set, leaves
            this client out, or is not the first in this session, in this process or any other that has its record.
    """
    if request.survivors & request.dropped or client.index not in request.survivors:
        raise UnderstudyError("expected each client either among survivors or dropped, and this one a survivor")
    if len(request.survivors) < plan.smallest_surviving:
        found = len(request.survivors)
        raise UnderstudyError(f"expected at least {plan.smallest_surviving} survivors, found {found}; nothing revealed")
    if client.answered not in (None, request):
        raise UnderstudyError("a second, different request: both shares of one client would unmask it; refused")
    records = []
    for owner in _neighbours(plan, client, sealed):
        if owner in request.survivors or owner in request.dropped:
            text = unseal(_one_way(client.channels[owner], owner), sealed[owner], context=plan.session)
            survived = owner in request.survivors
            share = text[SHARE_BYTES:] if survived else text[:SHARE_BYTES]
            records.append(REVEALED.pack(owner, survived, share))
    asked = [b",".join(str(i).encode() for i in sorted(some)) for some in (request.survivors, request.dropped)]
    return replace(client, answered=request), _recorded(client, "unmask", asked, b"".join(records))


def _recorded(client: Client, kind: Sent, asked: Iterable[bytes], answer: bytes) -> bytes:
    """What the client sends, once its record holds it; whatever it sends first binds the session to its vector."""
    if client.answers is None:
        return answer
    client.answers.once("vector", (client.encoded.tobytes(),), b"")
    return client.answers.once(kind, asked, answer)


def _neighbours(plan: SecureRound, client: Client, among: Mapping[int, bytes]) -> list[int]:
    return [neighbour for neighbour in plan.neighbours[client.index] if neighbour in among]


def _key(plan: SecureRound, secret: bytes, encoded: NDArray[np.int32], purpose: str) -> bytes:
    """One key of the client: of its secret, the session, its vector and a purpose."""
    digest = hashlib.sha256(encoded.tobytes()).digest()
    return derive_key(
        secret, charge_id="", salt=plan.session, step=plan.step, purpose=f"secure/{purpose}", query_digest=digest
    )


def _one_way(channel: bytes, sender: int) -> bytes:
    """The envelope key of one direction: two envelopes never share a key."""
    return hashlib.sha256(channel + sender.to_bytes(8)).digest()
