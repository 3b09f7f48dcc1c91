"""One worker per key: a lock that dies with its holder, and a lease that shows who holds it.

A long task keeps its checkpoints in a directory named by its key and by the owner of the lease. Whoever
takes the lease over renames that directory, so a zombie that wakes up writes into a path that is gone: it
and its successor never share a checkpoint. On one machine `flock` decides, and a killed holder frees it at
once. On another machine that sees the same files, the heartbeat decides: a lease whose heartbeat stood
still for `stale_after_s` of the waiter's own clock is free.
"""

import functools
import json
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from understudy.durable import naming
from understudy.errors import LeaseLost, UnderstudyError
from understudy.locks import try_lock
from understudy.settings import private_directory

_LOCK = "lock"
_LEASE = "lease.json"
_RESULT = "result.json"


@dataclass
class Lease:
    """The right to work on one key, until `release` or `finish`."""

    place: Path
    owner: str
    waited: bool
    _descriptor: int
    _sources: tuple[str, ...] = ()
    _beats: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _lost: threading.Event = field(default_factory=threading.Event)
    _heart: threading.Thread | None = None

    def directory(self) -> Path:
        """The checkpoint directory, with what an earlier holder left in it.

        Raises:
            LeaseLost: when another worker has taken over.
        """
        self.check()
        return private_directory(self.place / self.owner)

    def check(self) -> None:
        """Raise `LeaseLost` when another worker has taken over."""
        if self._lost.is_set():
            raise LeaseLost(f"another worker has taken over task {self.place.name[:12]}; this one stops")

    def save_result(self, content: bytes) -> None:
        """Keep a finished result until it is committed, so that a crash in between does not lose it."""
        _write(self.place / _RESULT, content)

    def load_result(self) -> bytes | None:
        """The finished result of an earlier holder, or None."""
        path = self.place / _RESULT
        return path.read_bytes() if path.exists() else None

    def release(self) -> None:
        """Let the next worker in; the checkpoints stay.

        Where the release cannot be shown, say on a full disk, another machine waits for the heartbeat to stand still.
        """
        try:
            self._end()
            if not self._lost.is_set():
                with suppress(OSError):
                    self._show(released=True)
        finally:
            os.close(self._descriptor)

    def finish(self) -> None:
        """Remove the checkpoints and let go."""
        try:
            self._end()
            if not self._lost.is_set():
                shutil.rmtree(self.place, ignore_errors=True)
        finally:
            os.close(self._descriptor)

    def start_heart(self, beat_s: float) -> None:
        """Show every `beat_s` seconds that the holder lives."""
        self._heart = threading.Thread(target=self._beat, args=(beat_s,), name="lease-heart", daemon=True)
        self._heart.start()

    def _beat(self, beat_s: float) -> None:
        while not self._stop.wait(beat_s):
            # A disk that is full or away for a moment ends no heart: the next beat tells again.
            with suppress(OSError):
                shown = _read_lease(self.place)
                if shown is None or shown["owner"] != self.owner:
                    self._lost.set()
                    return
                self._beats += 1
                self._show(released=False)

    def _end(self) -> None:
        self._stop.set()
        if self._heart is not None:
            self._heart.join()

    def _show(self, *, released: bool, previous: str | None = None) -> None:
        shown = {
            "owner": self.owner,
            "previous": previous,
            "machine": machine(),
            "pid": os.getpid(),
            "beats": self._beats,
            "released": released,
            "sources": list(self._sources),
        }
        _write(self.place / _LEASE, json.dumps(shown).encode())


