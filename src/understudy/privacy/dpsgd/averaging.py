"""The average of a training's weights over its steps (De et al. 2022, arXiv 2204.13650, section 3).

average <- d * average + (1 - d) * weights after step t = 0, 1, ..., from the weights before the first one on, with
d = min(decay, (1 + t) / (10 + t)): while there are few steps, only the last of them count. The weights of every step
are functions of noised sums, so their average is post-processing and costs no privacy. Of an adapter the two factors
are averaged, each by itself, and not their product.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def decay_at(step: int, decay: float) -> float:
    """Weight of the earlier average after step 0, 1, ...; never above `decay`."""
    return min(decay, (1 + step) / (10 + step))


class Average:
    """A running average of weights, on their device and in their precision; with decay 0 there is none."""

    def __init__(self, weights: Mapping[str, nn.Parameter], *, decay: float) -> None:
        """Begin with the weights as they are.

        Args:
            weights: name -> parameter that is trained.
            decay: 0 to below 1; 0 keeps nothing.
        """
        self._weights = weights if decay else {}
        self._decay = decay
        self._values = {name: weight.detach().clone() for name, weight in self._weights.items()}

    def add(self, step: int) -> None:
        """Take in the weights after step 0, 1, ..."""
        new = 1.0 - decay_at(step, self._decay)
        for name, value in self._values.items():
            value.lerp_(self._weights[name].detach(), new)

    def tensors(self) -> dict[str, Tensor]:
        """`average/NAME`, for a checkpoint."""
        return {f"average/{name}": value for name, value in self._values.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what a checkpoint holds."""
        for name, value in self._values.items():
            value.copy_(tensors[f"average/{name}"])

    def put_in_place(self) -> None:
        """Make the average the weights."""
        with torch.no_grad():
            for name, value in self._values.items():
                self._weights[name].copy_(value)
