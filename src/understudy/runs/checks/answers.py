"""How long a check waits for an answer, and what it says of one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from understudy.errors import InputError

R = TypeVar("R")

PATIENCE_S = 15.0


def within(seconds: float, call: Callable[[], R], what: str) -> R:
    """What `call` returns or raises, if that comes in time; a call that hangs is left behind in a thread of its own."""
    ended: list[tuple[R | None, Exception | None]] = []

    def run() -> None:
        try:
            ended.append((call(), None))
        except Exception as error:
            ended.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not ended:
        raise InputError(f"{what} gave no answer within {seconds:g} seconds; fix it or name another")
    result, error = ended[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def said(error: Exception) -> str:
    """Without the address that was asked, whose user and password httpx would repeat."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return f"status {error.response.status_code} {error.response.reason_phrase}".strip()
    if isinstance(error, httpx.InvalidURL):
        return "an address that is none"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(error).split())[:200] or type(error).__name__
