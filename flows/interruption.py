"""SIGTERM and SIGHUP end a command as Ctrl-C does: it unwinds, and what it has started ends with it.

By default they end a process at once. A temporary Prefect server, which Prefect ends when the interpreter exits, would
then run for ever and hold the home's database.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A signal asked the process to end.

    Attributes:
        exit_code: what a shell reports of a process that the signal has ended.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Within it, the first SIGTERM or SIGHUP raises `Interrupted`.

    A signal that is ignored, as under `nohup`, or that has a handler, stays so. After the block the signals end the
    process at once again; but where one of them has come, the process is on its way out, and further ones are passed
    over, so that it gets there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner, came = os.getpid(), 0

    def unwind(number: int, _frame: FrameType | None) -> None:
        nonlocal came
        if os.getpid() != owner:  # a fork of this process, which is to end as it would have
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not came:
            came = number
            raise Interrupted(number)

    taken = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, unwind)
    try:
        yield
    except BaseException as error:
        # Prefect's own handler of SIGTERM raises at each, also amid the unwinding.
        ended_by = came or _amid_unwinding_from(error)
        if not ended_by or isinstance(error, Interrupted):
            raise
        raise Interrupted(ended_by) from None
    finally:
        if not came:
            for number in taken:
                signal.signal(number, signal.SIG_DFL)


def _amid_unwinding_from(error: BaseException | None) -> int:
    """The signal amid whose unwinding an error arose, where Prefect had it or it was Ctrl-C; 0 for any other error.

    A signal to the whole process group, as a terminal, a shell's `timeout` or a service manager sends it, ends the
    temporary server as well. Then Prefect, which tells the server of the signal first, fails over that instead of
    passing the signal on.
    """
    prefects = getattr(sys.modules.get("prefect.exceptions"), "TerminationSignal", ())
    passed: list[BaseException] = []
    while error is not None and error not in passed:
        if isinstance(error, prefects):
            return int(error.signal)
        if passed and isinstance(error, KeyboardInterrupt):
            return signal.SIGINT
        passed.append(error)
        error = error.__cause__ or error.__context__
    return 0
