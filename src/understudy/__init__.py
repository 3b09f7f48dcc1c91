"""Understudy: synthetic text that can stand in for a private data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from understudy.api import Comparison, Result, compare, load_comparison, load_result, synthesize

__all__ = ["Comparison", "Result", "compare", "load_comparison", "load_result", "synthesize"]


def __getattr__(name: str) -> Any:
    """Import the Python API only when it is used, so that the command line's help stays quick."""
    if name in __all__:
        from understudy import api

        return getattr(api, name)
    raise AttributeError(f"module 'understudy' has no attribute {name!r}")
