"""Processes that start from one which has imported what takes seconds, and has opened nothing.

Each is a process of its own, with locks, connections and a death of its own; only the imports are shared.
"""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "pytest",
        "understudy.models.checkpoints",
        "understudy.privacy.calibration",
        "understudy.privacy.dpsgd.training",
        "understudy.privacy.ledger.ledger",
        "understudy.privacy.mechanisms",
        "understudy.runs.removal",
    ]
)
_AS_HERE = "import os; os.environ.clear(); os.environ.update(environment)\n"


def start(code: str, **names: object) -> tuple[ForkServerProcess, Connection]:
    """Run `code` with this process's environment; it finds `pipe` and `names`. Gives the process and our end."""
    here, there = _CONTEXT.Pipe()
    known = {"__name__": "__main__", "pipe": there, "environment": dict(os.environ), **names}
    process = _CONTEXT.Process(target=exec, args=(_AS_HERE + code, known), daemon=True)
    process.start()
    there.close()
    return process, here


def called(function: Callable[..., object], *given: object) -> ForkServerProcess:
    """Call a function at the top of a module of tests, with this process's environment, and wait for its end."""
    process = _CONTEXT.Process(target=_call, args=(dict(os.environ), function, given), daemon=True)
    process.start()
    process.join()
    return process


def _call(environment: dict[str, str], function: Callable[..., object], given: tuple[object, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    function(*given)
