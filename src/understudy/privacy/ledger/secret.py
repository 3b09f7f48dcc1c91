"""The client zone's secret: where it is kept, what is derived from it, how a key is wrapped under it."""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from understudy.durable import sync, write_atomically
from understudy.errors import InputError, UnderstudyError
from understudy.owner_only import remedy

MINIMUM_BYTES = 32


def check_secret(secret: bytes) -> bytes:
    """`secret` itself, when it is long enough.

    Raises:
        InputError: when it is shorter than 32 bytes.
    """
    if len(secret) < MINIMUM_BYTES:
        raise InputError(
            f"expected a secret of at least {MINIMUM_BYTES} bytes, found {len(secret)}: "
            "make one with `openssl rand -hex 32`, or unset UNDERSTUDY_SECRET to have one made"
        )
    return secret


def new_secret() -> bytes:
    """A fresh random secret, 64 hexadecimal digits."""
    return secrets.token_hex(32).encode()


def key_id(secret: bytes) -> str:
    """A public name for a secret: 16 hexadecimal digits that tell nothing about it."""
    return derive(secret, "key id").hex()[:16]


def derive(key: bytes, purpose: str) -> bytes:
    """A key of its own for each purpose: HMAC-SHA256, 32 bytes."""
    return hmac.digest(key, b"understudy/ledger/1/" + purpose.encode(), "sha256")


def wrap(secret: bytes, key: bytes, *, name: str) -> bytes:
    """`key` encrypted under `secret` (AES-256-GCM) and bound to `name`."""
    nonce = secrets.token_bytes(12)
    return nonce + AESGCM(derive(secret, "wrap")).encrypt(nonce, key, name.encode())


def unwrap(secret: bytes, wrapped: object, *, name: str) -> bytes:
    """The key that `wrap` encrypted.

    Args:
        secret: that it was encrypted under.
        wrapped: bytes, or whatever else was written into their column.
        name: that it was bound to.

    Raises:
        UnderstudyError: when the secret, the name or the bytes are not those of `wrap`.
    """
    try:
        if not isinstance(wrapped, bytes):
            raise InvalidTag
        return AESGCM(derive(secret, "wrap")).decrypt(wrapped[:12], wrapped[12:], name.encode())
    except (InvalidTag, ValueError):  # the latter where there is no whole nonce
        raise UnderstudyError(
            f"the ledger's key {name!r} does not open with the secret {key_id(secret)}: the ledger was "
            "damaged or changed by other means; restore it from a backup"
        ) from None


def read_secret(path: Path) -> bytes | None:
    """The secret kept in a file, None when there is no such file.

    Raises:
        InputError: when others may read the file, or it holds no secret; naming the file.
    """
    if path.is_dir():  # it opens like a file
        raise InputError(f"expected the secret in the file {path}, found a folder; restore the file from a backup")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(
            f"the secret {path} cannot be read: {error.strerror}; {remedy(path, otherwise='fix its permissions')}"
        ) from None
    with os.fdopen(descriptor, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise InputError(f"expected the secret {path} closed to others (0600), found mode {mode:04o}: chmod 600")
        found = file.read().strip()
    if len(found) < MINIMUM_BYTES:
        raise InputError(
            f"expected a secret of at least {MINIMUM_BYTES} bytes in {path}, found {len(found)}: restore the file from "
            "a backup"
        )
    return found


def create_secret(path: Path) -> bytes:
    """Makes a secret in a new file (0600), whole or not at all; of two at once, both get the same one."""
    write_secret(path, new_secret(), once=True)
    found = read_secret(path)
    if found is None:
        raise UnderstudyError(f"the secret {path} was removed while it was being made; run again")
    return found


def write_secret(path: Path, secret: bytes, *, once: bool = False) -> None:
    """Writes a secret, whole or not at all, to a file that only its owner can read, and waits until it is on the disk.

    Args:
        path: the file.
        secret: what it shall hold.
        once: keep the file that is already there.
    """
    write_atomically(path, secret + b"\n", once=once)


def pending(path: Path) -> Path:
    """Where the next secret waits while the ledger turns to it."""
    return path.with_name(f"{path.name}.new")


def finish_rotation(path: Path, *, current: str | None) -> bytes | None:
    """Moves the waiting secret into place if the ledger has turned to it (key id `current`), and gives it.

    A file too short for a secret is what a disk lost in a crash. Where the ledger's secret stands in its place, nobody
    waits for another, and the next rotation replaces the file.

    Raises:
        InputError: when a file cannot be used, and the ledger's secret may be the one that waited.
    """
    waiting = pending(path)
    if _is_too_short(waiting) and (kept := read_secret(path)) is not None and current in (None, key_id(kept)):
        return None
    secret = read_secret(waiting)
    if secret is None or key_id(secret) != current:
        return None
    try:
        os.replace(waiting, path)
    except FileNotFoundError:
        return None  # another process has just done the same
    sync(path.parent)
    return secret


def _is_too_short(path: Path) -> bool:
    try:
        return path.stat().st_size < MINIMUM_BYTES
    except OSError:
        return False
