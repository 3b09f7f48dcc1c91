"""Halves of a micro-batch side by side.

Two threads that compute a half each take less time than two that share every product of the whole, because between
products one of them waits (benchmarks/threads.py). A side has a copy of the model's modules around the same weights, as
layers are tapped while gradients are taken.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import torch
from torch import nn

from understudy.compute import side_threads

T = TypeVar("T")

_SIDES: Final = 2
# With fewer rows a side mostly waits for Python.
_FEWEST_ROWS: Final = 2
# Each side holds a sum as large as what is trained; beyond this many numbers it is memory that is short, not time.
_MOST_TRAINED: Final = 1 << 23


@dataclass(frozen=True)
class Sides:
    """Which rows of a micro-batch are computed with which copy of a model.

    Attributes:
        model: whose weights all copies share.
        parts: copies, and the rows of each. They depend on the number of threads and on public sizes alone.
        pool: a thread for each part; None for one part.
    """

    model: nn.Module
    parts: tuple[tuple[nn.Module, slice], ...]
    pool: ThreadPoolExecutor | None

    def apply(self, function: Callable[[nn.Module, slice], T]) -> list[T]:
        """What the function gives for each part, in the order of the rows.

        The first error that one raises, once all of them have ended: none computes on a model that nobody holds still.
        """
        if self.pool is None:
            return [function(*part) for part in self.parts]
        halves = [self.pool.submit(function, *part) for part in self.parts]
        try:
            return [half.result() for half in halves]
        finally:
            wait(halves)


@contextmanager
def side_by_side(model: nn.Module, parameters: Sequence[nn.Parameter], *, rows: int) -> Iterator[Sides]:
    """Two sides, or one: with one thread, few rows or many trained numbers, and where the model is not on the CPU.

    Args:
        model: its modules are copied, its weights are not.
        parameters: that are trained; one may be named twice.
        rows: of a micro-batch.
    """
    count = min(_SIDES, torch.get_num_threads(), max(rows // _FEWEST_ROWS, 1))
    distinct = {id(parameter): parameter.numel() for parameter in parameters}
    if sum(distinct.values()) > _MOST_TRAINED or any(p.device.type != "cpu" for p in model.parameters()):
        count = 1
    ends = [rows * side // count for side in range(count + 1)]
    parts = tuple(zip(_copies(model, count), map(slice, ends, ends[1:]), strict=True))
    if count == 1:
        yield Sides(model, parts, None)
        return
    with side_threads(count) as pool:
        yield Sides(model, parts, pool)


def _copies(model: nn.Module, count: int) -> list[nn.Module]:
    """The model, and copies of its modules around the same parameters and buffers."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return [model, *(copy.deepcopy(model, dict(shared)) for _ in range(count - 1))]
