"""Which methods there are: those of the package and those that installed packages add.

A method is named here, or under the entry-point group `understudy.methods`, by `package.module:OBJECT`; it is imported
only when a run names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from understudy.errors import InputError, UnderstudyError
from understudy.lazy import load

if TYPE_CHECKING:
    from understudy.methods.method import Method

GROUP = "understudy.methods"
BUILT_IN: Mapping[str, str] = {
    "conditional-generation": "understudy.methods.conditional_generation.method:METHOD",
    "gradient-matching": "understudy.methods.gradient_matching.method:METHOD",
    "knowledge-distillation": "understudy.methods.knowledge_distillation.method:METHOD",
    "preference-optimization": "understudy.methods.preference_optimization.method:METHOD",
    "trajectory-matching": "understudy.methods.trajectory_matching.method:METHOD",
}


def names() -> tuple[str, ...]:
    """Every method that can be run, those of the package first."""
    return tuple(_places())


def get(name: str) -> Method[Any]:
    """The method of a name.

    Raises:
        InputError: there is no such method.
        UnderstudyError: an installed package names an object that is no method of this name.
    """
    from understudy.methods.method import Method

    place = _places()[check_name(name)]
    found = load(place)
    if not isinstance(found, Method) or found.name != name:
        raise UnderstudyError(
            f"{place}: expected a Method named {name!r}, found {type(found).__name__}; correct the "
            f"entry point of the group {GROUP} in the package that installs it"
        )
    return found


def check_name(name: str) -> str:
    """Return the name of a method.

    Raises:
        InputError: there is no such method.
    """
    if name not in _places():
        raise InputError(f"method={name!r}: expected one of {', '.join(_places())}")
    return name


@lru_cache(maxsize=1)
def _places() -> dict[str, str]:
    """Name -> place; a name of the package's own is not taken over by an installed one."""
    installed = {point.name: point.value for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}
    return {**BUILT_IN, **{name: place for name, place in installed.items() if name not in BUILT_IN}}
