"""Running sums of a stream, each block of a binary tree noised on its own.

Paper: Kairouz et al. 2021 (arXiv 2103.00039), section 2.2 and appendix B, after Dwork et al. 2010 and Honaker 2015. The
sum of the first t values is made of the blocks in the binary writing of t, so its noise has variance at most
(floor(log2 t) + 1) sigma^2 where a fresh noise per value would give t sigma^2.
With `honaker` a block's estimate also takes in its two halves, which the noise of the block itself does not see: the
weights are those of least variance, 1/2 sigma^2 and more instead of sigma^2 (appendix B, "bottom up").

A tree keeps the exact sums of its unfinished blocks: it is private, and stays under the private root.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Values = Mapping[str, Tensor]
Estimator = Literal["plain", "honaker"]
Release = Callable[[int, Values], Values]  # (level of the block, its exact sum) -> the noised sum


@dataclass(frozen=True, eq=False)
class Block:
    """A complete block of 2^level values.

    Attributes:
        level: 0 for a single value.
        exact: Its sum; private.
        estimate: What is known of the sum from outputs of the gateway.
    """

    level: int
    exact: Values
    estimate: Values


@dataclass(frozen=True, eq=False)
class Tree:
    """The complete blocks that no larger one holds yet, largest first; empty at the start."""

    blocks: tuple[Block, ...] = ()

    @property
    def count(self) -> int:
        """Values taken in so far."""
        return sum(1 << block.level for block in self.blocks)


def add_value(tree: Tree, value: Values, *, release: Release, estimator: Estimator = "honaker") -> Tree:
    """Take in the next value and release every block that it completes.

    *Guarantee*: `release` is called once for each block, and a value is in at most floor(log2 T) + 1 of the blocks of
    T values: if one client is in one value and moves it by at most C, every call has sensitivity C and a client
    influences so many of them (client, add/remove one as a null client in its slot).

    Args:
        tree: Before; unchanged.
        value: Name -> tensor, exact, private.
        release: Through the gateway, under a step and purpose of the block's own.
        estimator: plain takes the block's own noised sum; honaker its best combination with its halves.

    Returns:
        The tree after.
    """
    blocks = list(tree.blocks)
    block = Block(0, value, release(0, value))
    while blocks and blocks[-1].level == block.level:
        left, level = blocks.pop(), block.level + 1
        exact = _combined(left.exact, block.exact, 1.0, 1.0)
        own = release(level, exact)
        if estimator == "honaker":
            share = own_weight(level)
            own = _combined(own, _combined(left.estimate, block.estimate, 1.0, 1.0), share, 1.0 - share)
        block = Block(level, exact, own)
    return Tree((*blocks, block))


def prefix_sum(tree: Tree) -> dict[str, Tensor]:
    """The estimated sum of all values so far: post-processing of gateway outputs.

    Raises:
        ValueError: when the tree is empty.
    """
    if not tree.blocks:
        raise ValueError("expected at least one value in the tree, found none")
    total = dict(tree.blocks[0].estimate)
    for block in tree.blocks[1:]:
        total = _combined(total, block.estimate, 1.0, 1.0)
    return total


def own_weight(level: int) -> float:
    """Weight of a block's own noised sum in its estimate of least variance; the variance too, in units of sigma^2.

    With variance c of each half's estimate, w = 2c / (1 + 2c) and the block's variance is w again.
    """
    variance = 1.0
    for _ in range(level):
        variance = 2 * variance / (1 + 2 * variance)
    return variance


def _combined(a: Values, b: Values, weight_a: float, weight_b: float) -> dict[str, Tensor]:
    return {name: a[name] * weight_a + b[name] * weight_b for name in a}
