"""Understudy: synthetic text that can stand in for a private data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from understudy.api import Result, load_result, synthesize
    from understudy.api_comparing import Comparison, compare, load_comparison
    from understudy.api_measuring import Audit, audit, evaluate

__all__ = [
    "Audit",
    "Comparison",
    "Result",
    "audit",
    "compare",
    "evaluate",
    "load_comparison",
    "load_result",
    "synthesize",
]

_PLACES = {"api": ("Result", "load_result", "synthesize"), "api_measuring": ("Audit", "audit", "evaluate")}


def __getattr__(name: str) -> Any:
    """Import the Python API only when it is used, so that the command line's help stays quick."""
    if name in __all__:
        from importlib import import_module

        module = next((module for module, names in _PLACES.items() if name in names), "api_comparing")
        return getattr(import_module(f"understudy.{module}"), name)
    raise AttributeError(f"module 'understudy' has no attribute {name!r}")
