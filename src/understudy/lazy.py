"""Objects that are named by `package.module:name` and imported only when somebody needs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load(place: str) -> Any:
    """The object at `package.module:name`.

    >>> load("math:tau") > 6
    True
    """
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
