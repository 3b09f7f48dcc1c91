"""The keys of the two zones: each signs what it sends, and opens what was sealed for it.

A zone has one secret, `UNDERSTUDY_ZONE_KEY` or the file `zone-key` of its home (0600), from which an Ed25519 key to
sign and an X25519 key to agree on secrets are derived. The other zone's public key is told it once, by
`understudy keys trust`; there is no trust at first sight. A process of both zones has both keys.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from understudy.durable import write_atomically
from understudy.errors import InputError, ZoneError
from understudy.privacy.ledger.secret import MINIMUM_BYTES, create_secret, read_secret
from understudy.settings import settings

Zone = Literal["client", "server"]

PUBLIC_BYTES = 64
_KEY_FILE, _TRUSTED_FILE = "zone-key", "trusted-key"


@dataclass(frozen=True)
class PublicKey:
    """What others know of a zone.

    Attributes:
        signing: Ed25519, 32 bytes.
        agreement: X25519, 32 bytes.
    """

    signing: bytes
    agreement: bytes

    @property
    def text(self) -> str:
        """128 hexadecimal digits, to be handed over."""
        return (self.signing + self.agreement).hex()

    def verify(self, signature: str, content: bytes, *, purpose: str) -> None:
        """Refuse a signature that this zone did not make of this content for this purpose.

        Raises:
            ZoneError: it is another's, of other content or for another purpose.
        """
        try:
            Ed25519PublicKey.from_public_bytes(self.signing).verify(bytes.fromhex(signature), _framed(purpose, content))
        except (InvalidSignature, ValueError):
            raise ZoneError(
                f"{purpose}: expected the signature of key {self.text[:16]}..., found another; it was not followed: "
                "somebody changed it, or the zones do not know each other's keys (`understudy keys show` in the one, "
                "`understudy keys trust KEY` in the other)"
            ) from None


@dataclass(frozen=True)
class OwnKey:
    """A zone's own keys; the secret stands in no message."""

    zone: Zone
    _secret: bytes = field(repr=False)

    @property
    def public(self) -> PublicKey:
        """What others may know."""
        return PublicKey(self._signing.public_key().public_bytes_raw(), self.agreement.public_key().public_bytes_raw())

    @property
    def agreement(self) -> X25519PrivateKey:
        """Agrees with another zone on a secret."""
        return X25519PrivateKey.from_private_bytes(self.derive("agreement"))

    def sign(self, content: bytes, *, purpose: str) -> str:
        """A signature that counts for this content and purpose only; hexadecimal, the same each time."""
        return self._signing.sign(_framed(purpose, content)).hex()

    def derive(self, purpose: str, content: bytes = b"") -> bytes:
        """32 bytes that only this zone can compute."""
        return hmac.digest(self._secret, f"understudy/zone/{self.zone}/{purpose}/".encode() + content, "sha256")

    @property
    def _signing(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.derive("signing"))


def own_key(zone: Zone) -> OwnKey:
    """The keys of this process's zone, made on first use.

    Raises:
        ZoneError: this process is of the other zone alone.
        InputError: the secret is too short, or others can read it.
    """
    now = settings()
    if now.zone not in ("both", zone):
        raise ZoneError(
            f"UNDERSTUDY_ZONE={now.zone}: expected a process of the {zone} zone, whose keys are needed; run this step "
            "there, or unset UNDERSTUDY_ZONE to run both zones here"
        )
    if now.zone_key is not None:
        given = now.zone_key.get_secret_value().encode()
        if len(given) < MINIMUM_BYTES:
            raise InputError(
                f"UNDERSTUDY_ZONE_KEY: expected a secret of at least {MINIMUM_BYTES} bytes, found {len(given)}; make "
                "one with `openssl rand -hex 32`, or unset it to have one made"
            )
        return OwnKey(zone, given)
    path = now.home / _KEY_FILE
    return OwnKey(zone, read_secret(path) or create_secret(path))


def own_keys() -> tuple[OwnKey, ...]:
    """The keys of every zone that this process is of."""
    zone = settings().zone
    return (own_key("client"), own_key("server")) if zone == "both" else (own_key(zone),)


def public_key(zone: Zone) -> PublicKey:
    """The public key of a zone: this process's own, or the one it was told to trust.

    Raises:
        InputError: it was not told any.
    """
    now = settings()
    if now.zone in ("both", zone):
        return own_key(zone).public
    try:
        text = now.trusted_key or (now.home / _TRUSTED_FILE).read_text()
    except OSError:
        raise InputError(
            f"UNDERSTUDY_ZONE={now.zone}: expected to know the key of the {zone} zone, found none; run `understudy "
            f"keys show` in the {zone} zone and `understudy keys trust KEY` here"
        ) from None
    return parse_key(text)


def trust(text: str) -> PublicKey:
    """Remember the other zone's public key; what it replaces is no longer trusted.

    Raises:
        InputError: it is no key, or this process's own.
    """
    key = parse_key(text)
    for own in own_keys():
        if own.public == key:
            raise InputError(
                f"keys trust: expected the key of the zone on the other machine, found this machine's own ({own.zone})"
            )
    write_atomically(settings().home / _TRUSTED_FILE, f"{key.text}\n".encode())
    return key


def parse_key(text: str) -> PublicKey:
    """A public key from its hexadecimal digits.

    Raises:
        InputError: it is none.
    """
    try:
        raw = bytes.fromhex(text.strip())
    except ValueError:
        raw = b""
    if len(raw) != PUBLIC_BYTES:
        raise InputError(
            f"trusted key: expected {2 * PUBLIC_BYTES} hexadecimal digits as `understudy keys show` prints them, found "
            f"{len(text.strip())} characters"
        )
    return PublicKey(raw[:32], raw[32:])


def _framed(purpose: str, content: bytes) -> bytes:
    """Purpose and content as one text in which neither can pass for a part of the other."""
    head = f"understudy/{purpose}".encode()
    return len(head).to_bytes(4) + head + content
