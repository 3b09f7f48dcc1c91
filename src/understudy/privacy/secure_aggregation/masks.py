"""Masks that cancel, and sealed envelopes between clients: X25519, HKDF-SHA256, AES-256-CTR, ChaCha20-Poly1305.

Source: Bonawitz et al. 2017, Figure 4. Two clients agree on a key; the one of lower number adds the mask that it
expands to, the other subtracts it. Masks are words of AES-256 in counter mode, uniform modulo 2^32 or 2^64 if AES is a
pseudo-random function. Deviation: AES-256-CTR where the paper has AES-128-CTR; ChaCha20-Poly1305 for its AES-GCM.
"""

from __future__ import annotations

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from understudy.errors import UnderstudyError
from understudy.privacy.noise import uniform_words
from understudy.privacy.secure_aggregation.fixed_point import WordBits, Words


def private_key(secret: bytes) -> X25519PrivateKey:
    """The key pair of 32 secret bytes."""
    return X25519PrivateKey.from_private_bytes(secret)


def public_bytes(key: X25519PrivateKey) -> bytes:
    """The 32 bytes that a client advertises."""
    return key.public_key().public_bytes_raw()


def agree(own: X25519PrivateKey, other: bytes, *, purpose: bytes) -> bytes:
    """The key that two clients share for one purpose: HKDF-SHA256 of their X25519 secret.

    Args:
        own: one client's private key.
        other: the other's 32 public bytes.
        purpose: names session and use, public; another purpose gives an unrelated key.

    Returns:
        32 bytes, the same from either side.

    Raises:
        UnderstudyError: when the public bytes are not those of an honest key.
    """
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise UnderstudyError("expected a public key of 32 bytes that is no small-order point; refused") from error
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"understudy/secure/1/" + purpose).derive(secret)


def expand(key: bytes, *, d: int, width: WordBits) -> Words:
    """`d` uniform words, a function of a key used for nothing else."""
    words = uniform_words(key, -(-d * width // 64))
    return words if width == 64 else words.view("<u4")[:d]


def add_pair_mask(total: Words, key: bytes, *, own: int, other: int) -> None:
    """Add to `total`, in place, client `own`'s share of the mask that it has with `other`."""
    mask = expand(key, d=len(total), width=64 if total.dtype.itemsize == 8 else 32)
    (np.add if own < other else np.subtract)(total, mask, out=total)


def seal(key: bytes, text: bytes, *, context: bytes) -> bytes:
    """Encrypt and authenticate the only message ever sent under `key`; its nonce is zero for that reason."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, context)


def unseal(key: bytes, sealed: bytes, *, context: bytes) -> bytes:
    """The text of `seal`.

    Raises:
        UnderstudyError: when it was altered or belongs elsewhere.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, context)
    except InvalidTag as error:
        raise UnderstudyError("a sealed share was altered or is not for this client; refused") from error
