"""Rows read by a language model: what an attacker of a model looks at, before and after a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class TokenRows:
    """Rows as tokens: what a row's loss is made of.

    Attributes:
        input_ids: `(n, width)` int64.
        attention_mask: `(n, width)` int64, 1 on real tokens.
        counted: `(n, width)` bool, the tokens whose mean loss is the row's; the first column never counts.
    """

    input_ids: Tensor = field(repr=False)
    attention_mask: Tensor = field(repr=False)
    counted: Tensor = field(repr=False)


@dataclass(frozen=True)
class RowLosses:
    """Rows ready to be read by a language model.

    Attributes:
        model: the language model; what its layers are called does not depend on whether it is the public or the
            released one.
        parts: each reads the next few rows and gives their losses `(k,)` in nats, a row's the mean over its own tokens,
            differentiable.
        tokens: the same rows as tokens for a causal model of transformers, so that versions of one text can share what
            they begin with (`version_losses.py`); None for another model, whose rows are read as wholes.
    """

    model: nn.Module = field(repr=False)
    parts: tuple[Callable[[], Tensor], ...] = field(repr=False)
    tokens: Callable[[], TokenRows] | None = field(default=None, repr=False)

    def values(self) -> npt.NDArray[np.float64]:
        """The losses of all rows, `(n,)`."""
        with torch.no_grad():
            found: npt.NDArray[np.float64] = torch.cat([part() for part in self.parts]).double().cpu().numpy()
        return found
