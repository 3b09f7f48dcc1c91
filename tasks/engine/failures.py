"""What becomes of an error inside a task: the user's and the passing ones go on, foreign ones are closed up.

The text of a foreign error, or of one that names a row, may tell of private rows, and Prefect stores the
text of every error. So it goes into a file under the private root, and Prefect is told the type, the place
in the code and the name of that file. Of an error about rows it is not told the place, which would say what
is wrong with them.
"""

import errno
import os
import traceback
import uuid
from asyncio import CancelledError
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import TypeVar

from prefect.exceptions import ExternalSignal, PrefectSignal

from understudy.durable import write_atomically
from understudy.errors import InputError, RowError, TaskFailed, UnderstudyError
from understudy.settings import settings

R = TypeVar("R")

# Errors of the file system that no waiting fixes.
_LASTING = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
# Of a text that was taken for a path, which the error then quotes.
_OF_NAMES = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
# They end a computation from outside and say nothing of it. Every other error that is no `Exception` is a failure:
# a panic in a library written in Rust, such as a tokenizer, quotes the text that it was given.
_SIGNALS = (KeyboardInterrupt, SystemExit, GeneratorExit, CancelledError, PrefectSignal, ExternalSignal)


def can_pass(error: BaseException) -> bool:
    """Whether the same call may succeed later: I/O and lost workers, not the user's errors."""
    if isinstance(error, OSError) and error.errno in _OF_NAMES:
        return False
    return isinstance(error, OSError | BrokenExecutor) and not isinstance(error, _LASTING)


def closed_up(name: str, body: Callable[[], R]) -> R:
    """Run `body`; a foreign error leaves as a `TaskFailed` that tells nothing of its text.

    An error that goes on has no error behind it any more, and no notes: Prefect would log their text too.

    Raises:
        UnderstudyError: as `body` raised it, unless it names a row.
        OSError: as `body` raised it, when it can pass.
        TaskFailed: for every other error.
    """
    try:
        return body()
    except BaseException as error:
        if _is_signal(error):
            _leave_behind(error)
            raise
        found = error
    # From here on outside the handler, so that no new error carries a reference to the old one.
    told = isinstance(found, UnderstudyError) and not isinstance(found, RowError)
    failure = found if told or can_pass(found) else _instead_of(found, name)
    failure.__cause__ = failure.__context__ = None
    vars(failure).pop("__notes__", None)
    raise failure


def _is_signal(error: BaseException) -> bool:
    """Whether an error says no more than that the computation is to end."""
    return isinstance(error, _SIGNALS) and isinstance(getattr(error, "code", None), int | None)


def _leave_behind(signal: BaseException) -> None:
    """Take off a signal the failure that was being handled when it came: Prefect logs that too, where it debugs.

    Signals behind it stay: of which one the process ends is told by them.
    """
    while isinstance(behind := signal.__cause__ or signal.__context__, _SIGNALS):
        signal = behind
    signal.__cause__ = signal.__context__ = None


def _instead_of(error: BaseException, name: str) -> TaskFailed:
    failure = TaskFailed(f"task {name!r} failed with {type(error).__name__}{_place(error)}; {_kept(error, name)}")
    failure.exit_code = error.exit_code if isinstance(error, UnderstudyError) else failure.exit_code
    return failure


def _kept(error: BaseException, name: str) -> str:
    """Where the text of an error is kept, in words; on a full disk nowhere."""
    try:
        return f"the error text, maybe private, is in {keep_text(error, name)}"
    except (OSError, InputError) as also:
        told = also.strerror if isinstance(also, OSError) else None
        why = told or "the folder for it cannot be written"
        return f"the error text, maybe private, could not be kept ({why}): make room or fix it, and run again"


def keep_text(error: BaseException, name: str) -> Path:
    """Keep the text of an error, with those behind it, where only this user reads it; gives the file.

    Raises:
        OSError: it cannot be written.
        InputError: the home cannot be used.
    """
    path = settings().private_root / "failures" / f"{name}-{uuid.uuid4().hex[:12]}.txt"
    write_atomically(path, "".join(traceback.format_exception(error)).encode(errors="backslashreplace"))
    return path


def _place(error: BaseException) -> str:
    """Where in the code an error was raised, in words; nothing of one about rows."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, RowError) or not frames:
        return ""
    return f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}"
