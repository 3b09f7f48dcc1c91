"""The processor cores and the memory that this process may use, and how threads wait for each other."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

# Threads of OpenMP spin while they wait, for long where the cores are busy: two threads then cost many times the
# processor time of one. numpy's threads, those of OpenBLAS, spin for some 30 ms after each product, or for two to the
# power of this number in cycles, of which 4 is the least. Read once, when torch and numpy are imported.
THREADS_WAIT = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}
# A sum is cut for as many threads as there are. OpenMP could have fewer where the machine is busy, and a run that was
# killed and resumed would round its queries otherwise.
_THREADS_STAY = {"OMP_DYNAMIC": "FALSE"}

# Small products gain nothing from more threads, and another machine repeats the bytes only with as many.
_MOST = 8


def available_cores(*, most: int = _MOST) -> int:
    """Cores by the process's affinity and its control group's quota, at least one.

    Args:
        most: upper limit.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    if quota is not None:
        cores = min(cores, max(1, math.floor(quota)))
    return min(cores, most)


def let_threads_sleep() -> None:
    """Have the threads of torch and numpy sleep while they wait, unless the user has set how; call it before both.

    Their number stays what it is, whatever the user has set.
    """
    for name, value in THREADS_WAIT.items():
        os.environ.setdefault(name, value)
    os.environ.update(_THREADS_STAY)


def cpu_quota(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> float | None:
    """Processor time per second that the control groups above this process allow, in cores; None without a limit.

    Args:
        root: where control groups are mounted, version 2 or the `cpu` hierarchy of version 1.
        groups: the list of the process's control groups.
    """
    found = [
        quota
        for folder in _folders(root, groups)
        if (quota := _quota_v2(folder / "cpu.max") or _quota_v1(folder)) is not None
    ]
    return min(found, default=None)


def memory_limit(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes of memory that the machine has and the control groups above this process allow; never what is free now.

    Args:
        root: where control groups are mounted, version 2 or the `memory` hierarchy of version 1.
        groups: the list of the process's control groups.
    """
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder in _folders(root, groups, kind="memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                found.append(int((folder / name).read_text(encoding="ascii")))
            except (OSError, ValueError):  # not there, or "max"
                continue
    return min(found)


def resident_memory() -> int:
    """Bytes of this process that are in memory now; its peak where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def _folders(root: Path, groups: Path, *, kind: str = "cpu") -> list[Path]:
    """Every control group that holds this process, from its own up to the mounted root."""
    try:
        lines = groups.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and kind not in controllers.split(","):
            continue
        top = root if not controllers else root / kind
        own = Path(path.lstrip("/"))
        found += [top / part for part in (own, *own.parents) if ".." not in part.parts]
    return found


def _quota_v2(path: Path) -> float | None:
    try:
        quota, period = path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    try:
        quota, period = (
            int((folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii")) for name in ("quota", "period")
        )
    except (OSError, ValueError):
        return None
    return None if quota <= 0 else quota / period