def acquire(
    root: Path,
    key: str,
    *,
    sources: Iterable[str] = (),
    timeout_s: float | None = None,
    stale_after_s: float = 60.0,
    beat_s: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
    waiting: Callable[[float], None] = lambda _: None,
) -> Lease:
    """Take the lease on `key`, waiting while another worker holds it.

    Args:
        root: the private directory of all checkpoints.
        key: the task's key.
        sources: names of the private sources whose rows the checkpoints may hold, for `purge`.
        timeout_s: how long to wait; None waits for ever.
        stale_after_s: how long a heartbeat of another machine may stand still.
        beat_s: seconds between heartbeats.
        clock: the waiter's clock.
        waiting: called with the seconds waited for so far.

    Raises:
        UnderstudyError: when the wait is over; the message names the holder.
    """
    place = root / key
    began = clock()
    seen: tuple[Any, float] = (None, began)
    waited = False
    while True:
        private_directory(place)
        descriptor = _try(place / _LOCK)
        if descriptor is not None:
            # Whatever goes wrong before the lease is taken frees the lock: else this process waits for itself.
            with ExitStack() as unless_taken:
                unless_taken.callback(os.close, descriptor)
                shown = _read_lease(place)
                foreign = shown is not None and not shown["released"] and shown["machine"] != machine()
                mark = (shown["owner"], shown["beats"]) if shown else None
                if mark != seen[0]:
                    seen = (mark, clock())
                if not foreign or clock() - seen[1] >= stale_after_s:
                    lease = _take(place, descriptor, shown, tuple(sources), waited=waited, beat_s=beat_s)
                    unless_taken.pop_all()
                    return lease
        if timeout_s is not None and clock() - began >= timeout_s:
            raise UnderstudyError(f"task {key[:12]} is held by {holder(root, key)}; wait for it or end it")
        waited = True
        waiting(clock() - began)
        time.sleep(min(0.1, beat_s))


def holder(root: Path, key: str) -> str:
    """Who showed last that they hold the lease on `key`, in words."""
    shown = _read_lease(root / key)
    if shown is None:
        return "another process"
    return f"process {shown['pid']}" + ("" if shown["machine"] == machine() else f" of machine {shown['machine']}")


def forget(root: Path, key: str) -> None:
    """Remove the checkpoints of a task whose result is committed, unless somebody works on it."""
    descriptor = _try(root / key / _LOCK) if (root / key).is_dir() else None
    if descriptor is not None:
        shutil.rmtree(root / key, ignore_errors=True)
        os.close(descriptor)


def kept_results(root: Path) -> Iterator[Path]:
    """Finished results that were not committed yet; they may be gone by the time that they are read."""
    return root.glob(f"*/{_RESULT}")


def sweep(root: Path, *, source: str | None = None, older_than_s: float = 0.0) -> list[str]:
    """Remove checkpoints that nobody works on: all of them, or those that may hold rows of `source`.

    Args:
        root: the private directory of all checkpoints.
        source: only checkpoints of tasks that were handed artifacts of this source.
        older_than_s: keep those that were worked on more recently.

    Returns:
        The keys removed.
    """
    removed = []
    for place in sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []:
        shown = _read_lease(place)
        if source is not None and shown is not None and source not in shown["sources"]:
            continue
        try:
            age = time.time() - place.stat().st_mtime
        except FileNotFoundError:
            continue
        if age < older_than_s:
            continue
        forget(root, place.name)
        if not place.exists():
            removed.append(place.name)
    return removed


@functools.cache
def machine() -> str:
    """Name of the running kernel: within it `flock` is exact, also between containers."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else socket.gethostname()


def _take(
    place: Path,
    descriptor: int,
    shown: dict[str, Any] | None,
    sources: tuple[str, ...],
    *,
    waited: bool,
    beat_s: float,
) -> Lease:
    lease = Lease(place, uuid.uuid4().hex, waited, descriptor, sources)
    # A crash between the two steps below leaves the directory under the name `previous`.
    former = [name for name in (shown["owner"], shown["previous"]) if name] if shown else []
    former = [name for name in former if (place / name).is_dir()][:1]
    lease._show(released=False, previous=former[0] if former else None)
    if former:
        (place / former[0]).rename(place / lease.owner)
    lease.start_heart(beat_s)
    return lease


def _try(path: Path) -> int | None:
    try:
        return try_lock(path)
    except FileNotFoundError:
        # The last holder finished and removed the directory.
        return None


def _read_lease(place: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads((place / _LEASE).read_bytes()))
    except FileNotFoundError:
        return None
    except ValueError:
        # Written by something else: free once it has stood still.
        return {
            "owner": None,
            "previous": None,
            "machine": "?",
            "pid": "?",
            "beats": 0,
            "released": False,
            "sources": [],
        }


def _write(path: Path, content: bytes) -> None:
    """Write a temporary file and rename it, so that a reader sees the old content or the new."""
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with naming(path), os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
