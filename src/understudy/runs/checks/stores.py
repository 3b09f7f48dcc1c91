"""The stores of artifacts take a file."""

from __future__ import annotations

from understudy.addresses import public_address
from understudy.artifacts import access
from understudy.runs.checks.answers import PATIENCE_S, within


def private_store() -> str:
    """The private store can be written."""
    access.private_store().check_writable()
    return "writable, mode 0700"


def exchange_store() -> str:
    """The exchange store answers and can be written, wherever it is."""
    store = access.exchange_store()
    within(PATIENCE_S, store.check_writable, f"UNDERSTUDY_EXCHANGE={public_address(store.root)}: the store")
    return public_address(store.root)
