"""The one place that decides what the tasks of this process compute on and in: `chosen`. No torch."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from pathlib import Path
from typing import Any, NamedTuple

from understudy.compute import Compute
from understudy.cores import memory_limit
from understudy.errors import InputError
from understudy.settings import CUBLAS_WORKSPACE, DeviceType, settings

# Under `auto`, smaller models stay in float32: they are quick either way, and their figures compare across machines.
AUTO_FROM_PARAMETERS = 50_000_000
_FAST_ON_CPU = frozenset({"amx_bf16", "avx512_bf16"})
_FAST_ON_CUDA = 8  # compute capability, major
_LONGEST_NAME = 96  # bytes, NVML's own bound
_CPU_INFO = Path("/proc/cpuinfo")
# What libraries choose their kernels by, and the variables by which they are told to choose others, or to cut sums for
# fewer threads than torch was given.
_IDENTITY = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
_VECTORS = ("sse4", "avx", "fma", "f16c", "amx", "asimd", "sve")
_TOLD = (
    "ATEN_CPU_CAPABILITY",
    # oneDNN goes by these names, too, which it had before.
    "DNNL_CPU_ISA_HINTS",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "OMP_MAX_ACTIVE_LEVELS",
    "OMP_THREAD_LIMIT",
    "ONEDNN_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)
# The same of what NVIDIA's libraries, and torch on CUDA, are told.
_TOLD_ON_CUDA = (
    "CUBLAS_EMULATE_DOUBLE_PRECISION",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATION_STRATEGY",
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "DISABLE_ADDMM_CUDA_LT",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_TUNABLEOP_ENABLED",
    "PYTORCH_TUNABLEOP_FILENAME",
    "PYTORCH_TUNABLEOP_TUNING",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)
# By these, float32 products are of shortened numbers; each with the values that leave them whole.
_SHORTENS = {
    "DNNL_DEFAULT_FPMATH_MODE": ("", "STRICT"),
    "NVIDIA_TF32_OVERRIDE": ("", "0"),
    "ONEDNN_DEFAULT_FPMATH_MODE": ("", "STRICT"),
}


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
        return min((device.major for device in _cuda_devices()), default=0) >= _FAST_ON_CUDA
    return not _FAST_ON_CPU.isdisjoint(_flags())


@functools.cache
def has_amx() -> bool:
    """Whether the processor multiplies tiles of bfloat16 matrices, as torch's attention does there."""
    return "amx_bf16" in _flags()


def device_memory() -> int:
    """Bytes that tasks may hold where they compute: of this machine, or of the smallest of its GPUs.

    Never what is free now. Where no GPU says what it has, it is what the machine has.
    """
    on_cuda = settings().device_type == "cuda"
    known = [one.memory for one in _cuda_devices() if one.memory] if on_cuda else []
    return min(known, default=0) or memory_limit()


def memory_for_passes() -> int:
    """`device_memory` in whole GiB, by which rows of a pass are chosen on a GPU; a charge is bound to it."""
    return device_memory() >> 30 << 30


def kind() -> str:
    """The kind of processor and GPU, as far as floats are rounded by it: another kind gives other last bits."""
    facts = _first_processor()
    vectors = facts.get("flags", facts.get("Features", "")).split()
    parts = [platform.machine(), *(facts.get(name, "") for name in _IDENTITY)]
    parts += sorted(flag for flag in vectors if flag.startswith(_VECTORS))
    on_cuda = settings().device_type == "cuda"
    told = (*_TOLD, *_TOLD_ON_CUDA) if on_cuda else _TOLD
    # As tasks set it where nobody did, which may be before or after this.
    has = {"CUBLAS_WORKSPACE_CONFIG": CUBLAS_WORKSPACE, **os.environ}
    parts += [f"{name}={has[name]}" for name in told if has.get(name)]
    if on_cuda:
        # Kernels are chosen by the very device.
        parts += [f"cuda {one.major}.{one.minor} {one.name}" for one in _cuda_devices()]
        # There are GPUs of one name with more memory or less, and sums are cut where a pass ends.
        parts.append(f"{memory_for_passes() >> 30} GiB")
    return " ".join(part for part in parts if part)


def check_products() -> None:
    """Refuse an environment in which float32 products may be shortened: clip norms hold for whole ones.

    Raises:
        InputError: naming the variable.
    """
    for name, whole in _SHORTENS.items():
        value = os.environ.get(name, "")
        if value.upper() not in whole:
            raise InputError(
                f"{name}={value}: expected float32 products as they are, for with shortened ones a row may count for "
                f"more than its clip norm; unset {name}"
            )


def _flags() -> list[str]:
    return _first_processor().get("flags", "").split()


def _first_processor() -> dict[str, str]:
    """What the kernel says of the first processor; nothing where it does not."""
    try:
        known = _CPU_INFO.read_text()
    except OSError:
        return {}
    lines = (line.partition(":") for line in known.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


class _CudaDevice(NamedTuple):
    major: int = 0
    minor: int = 0
    name: str = ""
    memory: int = 0


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _cuda_devices() -> list[_CudaDevice]:
    """Capability, name and memory of every device of the machine, from the driver's library; empty where it fails."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return []
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        return [_cuda_device(nvml, index) for index in range(count.value)]
    except (OSError, AttributeError):
        return []


def _cuda_device(nvml: Any, index: int) -> _CudaDevice:
    device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    name, memory = ctypes.create_string_buffer(_LONGEST_NAME), _Memory()
    failed = (
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
        or nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
        or nvml.nvmlDeviceGetName(device, name, _LONGEST_NAME)
    )
    if failed:
        return _CudaDevice()
    total = 0 if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) else memory.total
    return _CudaDevice(major.value, minor.value, name.value.decode(errors="replace"), total)
