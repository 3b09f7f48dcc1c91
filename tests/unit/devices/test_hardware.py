"""One place decides on device and precision, and says so in every key."""

import ast
import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from understudy import hardware
from understudy.compute import ON_CPU, Compute
from understudy.errors import InputError
from understudy.models.folders import model_folder, parameter_count
from understudy.models.loading import load_model
from understudy.models.passes import rows_of_adapters
from understudy.models.shape import ModelShape
from understudy.runs.checks.devices import gpu
from understudy.tasks import charging
from understudy.tasks.charging import digest_of, environment_of
from understudy.tasks.engine import machine
from understudy.tasks.engine.cache_key import task_key

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def fast(monkeypatch):
    """A machine that is, or is not, fast at bfloat16; the precision is to be found out."""

    def make(is_fast: bool, precision: str = "auto") -> Compute:
        monkeypatch.setattr(hardware, "has_fast_bfloat16", lambda device: is_fast)
        monkeypatch.setenv("UNDERSTUDY_PRECISION", precision)
        return hardware.chosen()

    return make


def test_auto_rounds_large_models_where_the_machine_is_fast_at_it(fast):
    assert fast(False) == Compute("cpu", "float32")
    found = fast(True)
    assert found == machine.compute()
    shipped = parameter_count(model_folder("tiny-llama"))
    assert found.precision_of(shipped) == "float32", "figures of the shipped models must not depend on the machine"
    assert found.precision_of(hardware.AUTO_FROM_PARAMETERS - 1) == "float32"
    assert found.precision_of(hardware.AUTO_FROM_PARAMETERS) == "bfloat16"


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_is_asked_for_counts_for_models_of_every_size(precision, is_fast, fast):
    assert fast(is_fast, precision).precision_of(1) == precision


