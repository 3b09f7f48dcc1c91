"""The attacker against whom a promise is made: one who knows every other row and sees the noised sums themselves.

What a run released is a sum of what each unit adds to it, plus noise. Whoever knows all rows but the canaries takes
off what those add, and half of what every canary would add. What is left is

    left = sum_i (coin_i - 1/2) c_i + noise,   coin_i in {0, 1},

with c_i what canary i adds if it is in: public, for canaries are. Ridge regression of `left` on the c_i guesses the
coins. Its ridge is the noise's variance over that of a coin, 1/4: the posterior mean, were coins normally distributed.

Without noise this finds the coins of as many canaries as the sum has dimensions, whatever the rows hold. So the run
without noise is caught where an attacker of synthetic texts sees nothing, and what the attack finds in the run as asked
for is close to what the noise permits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from understudy.auditing.one_run import Floats

# Ridge beside that of the noise, as a share of the mean squared length of what a canary adds: two canaries may add the
# same.
_LEAST = 1e-6


@dataclass(frozen=True)
class LeftOver:
    """What is left of released sums, seen from the canaries; private.

    Attributes:
        gram: (m, m) float64 inner products of what the canaries add.
        against: (m,) float64 inner products of that with `left`.
        deviation: standard deviation of the noise in each number of `left`; 0 without noise.
    """

    gram: Tensor = field(repr=False)
    against: Tensor = field(repr=False)
    deviation: float


def seen_from(added: Tensor, left: Tensor, *, deviation: float) -> LeftOver:
    """Of numbers that are at hand as they are.

    Args:
        added: (m, numbers) what each canary adds if it is in.
        left: (numbers,) what is left of the released sum.
        deviation: standard deviation of the noise in each number.
    """
    wide = added.double().cpu()
    return LeftOver(wide @ wide.T, wide @ left.double().cpu(), deviation)


def coin_scores(left: LeftOver) -> Floats:
    """(m,) the share of each canary in what is left; higher looks more like one that is in."""
    ridge = 4 * left.deviation**2 + _LEAST * float(left.gram.diagonal().mean())
    matrix = left.gram + max(ridge, 1e-300) * torch.eye(len(left.gram), dtype=torch.float64, device="cpu")
    found: Floats = torch.linalg.solve(matrix, left.against).numpy()
    return found
