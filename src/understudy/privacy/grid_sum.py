"""Sums on the public grid of `grid`: tensors rounded to whole steps, added up exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from understudy.errors import UnderstudyError
from understudy.privacy.grid import grid_of

# Beyond this many steps no query of up to 2^32 units lies; noise may add 2^61.
_FARTHEST: Final = 1 << 60
_UNITS_AT_ONCE: Final = 1 << 16
# Numbers that are rounded at a time: what a core's cache holds; on a GPU, where each time takes as long, many more.
_AT_ONCE: Final = 1 << 16
_AT_ONCE_ON_CUDA: Final = 1 << 24
# A tensor of fewer numbers is held together with others.
_SMALL: Final = 1 << 17

_Names = tuple[str, ...]


def to_steps(values: Tensor, *, grid: float) -> Tensor:
    """The nearest whole steps, int64, in the shape of `values`; ties go to the even step.

    Args:
        values: float32 or float64, finite.
        grid: a power of two.

    Raises:
        UnderstudyError: when a value is not finite or farther than 2^60 steps from zero.
    """
    values = values.contiguous()
    steps, extremes = _rounded(values.clone() if values.dtype == torch.float64 else values, grid)
    _check([extremes], grid)
    return steps


def _rounded(values: Tensor, grid: float) -> tuple[Tensor, Tensor]:
    """Contiguous floats in steps, float64 in place of them, and the lowest and the highest of the floats `(2,)`."""
    # In their own memory where it is as large, for a query may be half of what a training holds.
    in_place = values.dtype == torch.float64
    steps = values.view(torch.int64) if in_place else torch.empty_like(values, dtype=torch.int64)
    extremes = [values.new_zeros(2)]
    if values.numel():
        size = _AT_ONCE if values.device.type == "cpu" else _AT_ONCE_ON_CUDA
        parts = (torch.split(one.view(-1), size) for one in (values, steps))
        for some, whole in zip(*parts, strict=True):
            extremes.append(torch.stack(some.aminmax()))
            wide = some.double().mul_(1.0 / grid).round_()
            whole.copy_(wide.to(torch.int64) if in_place else wide)
    lowest, highest = torch.stack(extremes).unbind(1)
    return steps, torch.stack((lowest.min(), highest.max()))


def _check(extremes: Sequence[Tensor], grid: float) -> None:
    """Refuse values of which the lowest or the highest is not finite, or too far."""
    lowest, highest = torch.stack([ends.double() for ends in extremes]).unbind(1)
    least, most = torch.stack((lowest.min(), highest.max())).tolist()
    # Both are undefined where a value is. The farthest value itself may be beyond float64, so that it tells nothing.
    if not -_FARTHEST <= least / grid <= most / grid <= _FARTHEST:
        raise UnderstudyError(
            f"expected a finite query within 2^60 steps of {grid:g}, found another; nothing was released. "
            "Contributions that are not finite must be left out before they are added up"
        )


def from_steps(steps: Tensor, *, grid: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """The floats nearest to whole steps: post-processing of released integers."""
    return steps.double().mul_(grid).to(dtype)


class GridSum:
    """A sum of clipped contributions in whole steps of the grid, whoever else is in it.

    Contributions are added up in float64, at most 2^16 units at a time, then rounded to the grid and added exactly. One
    unit changes the float64 sum that it is part of, and no other. That sum's rounding error is below
    2^16 * 2^16 * 2^-53 = 2^-21 of the sensitivity on either neighbour, far below `ALLOWANCE`.
    """

    def __init__(self, *, sensitivity: float, like: Mapping[str, Tensor] | None = None) -> None:
        """An empty sum.

        Args:
            sensitivity: L2 norm that one unit's contribution is clipped to.
            like: name -> tensor of the shape and on the device of the sum, for a sum that nothing may be added to.
        """
        self._grid, self._like = grid_of(sensitivity), like or {}
        self._shapes: dict[str, torch.Size] = {}
        self._groups: tuple[_Names, ...] = ()
        self._waiting: dict[_Names, Tensor] = {}
        self._units = 0
        self._steps: dict[_Names, Tensor] = {}

    def add(self, values: Mapping[str, Tensor], *, units: int) -> None:
        """Add the sum of some units' contributions.

        Args:
            values: name -> float tensor, the same names and shapes at every call; private. Narrow ones may be held as
                they are until the next call: nobody changes them.
            units: slots that they are the sum over, public: null ones count.
        """
        if not self._groups:
            self._groups = _together(values)
            self._shapes = {name: value.shape for name, value in values.items()}
        if self._units + units > _UNITS_AT_ONCE:
            self._round()
        for names in self._groups:
            value, waiting = _flat([values[name] for name in names]), self._waiting.get(names)
            if waiting is not None:
                self._waiting[names] = waiting.double().add_(value)
            else:
                # A narrow sum that stays the only one is widened while it is rounded.
                self._waiting[names] = value.clone() if value.dtype == torch.float64 else value
        self._units += units

    def steps(self) -> dict[str, Tensor]:
        """Name -> int64 steps of everything added so far; private."""
        self._round()
        found: dict[str, Tensor] = {}
        if not self._steps:
            return {name: torch.zeros_like(value, dtype=torch.int64) for name, value in self._like.items()}
        for names, steps in self._steps.items():
            sizes = [self._shapes[name].numel() for name in names]
            parts = zip(names, torch.split(steps, sizes), strict=True)
            found.update({name: part.view(self._shapes[name]) for name, part in parts})
        return found

    def _round(self) -> None:
        extremes: dict[torch.device, list[Tensor]] = {}
        while self._waiting:
            names, value = self._waiting.popitem()
            steps, ends = _rounded(value, self._grid)
            extremes.setdefault(ends.device, []).append(ends)
            self._steps[names] = steps if names not in self._steps else self._steps[names].add_(steps)
        # Once for all of them: a GPU is waited for once.
        for ends_there in extremes.values():
            _check(ends_there, self._grid)
        self._units = 0


def _together(values: Mapping[str, Tensor]) -> tuple[_Names, ...]:
    """Names of tensors that are held as one: the small ones of a device, and each of the others by itself.

    Adapters have hundreds of small tensors. An operation on each of them takes longer to start than to do.
    """
    groups: dict[object, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value.device if value.numel() < _SMALL else name, []).append(name)
    return tuple(map(tuple, groups.values()))


def _flat(values: Sequence[Tensor]) -> Tensor:
    """The numbers of some tensors, one after the other."""
    return values[0].reshape(-1) if len(values) == 1 else torch.cat([value.reshape(-1) for value in values])
