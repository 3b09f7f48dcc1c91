"""Audits and comparisons take turns in a folder: what one reads of its runs there must not be another's."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from pathlib import Path

from understudy.locks import holder_of, locked_one
from understudy.settings import private_directory, settings
from understudy.tasks.engine.progress import say_waiting


def alone_in(out: str) -> AbstractContextManager[int]:
    """Within it no other audit or comparison of this home works in the folder; one that does is waited for."""
    name = hashlib.sha256(str(Path(out).expanduser().absolute()).encode()).hexdigest()[:32]
    lock = private_directory(settings().locks_root / "folders") / f"{name}.lock"
    return locked_one((lock,), say_waiting(lambda: f"for process {holder_of(lock) or 'unknown'}, which works in {out}"))
