"""The machine under a task that computes: threads, determinism, and one task at a time on the GPU."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency

from understudy.addresses import public_address
from understudy.compute import Compute
from understudy.cores import let_threads_sleep
from understudy.errors import UnderstudyError
from understudy.hardware import check_products, chosen
from understudy.locks import holder_of, locked_one
from understudy.settings import CUBLAS_WORKSPACE, DeviceType, device_locks, prefect_setting, settings
from understudy.tasks.engine.code_digest import reached_code
from understudy.tasks.engine.progress import say_waiting

# Loading a model changes torch's state for all threads of a process, so mapped tasks that compute take turns in
# it, each with all threads; a Dask or Ray task runner gives them processes of their own.
_TURN = threading.Lock()


def compute() -> Compute:
    """Device and precision of the running task, to be handed to whatever makes tensors."""
    return chosen()


@contextmanager
def timed() -> Iterator[None]:
    """Hold the GPU, where there is one, while a dry run measures what a task would take on it."""
    with gpu_slot(settings().device_type) as index:
        if index is not None:
            use_device(index)
        yield


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
    with _TURN if inside else nullcontext(), gpu_slot(now.device_type if inside else "cpu") as index:
        prepare_torch(now.threads, now.device_type)
        if index is not None:
            use_device(index)
        yield


def use_device(index: int) -> None:
    """Make `cuda` mean one device, for the calling thread."""
    import torch

    torch.cuda.set_device(index)


def prepare_torch(threads: int, device: DeviceType) -> None:
    """Fix the number of threads and ask for deterministic algorithms; they stay so after the task.

    Raises:
        UnderstudyError: when the device is not there.
        InputError: the environment shortens float32 products.
    """
    check_products()
    let_threads_sleep()
    # Read when CUDA starts; without it matrix products on CUDA are not deterministic.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UnderstudyError("UNDERSTUDY_DEVICE asks for cuda, torch finds none; set UNDERSTUDY_DEVICE=cpu")
    # The number of threads belongs to the calling thread, so every task sets it for itself.
    torch.set_num_threads(threads)
    # An operation without a deterministic form fails, on CUDA too: a resumed run must end in the same bytes.
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    # Clip norms hold for float32 products, not for shortened ones, which the caller's own script may have asked for.
    torch.set_float32_matmul_precision("highest")
    if device == "cuda":
        # Of the attention kernels only the plain one repeats its backward pass bit for bit. (Off the GPU these
        # switches would change what the CPU computes.)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def gpu_slot(device: DeviceType) -> Iterator[int | None]:
    """Hold a GPU of this machine while a task of device type `cuda` computes.

    With a Prefect server its concurrency limit `gpu` counts, which an operator sets for all workers. Without one a
    limit would be that of a server started for this run alone, so the task holds a lock of its own.

    Yields:
        The number of the device that is locked; None where nothing is, or where the limit does not choose.

    Raises:
        UnderstudyError: when the limit does not exist.
    """
    if device != "cuda":
        yield None
    elif prefect_setting("PREFECT_API_URL") is None:
        with locked_one(device_locks(), say_waiting(_gpu_holders)) as place:
            yield settings().device_indices[place]
    else:
        with _gpu_limit():
            yield None


@contextmanager
def _gpu_limit() -> Iterator[None]:
    answered = threading.Event()
    threading.Thread(target=_say_until, args=(answered,), name="gpu-slot", daemon=True).start()
    try:
        # A renewal that fails for a moment must not end a long training.
        with concurrency("gpu", occupy=1, strict=True, raise_on_lease_renewal_failure=False):
            answered.set()
            yield
    except ConcurrencySlotAcquisitionError as error:
        url = public_address(prefect_setting("PREFECT_API_URL") or "")
        raise UnderstudyError(
            f"expected the concurrency limit 'gpu' on the Prefect server {url}; make it there: "
            f"PREFECT_API_URL={url} prefect gcl create gpu --limit 1"
        ) from error
    finally:
        answered.set()


def _say_until(answered: threading.Event) -> None:
    """Say that a slot of the server's limit is waited for."""
    url, began = public_address(prefect_setting("PREFECT_API_URL") or ""), time.monotonic()
    say = say_waiting(lambda: f"for a slot of the concurrency limit 'gpu' of {url}")
    while not answered.wait(1.0):
        say(time.monotonic() - began)


def _gpu_holders() -> str:
    """Who has the devices, for a run that waits for one."""
    holders = ", ".join(f"process {pid}" for path in device_locks() if (pid := holder_of(path)))
    return f"for a GPU (UNDERSTUDY_DEVICES={settings().devices}): held by {holders or 'nobody any more'}"
