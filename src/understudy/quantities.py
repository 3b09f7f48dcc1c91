"""What one setting is: the types of values, with the bounds that all of a kind have; imports nothing of ours.

A setting with closer bounds is of the plain type and names them all: pydantic keeps one bound of each kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field

Count = Annotated[int, Field(ge=1, le=100_000_000)]
CountOrZero = Annotated[int, Field(ge=0, le=100_000_000)]
Size = Annotated[int, Field(ge=1, le=65_536)]  # what memory grows with: a width, a rank, a batch
Positive = Annotated[float, Field(gt=0, le=1e6)]
Probability = Annotated[float, Field(gt=0, le=1)]
Part = Annotated[float, Field(gt=0, lt=1)]  # of a whole, the rest of which goes elsewhere
LearningRate = Annotated[float, Field(gt=0, le=10)]
NonEmpty = Annotated[str, Field(min_length=1)]
Words = Annotated[str, Field(max_length=200, pattern=r"^[^\r\n]*$")]  # one line of public words
PublicSeed = Annotated[int, Field(ge=0, lt=2**63)]
NumpySeed = Annotated[int, Field(ge=0, lt=2**32)]

# Composition by Fourier transforms is exact to some 1e-12 in delta for 1e5 steps. A run's delta is far above that.
LEAST_DELTA: Final = 1e-9

T = TypeVar("T")


def rounded_up(count: float) -> int:
    """A count that was computed in floats, such as a share of rows, as the whole number that is not below it.

    What floats miss of a whole number adds nothing: 0.07 * 100 is a little more than 7.

    >>> rounded_up(0.07 * 100), rounded_up(7.01)
    (7, 8)
    """
    return math.ceil(count - 1e-9)


def setting(default: T, description: str, **bounds: Any) -> T:
    """One setting of a model of settings, as pydantic's `Field`; its type is checked against the annotation.

    Args:
        default: its value where none is given.
        description: what it does, in one sentence; with the values of the profiles.
        bounds: of a plain type, such as `le=100`, and what else `Field` takes.
    """
    made: Any = Field(default=default, description=description, **bounds)
    return made  # type: ignore[no-any-return]


def section(kind: Callable[..., T], description: str) -> T:
    """A model of settings inside of another, whose defaults are its own.

    Args:
        kind: the model.
        description: what its settings are about.
    """
    made: Any = Field(default_factory=kind, description=description)
    return made  # type: ignore[no-any-return]
