"""What is public about one call of the mechanism interface, and who may see such calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

Kind = Literal["poisson", "gaussian_sum", "histogram", "masked_sum"]
Values = Mapping[str, Tensor]


@dataclass(frozen=True)
class Mechanism:
    """What is public about one call of the mechanism interface.

    Attributes:
        kind: which function.
        step: logical step; 0 for one-off releases.
        purpose: names the call within its step.
        scale: standard deviation of the noise (sigma of the discrete Gaussian); the sampling probability of
            a mask.
        sensitivity: L2 distance that one unit may move the query, rounded to the grid, by; 0 for a mask.
        grid: the step of which query and noise are multiples; 0 for a mask.
    """

    kind: Kind
    step: int
    purpose: str
    scale: float
    sensitivity: float
    grid: float = 0.0


class Recorder(Protocol):
    """Sees every call; may return something else than what `draw` gives (see `replay`)."""

    def observe(self, mechanism: Mechanism, query: Values, draw: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The output to hand to the caller."""
        ...
