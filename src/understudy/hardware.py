"""The one place that decides what the tasks of this process compute on and in: `chosen`. No torch."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from understudy.compute import Compute
from understudy.settings import DeviceType, settings

# Under `auto`, smaller models stay in float32: they are quick either way, and their figures compare across machines.
AUTO_FROM_PARAMETERS = 50_000_000
_FAST_ON_CPU = frozenset({"amx_bf16", "avx512_bf16"})
_FAST_ON_CUDA = 8  # compute capability, major
_CPU_INFO = Path("/proc/cpuinfo")


def chosen() -> Compute:
    """Device and precision of this process's tasks, from its settings and its machine; without torch."""
    now = settings()
    device = now.device_type
    if now.precision != "auto":
        return Compute(device, now.precision)
    if not has_fast_bfloat16(device):
        return Compute(device)
    return Compute(device, "bfloat16", AUTO_FROM_PARAMETERS)


@functools.cache
def has_fast_bfloat16(device: DeviceType) -> bool:
    """Whether this machine multiplies bfloat16 matrices in hardware: AMX, AVX512-bf16, or CUDA from capability 8."""
    if device == "cuda":
        return min(_cuda_capabilities(), default=0) >= _FAST_ON_CUDA
    try:
        known = _CPU_INFO.read_text()
    except OSError:
        return False
    flags = next((line for line in known.splitlines() if line.startswith("flags")), "")
    return not _FAST_ON_CPU.isdisjoint(flags.split())


def _cuda_capabilities() -> list[int]:
    """Major compute capability of every device of the machine, from the driver's library; empty where it fails."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return []
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        return [_capability(nvml, index) for index in range(count.value)]
    except (OSError, AttributeError):
        return []


def _capability(nvml: Any, index: int) -> int:
    device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    failed = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) or nvml.nvmlDeviceGetCudaComputeCapability(
        device, ctypes.byref(major), ctypes.byref(minor)
    )
    return 0 if failed else major.value
