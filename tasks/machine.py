"""The machine under a task that computes: threads, determinism, and one task at a time on the GPU."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency

from understudy.errors import UnderstudyError
from understudy.settings import DeviceType, settings
from understudy.tasks.code_digest import reached_code

# Loading a model changes torch's state for all threads of a process, so mapped tasks that compute take turns in
# it, each with all threads; a Dask or Ray task runner gives them processes of their own.
_TURN = threading.Lock()


@contextmanager
def prepared(function: Callable[..., Any], *, inside: bool) -> Iterator[None]:
    """Set up the machine for a function that reaches torch; other functions do not wait for its import.

    Args:
        function: the task's function.
        inside: whether it runs inside Prefect, which holds the GPU slot.
    """
    if "torch" not in reached_code(function).foreign:
        yield
        return
    now = settings()
    with _TURN if inside else nullcontext(), gpu_slot(now.device_type if inside else "cpu"):
        prepare_torch(now.threads, now.device_type)
        yield


def prepare_torch(threads: int, device: DeviceType) -> None:
    """Fix the number of threads and ask for deterministic algorithms; they stay so after the task.

    Raises:
        UnderstudyError: when the device is not there.
    """
    # Read when CUDA starts; without it matrix products on CUDA are not deterministic.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UnderstudyError("UNDERSTUDY_DEVICE asks for cuda, torch finds none; set UNDERSTUDY_DEVICE=cpu")
    # The number of threads belongs to the calling thread, so every task sets it for itself.
    torch.set_num_threads(threads)
    # A few CUDA operations have no deterministic form; they warn, because an error would come after the
    # charge.
    torch.use_deterministic_algorithms(True, warn_only=device == "cuda")
    torch.backends.cudnn.benchmark = False


@contextmanager
def gpu_slot(device: DeviceType) -> Iterator[None]:
    """Hold this machine's GPU while a task of device type `cuda` computes.

    Raises:
        UnderstudyError: when the limit does not exist.
    """
    if device != "cuda":
        yield
        return
    try:
        # A renewal that fails for a moment must not end a long training.
        with concurrency("gpu", occupy=1, strict=True, raise_on_lease_renewal_failure=False):
            yield
    except ConcurrencySlotAcquisitionError as error:
        raise UnderstudyError(
            "expected the Prefect concurrency limit 'gpu'; make it: prefect gcl create gpu --limit 1"
        ) from error
