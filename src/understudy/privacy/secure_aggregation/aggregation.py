"""Secure aggregation: the server learns the noisy sum of clients' score vectors and nothing else about them.

Sources: Bonawitz et al. 2017 (double masking, dropout recovery), Bell et al. 2020 (a sparse graph of neighbours),
Kairouz, Liu & Steinke 2021 (noise as discrete Gaussian shares).

1. *keys*: every client advertises two public keys.
2. *shares*: it shares the key of its pairwise masks and the seed of its self mask among its neighbours, sealed.
3. *masked*: it sends vector + noise share + self mask + pairwise masks modulo 2^32 or 2^64.
4. *unmask*: neighbours reveal, of each client, the self mask's shares if its vector arrived, the mask key's if not.

*Who is trusted with what.* The server follows the protocol and is curious, and so are up to threshold - 1 clients that
work with it (any of them: a client's secrets are shared among its neighbours, and fewer than `threshold` shares are
uniform). They learn the noisy sum, who answered, and what they knew. With c of them, the noise that hides the others is
that of the honest shares alone, (survivors - c)/smallest_surviving of the variance that the sum was sized for;
`SecureSettings.colluding` sizes the shares for it. The round aborts below `smallest_surviving` answers, in the
server and again in every client before it reveals. Not covered: a server that lies about who dropped out to different
clients (it takes signatures and a threshold above half), clients that send what they like (no one can see that a masked
vector is out of range; an honest client refuses its own), and what abort and timing say.

*Guarantee*: (unit client, relation add/remove one, as a null client in its slot, who sends masked zeros and noise like
everyone) the Gaussian mechanism with `noise_multiplier` at sensitivity 1, up to the total variation of
`secure_accounting`, against server and colluding clients, assuming X25519, AES-256 and ChaCha20-Poly1305. A client that
takes no part in a round looks like any other, so amplification by Poisson sampling holds against the server too, but
not against a client that knows of itself that it took part.

A round is a function of the clients' secrets, vectors and the public plan: what is resumed repeats its messages. A
client that keeps records (`secure_answers`) has what it sends on its disk before it sends it; restarted, it sends the
same or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from understudy.errors import InputError
from understudy.privacy.secure_aggregation import client as client_side
from understudy.privacy.secure_aggregation import server as server_side
from understudy.privacy.secure_aggregation.client import Client
from understudy.privacy.secure_aggregation.fixed_point import decode
from understudy.privacy.secure_aggregation.round import (
    Kind,
    Message,
    SecureRound,
    SecureSettings,
    UnmaskRequest,
    plan_round,
)

__all__ = ["MaskedSum", "Message", "SecureSettings", "Transcript", "masked_sum"]

_KINDS: Final[tuple[Kind, ...]] = ("keys", "shares", "masked", "unmask")


@dataclass
class Transcript:
    """Every byte that crosses to the server.

    Attributes:
        keep: whether messages are kept, or only counted.
        messages: in the order sent, where kept.
        upload_bytes: kind -> bytes of all clients.
    """

    keep: bool
    messages: list[Message] = field(default_factory=list)
    upload_bytes: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0))

    def add(self, sender: int, kind: Kind, payload: bytes, *, receiver: int | None = None) -> bytes:
        """Note a message and pass its payload on."""
        self.upload_bytes[kind] += len(payload)
        if self.keep:
            self.messages.append(Message(sender, receiver, kind, payload))
        return payload


@dataclass(frozen=True)
class MaskedSum:
    """What a round gives.

    Attributes:
        values: noisy sum, float32 (d,).
        survivors: how many clients' vectors and noise are in it; public.
        transcript: what the server received.
        plan: the round's public plan.
    """

    values: NDArray[np.float32]
    survivors: int
    transcript: Transcript = field(repr=False)
    plan: SecureRound = field(repr=False)


def masked_sum(  # noqa: PLR0913 - the public plan, the clients, and what a test or a resumed round keeps
    vectors: Iterable[ArrayLike],
    settings: SecureSettings,
    *,
    participating: NDArray[np.bool_],
    d: int,
    client_secret: Callable[[int], bytes],
    step: int,
    silent_from: Mapping[int, Kind] | None = None,
    record: bool = False,
    records: Path | None = None,
) -> MaskedSum:
    """One round with every client in this process; each client computes what it would on its own machine.

    Args:
        vectors: n vectors (d,) of norm at most 1, client by client: an (n, d) array, or an iterator, whose vectors
            are kept as int32. Private.
        settings: public.
        participating: bool (n,); others send masked zeros and noise. Private.
        d: coordinates.
        client_secret: client -> its own secret, of at least 16 bytes.
        step: the round; a step of its own for every release of one set of secrets.
        silent_from: public simulation of dropouts: client -> the first kind of message that it does not send.
        record: keep the messages.
        records: folder in which every client keeps what it sent, a folder of its own for each charge; it must last as
            long as the charge can be resumed. A resumed round then repeats its messages, and one that would send
            others is refused. None keeps nothing, for a caller that keeps the round's result before it is used.

    Returns:
        The noisy sum and the transcript.

    Raises:
        InputError: when a vector is out of range or the settings do not fit.
        UnderstudyError: when the round aborts.
    """
    silent = {client: _KINDS.index(kind) for client, kind in (silent_from or {}).items()}
    attempt = repr(sorted(silent.items())).encode()
    plan = plan_round(settings, n=len(participating), d=d, step=step, attempt=attempt)
    clients = _start(plan, vectors, participating, client_secret, records)
    transcript = Transcript(record)

    def speaking(kind: Kind) -> list[int]:
        return [i for i in range(plan.n) if silent.get(i, len(_KINDS)) > _KINDS.index(kind)]

    keys = {i: transcript.add(i, "keys", client_side.advertise(clients[i])) for i in speaking("keys")}
    server_side.check_keys(plan, keys)
    sealed = _share(plan, clients, keys, speaking("shares"), transcript)
    shared_keys = {i: keys[i] for i in speaking("shares")}
    masked, survivors = server_side.add_masked(
        plan,
        (
            (i, transcript.add(i, "masked", client_side.masked_input(plan, clients[i], _of(plan, i, shared_keys))))
            for i in speaking("masked")
        ),
    )
    request = server_side.request_unmasking(plan, shared_keys, survivors)
    payloads = _reveal(plan, clients, request, sealed, speaking("unmask"), transcript)
    revealed = server_side.collect(plan, request, payloads)
    noisy = server_side.unmask(plan, masked, request, keys=keys, revealed=revealed)
    return MaskedSum(decode(noisy, bits=plan.bits), len(survivors), transcript, plan)


def _start(
    plan: SecureRound,
    vectors: Iterable[ArrayLike],
    participating: NDArray[np.bool_],
    client_secret: Callable[[int], bytes],
    records: Path | None,
) -> list[Client]:
    clients = []
    for index, vector in enumerate(vectors):
        if index >= plan.n:
            raise InputError(f"expected n={plan.n} vectors, one for each client, found more")
        taking = vector if participating[index] else None
        clients.append(client_side.start(plan, index, taking, secret=client_secret(index), records=records))
    if len(clients) != plan.n:
        raise InputError(f"expected n={plan.n} vectors, one for each client, found {len(clients)}")
    return clients


def _share(
    plan: SecureRound, clients: list[Client], keys: Mapping[int, bytes], speaking: list[int], transcript: Transcript
) -> dict[int, dict[int, bytes]]:
    """Sealed shares by receiver and sender; the clients in the list get their channels."""
    inbox: dict[int, dict[int, bytes]] = {i: {} for i in range(plan.n)}
    for i in speaking:
        clients[i], sealed = client_side.distribute(plan, clients[i], _of(plan, i, keys))
        for receiver, payload in sealed.items():
            inbox[receiver][i] = transcript.add(i, "shares", payload, receiver=receiver)
    return inbox


def _reveal(
    plan: SecureRound,
    clients: list[Client],
    request: UnmaskRequest,
    sealed: Mapping[int, Mapping[int, bytes]],
    speaking: list[int],
    transcript: Transcript,
) -> dict[int, bytes]:
    payloads = {}
    for i in speaking:
        clients[i], payload = client_side.reveal(plan, clients[i], request, sealed[i])
        payloads[i] = transcript.add(i, "unmask", payload)
    return payloads


def _of(plan: SecureRound, client: int, keys: Mapping[int, bytes]) -> dict[int, bytes]:
    """What the server relays to one client: the keys of its neighbours."""
    return {neighbour: keys[neighbour] for neighbour in plan.neighbours[client] if neighbour in keys}
