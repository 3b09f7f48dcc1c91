"""The flow of each method, imported only when a run names it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from understudy.methods.method import check_method
from understudy.runs.request import RunRequest
from understudy.tasks.delivery import Delivered


def flow_of(method: str) -> Callable[[RunRequest], Delivered]:
    """The flow that runs a method.

    Raises:
        InputError: no such method.
    """
    name = check_method(method).replace("-", "_")
    found: Callable[[RunRequest], Delivered] = getattr(import_module(f"understudy.flows.{name}"), name)
    return found
