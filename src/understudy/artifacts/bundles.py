"""Sealed bundles: a few files for one receiver, encrypted to its key, signed by the sender, bound to one exchange.

What crosses from zone to zone is released already; a bundle keeps it from others on the way, and keeps others' files
from being taken for it. The key is agreed on by X25519 between a one-time key and the receiver's, the content is
encrypted with ChaCha20-Poly1305, and the header, which names sender, receiver, exchange, label and the digest of each
file, is signed together with the encrypted bytes (Ed25519).

An old bundle is refused by its exchange, which the receiver knows from elsewhere, and of one exchange and direction the
receiver takes one content only. The one-time key is derived from the sender's secret and what is sealed, so that a step
that was killed seals the same bytes again; two contents never share a key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import ValidationError

from understudy.artifacts.manifest import FileEntry, canonical_json
from understudy.artifacts.zone_keys import OwnKey, PublicKey
from understudy.durable import sync, write_atomically
from understudy.errors import ZoneError
from understudy.frozen import Frozen
from understudy.privacy.labels import Label

HEADER, PAYLOAD = "bundle.json", "payload.bin"
_PURPOSE = "bundle"
_NONCE = bytes(12)  # every key encrypts one content


class Header(Frozen):
    """What is readable of a bundle.

    Attributes:
        sender: zone that sealed it.
        receiver: public key that it is sealed for.
        exchange: what it belongs to, such as a charge and a step; public.
        label: of the content.
        files: name -> digest and size of each file in it, in the order of names.
        one_time: public part of the one-time key.
    """

    format: Literal[1] = 1
    sender: Literal["client", "server"]
    receiver: str
    exchange: str
    label: Label
    files: dict[str, FileEntry]
    one_time: str

    def to_bytes(self) -> bytes:
        """As it is signed and stored."""
        return canonical_json(self.model_dump(mode="json"))


def seal(
    files: Mapping[str, bytes], folder: Path, *, sender: OwnKey, receiver: PublicKey, exchange: str, label: Label
) -> None:
    """Write files as a bundle into an empty folder; the same arguments give the same bytes.

    Args:
        files: name -> content; released or public.
        folder: where `HEADER` and `PAYLOAD` go.
        sender: signs.
        receiver: alone can open it.
        exchange: what it belongs to; the receiver must ask for the same.
        label: of the content; the receiver must ask for the same.
    """
    content = b"".join(files[name] for name in sorted(files))
    entries = {name: FileEntry(sha256=_digest(files[name]), size=len(files[name])) for name in sorted(files)}
    bound = canonical_json([receiver.text, exchange, label.model_dump(mode="json"), _digest(content), sorted(files)])
    one_time = X25519PrivateKey.from_private_bytes(sender.derive("one-time", bound))
    header = Header(
        sender=sender.zone,
        receiver=receiver.text,
        exchange=exchange,
        label=label,
        files=entries,
        one_time=one_time.public_key().public_bytes_raw().hex(),
    ).to_bytes()
    key = _key(one_time.exchange(X25519PublicKey.from_public_bytes(receiver.agreement)), header)
    payload = ChaCha20Poly1305(key).encrypt(_NONCE, content, header)
    signature = sender.sign(_signed(header, payload), purpose=_PURPOSE)
    write_atomically(folder / PAYLOAD, payload)
    write_atomically(folder / HEADER, canonical_json({"header": json.loads(header), "signature": signature}))


def unseal(
    folder: Path, *, receiver: OwnKey, sender: PublicKey, exchange: str, label: Label, received: Path
) -> dict[str, bytes]:
    """The files of a bundle, by name.

    Args:
        folder: holds the bundle.
        receiver: this zone's key.
        sender: public key of the zone that must have sealed it.
        exchange: what it must belong to.
        label: what its content must be labelled.
        received: folder of what this zone took before; private to it.

    Raises:
        ZoneError: the bundle was changed, is for another key, from another sender, of another exchange or label, or
            differs from the one that was taken in this exchange; nothing of it is used.
    """
    header, payload = _read(folder, sender)
    if header.receiver != receiver.public.text:
        raise ZoneError(
            f"bundle: expected one for the key {receiver.public.text[:16]}... of this {receiver.zone} zone, found one "
            f"for {header.receiver[:16]}...; have it sealed anew after `understudy keys trust` in the other zone"
        )
    if header.exchange != exchange or header.label != label:
        raise ZoneError(
            f"bundle: expected one of {exchange} with label {label}, found one of {header.exchange} with "
            f"{header.label}: an old bundle, or another run's; it was not opened, run the sender's step again"
        )
    try:
        key = _key(_agreed(receiver, header), header.to_bytes())
        content = ChaCha20Poly1305(key).decrypt(_NONCE, payload, header.to_bytes())
    except InvalidTag:
        raise ZoneError("bundle: the content does not open with this zone's key; have it sealed anew") from None
    files = _split(content, header)
    _take_once(received, header)
    return files


def _agreed(receiver: OwnKey, header: Header) -> bytes:
    """The secret that both zones know."""
    try:
        return receiver.agreement.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(header.one_time)))
    except ValueError:
        raise ZoneError(
            f"bundle: expected a one-time key of 64 hexadecimal digits, found {header.one_time[:64]!r}, signed by the "
            f"{header.sender} zone; have it sealed anew"
        ) from None


def _read(folder: Path, sender: PublicKey) -> tuple[Header, bytes]:
    """Header and encrypted content, if both are as the sender signed them."""
    try:
        told = json.loads((folder / HEADER).read_bytes())
        payload = (folder / PAYLOAD).read_bytes()
        header, signature = Header.model_validate(told["header"]), str(told["signature"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise ZoneError(
            f"bundle {folder.name}: expected {HEADER} and {PAYLOAD}, found {type(error).__name__}; send it again"
        ) from None
    sender.verify(signature, _signed(header.to_bytes(), payload), purpose=_PURPOSE)
    return header, payload


def _split(content: bytes, header: Header) -> dict[str, bytes]:
    files, start = {}, 0
    for name, entry in sorted(header.files.items()):
        files[name], start = content[start : start + entry.size], start + entry.size
        if _digest(files[name]) != entry.sha256:
            raise ZoneError(f"bundle: {name} does not have the digest that was signed; have it sealed anew")
    if start != len(content):
        raise ZoneError("bundle: holds more than the files that were signed; have it sealed anew")
    return files


def _take_once(received: Path, header: Header) -> None:
    """Remember a bundle; of one exchange and direction a second one with other content is refused."""
    name = _digest(canonical_json([header.sender, header.receiver, header.exchange]))
    digest = _digest(header.to_bytes())
    write_atomically(received / name, digest.encode(), once=True)
    sync(received)
    if (received / name).read_text() != digest:
        raise ZoneError(
            f"bundle: expected the one of {header.exchange} that was taken before, found another; restore what the "
            "sender sent first, or begin another exchange: run again with another --samples, which pays nothing more, "
            "or with another --epsilon, which pays for a new charge"
        )


def _key(agreed: bytes, header: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=b"understudy/bundle/1/" + header).derive(agreed)


def _signed(header: bytes, payload: bytes) -> bytes:
    return canonical_json([hashlib.sha256(header).hexdigest(), hashlib.sha256(payload).hexdigest()])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
