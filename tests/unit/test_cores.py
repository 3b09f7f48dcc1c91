"""Threads: as many as the process may use, and they sleep while they wait."""

import os
import subprocess
import sys

import pytest

from understudy.cores import available_cores, cpu_quota, memory_limit


@pytest.fixture
def control_group(tmp_path):
    """Write a process's control groups, and the quotas of some folders."""

    def write(groups, files):
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "groups").write_text(groups)
        return cpu_quota(tmp_path / "cgroup", tmp_path / "groups")

    return write


def test_the_least_quota_on_the_way_up_counts(control_group):
    files = {"cpu.max": "max 100000\n", "pod/cpu.max": "150000 100000\n", "pod/app/cpu.max": "800000 100000\n"}
    assert control_group("0::/pod/app\n", files) == 1.5


def test_no_quota_is_no_limit(control_group, tmp_path):
    assert control_group("0::/\n", {"cpu.max": "max 100000\n"}) is None
    assert cpu_quota(tmp_path / "nowhere", tmp_path / "nothing") is None


def test_quotas_of_version_1_are_read(control_group):
    files = {"cpu/job/cpu.cfs_quota_us": "300000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}
    assert control_group("4:cpu,cpuacct:/job\n5:memory:/job\n", files) == 3.0
    files = {"cpu/job/cpu.cfs_quota_us": "-1\n", "cpu/job/cpu.cfs_period_us": "100000\n"}
    assert control_group("4:cpu,cpuacct:/job\n", files) is None


@pytest.mark.parametrize(("quota", "cores"), [(None, 4), (2.9, 2), (0.4, 1), (64.0, 4)])
def test_cores_are_those_of_the_affinity_within_the_quota(monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr("understudy.cores.cpu_quota", lambda: quota)
    assert available_cores() == cores
    assert available_cores(most=1) == 1


@pytest.mark.parametrize(
    ("name", "own", "expected"),
    [
        ("OMP_WAIT_POLICY", None, "PASSIVE"),
        ("OMP_WAIT_POLICY", "ACTIVE", "ACTIVE"),
        ("OPENBLAS_THREAD_TIMEOUT", None, "4"),
        ("OPENBLAS_THREAD_TIMEOUT", "20", "20"),
        ("OMP_DYNAMIC", "TRUE", "FALSE"),
    ],
)
def test_a_worker_that_imports_a_flow_sets_how_threads_wait_before_torch_and_numpy(name, own, expected):
    script = (
        "import os, sys\n"
        "import understudy.flows\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
        f"print(os.environ[{name!r}])"
    )
    environment = {other: value for other, value in os.environ.items() if other != name}
    environment |= {name: own} if own else {}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == expected


def test_memory_is_the_machines_within_what_its_control_groups_allow(tmp_path):
    whole = memory_limit(tmp_path / "nowhere", tmp_path / "nothing")
    assert whole == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for groups, name in (("0::/pod/app\n", "pod/memory.max"), ("5:memory:/job\n", "memory/job/memory.limit_in_bytes")):
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups").write_text(groups)
        path.write_text("max\n")
        assert memory_limit(tmp_path / "cgroup", tmp_path / "groups") == whole
        path.write_text("123456789\n")
        assert memory_limit(tmp_path / "cgroup", tmp_path / "groups") == 123456789


def test_resident_memory_grows_with_what_is_held():
    script = (
        "from understudy.cores import resident_memory\n"
        "before = resident_memory()\n"
        "held = bytearray(b'x' * (64 << 20))\n"
        "print(resident_memory() - before)"
    )
    # In a process of its own: one that has freed as much before would not grow.
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 32 << 20 < int(found.stdout) < 160 << 20
