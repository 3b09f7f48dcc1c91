"""What was made for a flow that this process is about to call: in memory, for Prefect would keep a parameter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


@contextmanager
def waiting(among: dict[K, V], key: K, value: V) -> Iterator[V]:
    """Within it, `among` has the value under the key for whoever takes or reads it; nothing is left there after it."""
    among[key] = value
    try:
        yield value
    finally:
        among.pop(key, None)
