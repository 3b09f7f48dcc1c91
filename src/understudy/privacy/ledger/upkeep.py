"""What a user does to the own ledger and its secret, apart from charging: accept a loss, replace the secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from understudy.errors import InputError
from understudy.locks import locked
from understudy.privacy.ledger import secret as keys
from understudy.privacy.ledger.ledger import Ledger
from understudy.settings import settings


def accept_ledger_loss() -> Mapping[str, Any]:
    """Goes on with what is left of this user's ledger, or founds it anew, and records in it what was lost.

    Returns:
        The record: `at`, the number of `entries` that the head spoke of (None: it is gone too), how many were `left`.

    Raises:
        InputError: when nothing was lost.
        UnderstudyError: when what is left was changed by other means, which cannot be accepted.
    """
    return Ledger.open(accept_loss=True).losses()[-1]


def rotate_stored_secret() -> str:
    """Replaces the secret in the file `home/secret` and gives the new key id; a kill loses nothing.

    The new secret is on the disk before the ledger turns to it, and takes the old one's place afterwards; the
    next `Ledger.open()` finishes what was interrupted in between.

    Raises:
        InputError: when the secret comes from the environment, which this process cannot change.
    """
    now = settings()
    if now.secret is not None:
        raise InputError(
            "the secret comes from UNDERSTUDY_SECRET: rotate it with Ledger.open().rotate_secret(new), then "
            "set UNDERSTUDY_SECRET to the new one"
        )
    path = now.home / "secret"
    with locked(now.home / "secret.lock"):
        ledger = Ledger.open()
        new = keys.new_secret()
        keys.write_secret(keys.pending(path), new)
        fresh_id = ledger.rotate_secret(new)
        keys.finish_rotation(path, current=fresh_id)
    return fresh_id
