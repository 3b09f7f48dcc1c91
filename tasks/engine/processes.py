"""The body of a task in a process of its own, so that mapped tasks that use torch compute side by side.

The process of the run keeps everything but the computing: Prefect, the lease, the cache, tracking and the progress that
is shown. It starts this module as a script, tells it on stdin which task computes what, and reads progress and the
answer from its stdout, a JSON value on each line. Arguments and results are what a task's are anyway: references,
public values and the charge receipt. A process whose parent is gone ends at once.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from prefect.serializers import JSONSerializer

from understudy import errors
from understudy.errors import TaskFailed, UnderstudyError
from understudy.settings import settings
from understudy.tasks.engine.body import Body, running
from understudy.tasks.engine.failures import closed_up
from understudy.tasks.engine.machine import prepared

_SERIALIZER: JSONSerializer[Any] = JSONSerializer()


def side_by_side() -> bool:
    """Whether tasks may compute in processes of their own: on the CPU, where the settings allow two or more."""
    now = settings()
    return now.processes > 1 and now.device_type == "cpu"


def compute_apart(name: str, function: Callable[..., Any], arguments: Mapping[str, Any], body: Body) -> Any:
    """What a task's function gives, computed in a process of its own; its bytes are those of this process.

    At most `UNDERSTUDY_PROCESSES` of them compute at a time, the others wait.

    Args:
        name: of the task.
        function: at the top of its module, under its own name as a task.
        arguments: by name.
        body: what the function may use; progress is told through it and metrics are added to it.

    Raises:
        UnderstudyError: as the function raised it.
        OSError: likewise.
        BrokenProcessPool: the process ended without an answer, as when the system killed it.
    """
    order = {
        "name": name,
        "place": f"{function.__module__}:{function.__qualname__}",
        "directory": str(body.directory()),
        "arguments": _SERIALIZER.dumps(dict(arguments)).decode(),
    }
    answer: dict[str, Any] | None = None
    with _SLOTS.one(settings().processes), _process() as (orders, answers):
        orders.write(json.dumps(order) + "\n")
        orders.flush()
        for line in answers:
            said = json.loads(line)
            if "step" in said:
                body.progress(said["step"], said["total"])
            else:
                answer = said
    if answer is None:
        raise BrokenProcessPool(f"task {name!r}: its process ended without an answer; was it killed?")
    if "failure" in answer:
        raise _error(answer)
    body.metrics.update(answer["metrics"])
    return _SERIALIZER.loads(answer["result"].encode())


class _Slots:
    """How many processes compute at a time; the settings are asked anew by each."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = 0

    @contextmanager
    def one(self, most: int) -> Iterator[None]:
        """Hold one of `most`."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken < most)
            self._taken += 1
        try:
            yield
        finally:
            with self._changed:
                self._taken -= 1
                self._changed.notify_all()


_SLOTS = _Slots()


@contextmanager
def _process() -> Iterator[tuple[IO[str], IO[str]]]:
    """A fresh process with the import path of this one: its stdin and its stdout; it is gone afterwards."""
    # An empty part is the working directory, as of a notebook. Where this process does not import from there, that one
    # must not either: a file of the name of a library, among somebody's data, would be run beside private rows.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdin, process.stdout
    finally:
        # After its answer it has nothing left to do; before it, nobody waits for it any more.
        process.kill()
        process.wait()
        process.stdout.close()
        _close(process.stdin)


def _close(pipe: IO[str]) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        return


def _error(answer: Mapping[str, Any]) -> Exception:
    """The error that the other process told of."""
    kind = getattr(errors, answer["failure"], None)
    if isinstance(kind, type) and issubclass(kind, UnderstudyError):
        found = kind(answer["text"])
        found.exit_code = answer["exit_code"]
        return found
    return OSError(answer["text"])


def main() -> None:
    """Compute one task for the process that started this one."""
    # Whatever a library prints must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()

    def say(**words: Any) -> None:
        answers.write(json.dumps(words) + "\n")
        answers.flush()

    body = Body(lambda: Path(order["directory"]), lambda step, total: say(step=step, total=total))
    try:
        result = closed_up(order["name"], lambda: _answer(order, body))
    except UnderstudyError as error:
        say(failure=type(error).__name__, text=str(error), exit_code=error.exit_code)
    except OSError as error:
        say(failure="OSError", text=str(error))
    except Exception as error:
        say(failure=TaskFailed.__name__, text=f"task {order['name']!r}: {type(error).__name__}", exit_code=1)
    else:
        say(result=_SERIALIZER.dumps(result).decode(), metrics=body.metrics)


def _answer(order: Mapping[str, Any], body: Body) -> Any:
    module, _, name = order["place"].partition(":")
    function = inspect.unwrap(getattr(import_module(module), name).fn)
    arguments = _SERIALIZER.loads(order["arguments"].encode())
    with running(body), prepared(function, inside=False):
        return function(**arguments)


def _end_with_parent() -> None:
    """The parent's death closes stdin; work that nobody holds a lease for must stop."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
