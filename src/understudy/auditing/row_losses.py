"""Rows read by a language model: what an attacker of a model looks at, before and after a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class RowLosses:
    """Rows ready to be read by a language model.

    Attributes:
        model: the language model; what its layers are called does not depend on whether it is the public or the
            released one.
        parts: each reads the next few rows and gives their losses `(k,)` in nats, a row's the mean over its own tokens,
            differentiable.
    """

    model: nn.Module = field(repr=False)
    parts: tuple[Callable[[], Tensor], ...] = field(repr=False)

    def values(self) -> npt.NDArray[np.float64]:
        """The losses of all rows, `(n,)`."""
        with torch.no_grad():
            found: npt.NDArray[np.float64] = torch.cat([part() for part in self.parts]).double().cpu().numpy()
        return found
