"""Code and functions that run in processes of their own, which start from `fork_server`, with a pipe to this one.

Each is a process of its own, with locks, connections and a death of its own; only the imports are shared.
"""

import os
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fork_server


def start(code: str, **names: object) -> tuple[fork_server.Forked, Connection]:
    """Run `code` with this process's environment; it finds `pipe` and `names`. Gives the process and our end."""
    return _started(exec, code, {"__name__": "__main__", **names})


def called(function: Callable[..., object], *given: object) -> int:
    """Call a function at the top of a module of tests, with this process's environment; the exit status."""
    process, _ = _started(function, *given)
    return process.wait()


def _started(function: Callable[..., object], *given: object) -> tuple[fork_server.Forked, Connection]:
    here, there = Pipe()
    with there:
        # pytest names a module of tests by its place from the folder above them, which `python -m pytest` alone has.
        places = [*(place for place in sys.path if place), str(Path(__file__).resolve().parents[1])]
        environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}
        process = fork_server.start([__file__], environment=environment, streams=[there.fileno(), 1, 2])
    here.send((function, given, os.environ.get("PYTHONPATH")))
    return process, here


def _main() -> None:
    # Only the pipe that the code holds keeps the other end waiting.
    pipe = Connection(os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    function: Callable[..., object]
    given: tuple[Any, ...]
    function, given, places = pipe.recv()
    if places is not None:
        os.environ["PYTHONPATH"] = places
    if function is exec:
        given[1]["pipe"] = pipe
    function(*given)


if __name__ == "__main__":
    status = 1
    try:
        _main()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # What was printed, wherever the code prints now.
        sys.__stdout__.flush()
        sys.__stderr__.flush()
        # What was imported is not taken down: that takes longer than most tests.
        os._exit(status)
