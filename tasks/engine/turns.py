"""Turns of the writers of one SQLite file, and what a writer knows as long as no other has had a turn.

Each leaves a name of its own in the lock file. Whoever finds that name again has missed nothing: a run that it made
has the children that it wrote itself, and need not be searched for others.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from understudy.durable import naming
from understudy.locks import locked


class Turns:
    """The turns of this process at one database."""

    def __init__(self, lock: Path | None) -> None:
        """Nothing is known yet.

        Args:
            lock: held during a turn; None for a store that others can write to at any time, of which nothing is known.
        """
        self._lock = lock
        self._forget()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn and have it; what another writer may have changed since the last one is forgotten."""
        if self._lock is None:
            yield
            return
        with locked(self._lock):
            # A process that forked has the memory of the one before it, and is another writer.
            if self._process != os.getpid() or self._lock.read_bytes() != self._name:
                self._forget()
                with naming(self._lock):
                    self._lock.write_bytes(self._name)
            yield

    def made(self, parent: str) -> None:
        """This turn makes a run, which has no children yet."""
        if self._lock is not None:
            self._children[parent] = set()

    def writes(self, parent: str, key: str) -> bool:
        """This turn writes a child of a run; whether there may be one with this key already.

        To be called before anything of it is written: what a failed attempt left is searched for.
        """
        keys = self._children.get(parent)
        if keys is None or key in keys:
            return True
        keys.add(key)
        return False

    def _forget(self) -> None:
        self._process = os.getpid()
        self._name = uuid.uuid4().hex.encode()
        self._children: dict[str, set[str]] = {}
