"""Which of the runs that MLflow shows as RUNNING are of processes that live.

MLflow hears nothing of a process that is killed. So each attempt at a run holds a lock on a file of its own, which the
kernel frees with the process; the next start in the same home ends the runs whose locks are free.
"""

import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from understudy.durable import naming
from understudy.errors import TrackingFailed
from understudy.locks import locked_folder, try_lock
from understudy.settings import private_directory
from understudy.tasks.engine.leases import machine


@dataclass(frozen=True)
class RunLock:
    """The sign that one attempt at a run computes."""

    _path: Path
    _descriptor: int

    def release(self, *, ended: bool) -> None:
        """Let go.

        Args:
            ended: whether MLflow was told of the end; else the next start tells it.
        """
        if ended:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def hold(folder: Path, run_key: str, end_dead: Callable[[set[str]], None]) -> RunLock:
    """Show that an attempt at a run begins, and end what dead attempts at other runs left behind.

    Args:
        folder: of the locks of one tracking store in this home.
        run_key: of the run, a part of a file's name.
        end_dead: told the keys of runs that no process has any more; where the store is away, the next start tries.
    """
    # Under the lock on the folder, so that no run begins between the look at it and its end.
    with locked_folder(private_directory(folder)):
        _end_dead(folder, run_key, end_dead)
        path = folder / f"{run_key}.{uuid.uuid4().hex}"
        descriptor = try_lock(path)
        assert descriptor is not None, "nobody else knows the name"
        with naming(path):
            os.write(descriptor, "\n".join(_here()).encode())
    return RunLock(path, descriptor)


def _end_dead(folder: Path, run_key: str, end_dead: Callable[[set[str]], None]) -> None:
    with ExitStack() as looked_at:
        free = []
        for path in sorted(folder.iterdir()):
            descriptor = try_lock(path)
            if descriptor is not None:
                looked_at.callback(os.close, descriptor)
                free.append(path)
        dead = [path for path in free if _was_here(path)]
        # Another attempt at the same run may live, and the one that begins sets its run RUNNING.
        living = {run_key, *_keys(path for path in folder.iterdir() if path not in dead)}
        if keys := set(_keys(dead)) - living:
            try:
                end_dead(keys)
            except TrackingFailed:
                return
        for path in dead:
            path.unlink()


def _keys(paths: Iterable[Path]) -> Iterator[str]:
    return (path.name.rpartition(".")[0] for path in paths)


def _here() -> tuple[str, str]:
    return machine(), socket.gethostname()


def _was_here(path: Path) -> bool:
    """Whether the process was one of this kernel, or of this machine before it started anew.

    Elsewhere a free lock says nothing, for not every file system that machines share knows of locks.
    """
    told = path.read_text().split("\n")
    return told == [""] or any(one == other for one, other in zip(told, _here(), strict=False))