def test_a_wrong_precision_is_refused(monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_PRECISION", "float16")
    with pytest.raises(InputError, match="UNDERSTUDY_PRECISION"):
        hardware.chosen()


@pytest.mark.parametrize(
    ("flags", "is_fast"), [("fpu avx512f avx512_bf16", True), ("fpu amx_bf16", True), ("fpu avx512f avx2", False)]
)
def test_the_processor_is_asked_for_its_instructions(flags, is_fast, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\nbugs : none\n")
    monkeypatch.setattr(hardware, "_CPU_INFO", tmp_path / "cpuinfo")
    assert hardware.has_fast_bfloat16.__wrapped__("cpu") is is_fast
    monkeypatch.setattr(hardware, "_CPU_INFO", tmp_path / "nothing")
    assert hardware.has_fast_bfloat16.__wrapped__("cpu") is False


@pytest.mark.parametrize(("majors", "is_fast"), [((8,), True), ((9, 9), True), ((9, 7), False), ((), False)])
def test_every_gpu_must_have_capability_8(majors, is_fast, monkeypatch):
    class Driver:
        """The few functions of NVML that are called, for devices of given capability."""

        def nvmlInit_v2(self):
            return 0

        def nvmlDeviceGetCount_v2(self, count):
            count._obj.value = len(majors)
            return 0

        def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
            handle._obj.value = index + 1
            return 0

        def nvmlDeviceGetCudaComputeCapability(self, handle, major, minor):
            major._obj.value = majors[handle.value - 1]
            minor._obj.value = handle.value
            return 0

        def nvmlDeviceGetName(self, handle, name, length):
            name.value = b"GPU"
            return 0

        def nvmlDeviceGetMemoryInfo(self, handle, memory):
            memory._obj.total = handle.value << 30
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    monkeypatch.setenv("UNDERSTUDY_DEVICE", "cuda")
    assert all(f"cuda {major}.{place} GPU" in hardware.kind() for place, major in enumerate(majors, start=1))
    assert hardware.has_fast_bfloat16.__wrapped__("cuda") is is_fast
    of_gpus = hardware.device_memory()
    monkeypatch.setenv("UNDERSTUDY_DEVICE", "cpu")
    assert of_gpus == (1 << 30 if majors else hardware.device_memory())


def test_without_a_driver_no_gpu_is_fast(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert hardware.has_fast_bfloat16.__wrapped__("cuda") is False


def test_the_kind_of_a_processor_is_what_it_rounds_by(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "_CPU_INFO", tmp_path / "cpuinfo")

    def kind_of(model: int, flags: str) -> str:
        one = f"vendor_id\t: A\ncpu family\t: 25\nmodel\t\t: {model}\ncpu MHz\t: 1\nflags\t: {flags}"
        (tmp_path / "cpuinfo").write_text(f"processor : 0\n{one}\n\nprocessor : 1\n{one}\n")
        return hardware.kind()

    wide = kind_of(17, "fpu avx2 avx512f")
    assert kind_of(17, "avx512f fpu avx2 other") == wide, "what does not compute does not count"
    assert len({wide, kind_of(17, "fpu avx2"), kind_of(18, "fpu avx2 avx512f")}) == 3
    kernels = ("MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "DNNL_DEFAULT_FPMATH_MODE", "OPENBLAS_CORETYPE")
    for name in (*kernels, "OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS"):
        with monkeypatch.context() as told:
            told.setenv(name, "1")
            assert kind_of(17, "fpu avx2 avx512f") != wide, name
    (tmp_path / "cpuinfo").unlink()
    assert hardware.kind()


ON_CUDA = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLASLT_WORKSPACE_SIZE",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_TUNABLEOP_ENABLED",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)


@pytest.mark.parametrize("name", ON_CUDA)
def test_what_cuda_is_told_belongs_to_its_kind_only(name, monkeypatch):
    monkeypatch.setattr(hardware, "_cuda_devices", lambda: [hardware._CudaDevice(9, 0, "GPU")])
    kinds = {}
    for device in ("cpu", "cuda"):
        monkeypatch.setenv("UNDERSTUDY_DEVICE", device)
        for value in (None, "1"):
            with monkeypatch.context() as told:
                told.delenv(name, raising=False) if value is None else told.setenv(name, value)
                kinds[device, value] = hardware.kind()
    assert kinds["cuda", "1"] != kinds["cuda", None]
    assert kinds["cpu", "1"] == kinds["cpu", None]


@pytest.mark.parametrize("said", [True, False])
def test_gpus_of_one_kind_have_as_many_rows_of_a_pass(said, monkeypatch):
    """Two GPUs may have one name and not the same memory, or say nothing of it: then the machine's limit counts."""
    monkeypatch.setenv("UNDERSTUDY_DEVICE", "cuda")
    shape, rows = ModelShape(30, 576, 576, 192, 1536, True, 49_152, 134_515_008), {}
    for mib in range(1 << 10, 1 << 16, 333):
        gpu = hardware._CudaDevice(8, 6, "GPU", mib << 20 if said else 0)
        monkeypatch.setattr(hardware, "_cuda_devices", lambda gpu=gpu: [gpu])
        monkeypatch.setattr(hardware, "memory_limit", lambda mib=mib: mib << 20)
        facts = {"on_cpu": 2, "device": "cuda", "shape": shape, "rank": 8, "tokens": 128, "expected": 256.0}
        rows.setdefault(hardware.kind(), set()).add(rows_of_adapters("auto", **facts))
    assert len(set.union(*rows.values())) > 3
    assert all(len(found) == 1 for found in rows.values())
    assert len(rows) == 63, "a GiB more is another kind, less is not"


def test_the_kind_is_the_same_before_and_after_tasks_set_the_workspace(monkeypatch):
    monkeypatch.setattr(hardware, "_cuda_devices", lambda: [hardware._CudaDevice(9, 0, "GPU")])
    monkeypatch.setenv("UNDERSTUDY_DEVICE", "cuda")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = hardware.kind()
    machine.prepare_torch(1, "cpu")
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"]
    assert hardware.kind() == before


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("NVIDIA_TF32_OVERRIDE", "1", "0"),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", "strict"),
        ("DNNL_DEFAULT_FPMATH_MODE", "ANY", "STRICT"),
    ],
)
def test_an_environment_that_shortens_products_is_refused_before_the_charge_and_by_tasks(
    name, wrong, right, monkeypatch
):
    for look in (gpu, lambda: machine.prepare_torch(1, "cpu")):
        monkeypatch.setenv(name, wrong)
        with pytest.raises(InputError, match=f"{name}={wrong}"):
            look()
        monkeypatch.setenv(name, right)
        look()


@pytest.mark.parametrize("asked", ["high", "medium"])
def test_tasks_multiply_whole_numbers_whatever_the_script_around_them_asked_for(asked):
    """On processors with AMX `medium` rounds float32 factors to bfloat16, by more than a clip norm is allowed."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(256, 256, generator=generator) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    try:
        machine.prepare_torch(1, "cpu")
        whole = left @ right
        torch.set_float32_matmul_precision(asked)
        machine.prepare_torch(1, "cpu")
        assert torch.get_float32_matmul_precision() == "highest"
        assert torch.equal(left @ right, whole)
    finally:
        torch.set_float32_matmul_precision(before)


def said_of_sums(**told: str) -> list[str]:
    """Sums, threads and kind, by a process whose environment has these variables of OpenMP and no other."""
    script = (
        "import torch\nfrom understudy.hardware import kind\ntorch.set_num_threads(2)\n"
        "numbers = torch.randn(16, 1 << 18, generator=torch.Generator().manual_seed(0))\n"
        "print(torch.stack([row.sum() for row in numbers]).tolist())\nprint(torch.get_num_threads())\nprint(kind())"
    )
    plain = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    run = [sys.executable, "-c", script]
    return subprocess.run(run, env=plain | told, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def said_where_nothing_is_told():
    return said_of_sums()


@pytest.mark.parametrize("told", [{"OMP_THREAD_LIMIT": "1"}, {"OMP_MAX_ACTIVE_LEVELS": "0"}], ids=str)
def test_what_makes_torch_cut_a_sum_for_fewer_threads_is_another_kind(told, said_where_nothing_is_told):
    """Torch says that it has two, and the last bits say one."""
    (sums, threads, kind), (others, same, other) = said_where_nothing_is_told, said_of_sums(**told)
    assert threads == same == "2"
    assert sums != others
    assert kind != other


def test_the_precision_is_in_the_cache_key_and_in_the_digest_of_the_environment(fast):
    found = set()
    for is_fast, precision in ((False, "auto"), (True, "auto"), (True, "bfloat16"), (False, "float32")):
        fast(is_fast, precision)
        found.add((task_key("name", test_a_wrong_precision_is_refused, {}), digest_of(environment_of("code"))))
    assert len(found) == 3, "float32 is float32, asked for or found out; the others differ"
    assert len({key for key, _ in found}) == len({digest for _, digest in found}) == 3


def test_the_number_of_threads_is_in_the_digest_of_the_environment(monkeypatch):
    """Sums are cut for as many."""
    found = set()
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("UNDERSTUDY_THREADS", threads)
        found.add(digest_of(environment_of("code")))
    assert len(found) == 3


def test_how_torch_is_set_up_is_in_the_digest_of_the_environment(monkeypatch):
    """Other kernels give a query other last bits, and so noise of its own: a version that asks for them is another."""
    before = digest_of(environment_of("code"))
    assert digest_of(environment_of("code")) == before

    def prepare_torch(threads: int, device: str) -> None:
        """As it may be in another version."""

    monkeypatch.setattr(charging, "prepare_torch", prepare_torch, raising=False)
    assert digest_of(environment_of("code")) != before


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2"])
def test_parameters_are_counted_in_the_files(name):
    stored = load_model(name).model
    assert parameter_count(model_folder(name)) == sum(p.numel() for p in stored.parameters())


def test_files_that_cannot_be_read_count_nothing(tmp_path):
    assert parameter_count(tmp_path) == 0
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 16)
    assert parameter_count(tmp_path) == 0


def test_no_other_module_decides():
    """A `Compute` with values of its own is made in one module; whatever else needs one is given it."""
    made, asked = set(), set()
    for folder in (ROOT / "src", ROOT / "tasks", ROOT / "flows"):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    if node.func.id == "Compute" and (node.args or node.keywords):
                        made.add(path.name)
                    if node.func.id in ("chosen_compute", "has_fast_bfloat16"):
                        asked.add(path.name)
    assert made == {"hardware.py"}
    assert asked == {"hardware.py", "validation.py"}
    assert Compute() == ON_CPU
