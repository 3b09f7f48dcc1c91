"""What tasks compute on, and in which numbers: device and precision, decided in one place and handed down.

`hardware.chosen()` decides for a process, from its settings and its machine. Whatever makes tensors is given the
`Compute` that it returned, or follows the device of a model that was loaded with it. Frozen weights and what flows
through them may be bfloat16; trained weights, per-example gradients, their norms and every sum are float32 or wider.

torch is imported where it is needed, so that a cache key does not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

M = TypeVar("M", bound="nn.Module")

Precision = Literal["float32", "bfloat16"]

_BLOCK = 256


@dataclass(frozen=True)
class Compute:
    """A device and a precision; public.

    Attributes:
        device: torch device, a type without a number: which of several GPUs `cuda` means is the task engine's choice.
        precision: of frozen weights and of what flows through them.
        from_parameters: models with fewer parameters stay in float32.
    """

    device: str = "cpu"
    precision: Precision = "float32"
    from_parameters: int = 0

    def precision_of(self, parameters: int) -> Precision:
        """The precision that a model of so many parameters gets."""
        return self.precision if parameters >= self.from_parameters else "float32"

    def dtype_of(self, parameters: int) -> torch.dtype:
        """The same as a type of torch."""
        import torch

        return torch.bfloat16 if self.precision_of(parameters) == "bfloat16" else torch.float32

    @property
    def in_float32(self) -> Compute:
        """The same device; for models that are trained as a whole or measure something."""
        return replace(self, precision="float32", from_parameters=0)

    @property
    def key_parts(self) -> dict[str, Any]:
        """What a cache key or a digest of the environment holds of it."""
        return {"device": self.device, "precision": self.precision, "precision_from": self.from_parameters}


ON_CPU = Compute()


@contextmanager
def side_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of `count` threads, among which the threads that torch uses here are divided."""
    import torch

    threads = torch.get_num_threads()
    try:
        set_threads = partial(torch.set_num_threads, max(threads // count, 1))
        with ThreadPoolExecutor(max_workers=count, initializer=set_threads) as pool:
            yield pool
    finally:
        # Each thread has a number of its own, but the last one that was set is that of threads to come.
        torch.set_num_threads(threads)


def copied_to(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`; from the CPU to a GPU through pinned memory, so that nobody waits for the copy."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def widened(tensor: Tensor) -> Tensor:
    """`tensor` in float32, or as it is if it is wider: losses, norms and sums are taken of nothing narrower."""
    import torch

    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def widened_weights(model: M) -> M:
    """A model whose weights are all float32 or wider, changed in place: as trained and stored weights are."""
    narrow = any(p.is_floating_point() and p.element_size() < 4 for p in model.parameters())
    return model.float() if narrow else model


def running_sum(values: Tensor, dim: int = -1) -> Tensor:
    """Running sums over one dimension; repeatable on every device.

    The CPU's own is repeatable. CUDA has none for floats, so there sums within blocks are matrix products with a
    triangle, and so are the sums of blocks.

    Args:
        values: of any shape.
        dim: along which.

    Returns:
        Of the same shape and type.
    """
    if values.device.type == "cpu" or not values.is_floating_point():
        return values.cumsum(dim)
    return sum_by_blocks(values.movedim(dim, -1)).movedim(-1, dim)


def sum_by_blocks(values: Tensor) -> Tensor:
    """`running_sum` over the last dimension by matrix products, `(..., n)` -> `(..., n)`."""
    from torch.nn import functional

    n = values.shape[-1]
    padded = functional.pad(values, (0, -n % _BLOCK)).reshape(*values.shape[:-1], -1, _BLOCK)
    within = padded @ values.new_ones(_BLOCK, _BLOCK).triu()
    if padded.shape[-2] > 1:
        before = sum_by_blocks(within[..., :-1, -1])
        within = within + functional.pad(before, (1, 0))[..., None]
    sums: Tensor = within.flatten(-2)[..., :n]
    return sums
