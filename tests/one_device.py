"""A device without one: device `meta` under a mode that refuses what a GPU would refuse.

Tensors on `meta` have shapes and no data, so whole models run forward and backward where there is no GPU. torch lets
several operations take a tensor of another device with them (matrix products, indexing); `OneDevice` refuses them all.
Copies between devices are allowed: that is how data comes and goes. What an operation would have to know of the data is
made up, always in the same way: every mask is true, whole numbers are 1 and others 0. Only the first mask copied
to the CPU is false throughout, so that rows which end when it is true take a second token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from understudy.models.loading import LoadedModel

META = "meta"
_COPIES = {torch.ops.aten._to_copy, torch.ops.aten.copy_}
# Operation and what it was given, without data -> what it gave; None where it is no single new tensor.
_SEEN: dict[Any, tuple[Any, ...] | None] = {}


@functools.cache
def _can_decompose(func: Any) -> bool:
    return bool(func._can_decompose())


@functools.cache
def _makes_one_tensor(func: Any) -> bool:
    """Whether it gives one tensor with memory of its own and changes none."""
    schema = func._schema
    one = len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor"
    return one and not schema.is_mutable and not func.is_view and schema.returns[0].alias_info is None


def _without_data(value: Any) -> Any:
    """All that the form of a result on `meta` can hang on."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device.type, value.requires_grad, type(value)
    if isinstance(value, list | tuple):
        return tuple(map(_without_data, value))
    return type(value), value


def _on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    """The operation; most of its time on `meta` torch takes to find the form of what it gives, which is remembered."""
    if not _makes_one_tensor(func):
        return func(*args, **kwargs)
    asked = (func, _without_data(args), _without_data(tuple(kwargs.items())))
    if asked not in _SEEN:
        found = func(*args, **kwargs)
        plain = type(found) is Tensor and found.device.type == META and found.storage_offset() == 0
        _SEEN[asked] = (found.shape, found.stride(), found.dtype) if plain else None
        return found
    if (form := _SEEN[asked]) is None:
        return func(*args, **kwargs)
    shape, stride, dtype = form
    return torch.empty_strided(shape, stride, dtype=dtype, device=META)


def _tensors(given: Iterable[Any]) -> Iterator[Tensor]:
    """Operations take tensors, and lists of tensors."""
    for value in given:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (one for one in value if isinstance(one, Tensor))


class MixedDevicesError(AssertionError):
    """An operation was given tensors of more than one device."""


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of several devices; a CPU tensor without dimensions counts as a number."""

    def __init__(self, *, true_per_row: int | None = None) -> None:
        """Begin to watch.

        Args:
            true_per_row: how many entries of a row `nonzero` finds in a matrix; None: all of them.
        """
        super().__init__()
        self.true_per_row = true_per_row
        self.operations = 0
        self.copied_masks = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        tensors = list(_tensors((*args, *kwargs.values())))
        on_meta = any(tensor.device.type == META for tensor in tensors)
        self.operations += on_meta
        if packet not in _COPIES:
            devices = sorted({t.device.type for t in tensors if t.dim() > 0 or t.device.type != "cpu"})
            if len(devices) > 1:
                shapes = [(t.device.type, tuple(t.shape)) for t in tensors]
                raise MixedDevicesError(f"{func}: expected tensors of one device, found {shapes}")
        if on_meta and _can_decompose(func):
            with self:  # inference mode leaves composite operations whole
                return func.decompose(*args, **kwargs)
        stand_in = _STAND_INS.get(packet) if on_meta else None
        found = stand_in(self, func, args, kwargs) if stand_in else NotImplemented
        if found is not NotImplemented:
            return found
        return _on_meta(func, args, kwargs) if on_meta else func(*args, **kwargs)

    def trues(self, mask: Tensor) -> Tensor:
        """`(found, dimensions)` places of a mask's true entries, on the mask's device."""
        rows = len(mask) * self.true_per_row if self.true_per_row and mask.dim() == 2 else mask.numel()
        return torch.empty(rows, mask.dim(), dtype=torch.long, device=META)


def _download(mode: OneDevice, _: Any, args: Any, kwargs: Any) -> Any:
    source, device = args[0], kwargs.get("device")
    if source.device.type != META or device is None or torch.device(device).type != "cpu":
        return NotImplemented
    if source.dtype == torch.bool:
        mode.copied_masks += 1
        return torch.full(source.shape, mode.copied_masks > 1)
    return torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype)


def _download_into(_: OneDevice, __: Any, args: Any, ___: Any) -> Any:
    return args[0] if args[0].device.type == "cpu" else NotImplemented


def _number(_: OneDevice, __: Any, args: Any, ___: Any) -> Any:
    value = args[0]
    if value.device.type != META:
        return NotImplemented
    return True if value.dtype == torch.bool else 0.0 if value.is_floating_point() else 1


def _nonzero(mode: OneDevice, _: Any, args: Any, __: Any) -> Any:
    return mode.trues(args[0])


def _indexed(mode: OneDevice, func: Any, args: Any, kwargs: Any) -> Any:
    self, indices, *rest = args
    if not any(index is not None and index.dtype == torch.bool for index in indices):
        return NotImplemented
    places: list[Tensor | None] = []
    for index in indices:
        places += [index] if index is None or index.dtype != torch.bool else mode.trues(index).unbind(1)
    return func(self, places, *rest, **kwargs)


def _unique(_: OneDevice, __: Any, args: Any, ___: Any) -> Any:
    rows = torch.empty(args[0].shape[args[1]], dtype=torch.long, device=META)
    return args[0].clone(), rows, rows.clone()


_STAND_INS: dict[Any, Callable[[OneDevice, Any, Any, Any], Any]] = {
    torch.ops.aten._to_copy: _download,
    torch.ops.aten.copy_: _download_into,
    torch.ops.aten._local_scalar_dense: _number,
    torch.ops.aten.nonzero: _nonzero,
    torch.ops.aten.index: _indexed,
    torch.ops.aten.index_put_: _indexed,
    torch.ops.aten.unique_dim: _unique,
}


def on_meta(loaded: LoadedModel) -> LoadedModel:
    """The model without its data, changed in place; tied weights stay tied."""
    loaded.model.to(META)
    loaded.model.tie_weights()
    return loaded
