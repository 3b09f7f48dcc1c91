"""What tasks compute on computes, and a task can get it."""

from __future__ import annotations

from understudy.errors import InputError
from understudy.hardware import check_products
from understudy.locks import holder_of
from understudy.runs.checks.answers import said
from understudy.runs.checks.prefect_server import gpu_limit
from understudy.settings import device_locks, prefect_setting, settings


def gpu() -> str:
    """On CUDA: the devices compute, and a task can get one: from the server's limit `gpu`, or by a lock of its own.

    On every device float32 products are of whole numbers.
    """
    check_products()
    now = settings()
    if now.device_type != "cuda":
        return "not used: tasks run on the CPU"
    url = prefect_setting("PREFECT_API_URL")
    if url is not None:
        said = gpu_limit(url)
    else:
        held = [holder_of(path) for path in device_locks()]
        said = f"UNDERSTUDY_DEVICES={now.devices}, {sum(pid is None for pid in held)} of {len(held)} free"
    _compute_on(now.device_indices if url is None else (0,))
    return said


def _compute_on(indices: tuple[int, ...]) -> None:
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if max(indices) >= found:
        raise InputError(
            f"expected CUDA device {max(indices)}, torch finds {found}; set UNDERSTUDY_DEVICE=cpu or name other "
            "UNDERSTUDY_DEVICES"
        )
    for index in indices:
        try:
            torch.ones(2, device=f"cuda:{index}").sum().item()
        except RuntimeError as error:
            raise InputError(
                f"CUDA device {index}: expected it to compute, found: {said(error)}; free it, or set "
                "UNDERSTUDY_DEVICE=cpu"
            ) from None
