"""Commands of Python that start from one process which has imported what takes them seconds, and has opened nothing.

Each runs in a process of its own, with an environment, a session, locks, connections and a death of its own; only the
imports are shared. For commands whose first seconds no test is about: others are started as a user starts them.

`python -I -S fork_server.py PLACE -m MODULE ...` is such a command for whoever takes a command line, as a Prefect
worker does: the process behind it gets its streams, ends with its exit status, and is killed with it.
"""

import atexit
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

IMPORTED = (
    "prefect.engine",
    "understudy.flows.cli",
    "understudy.flows.conditional_generation",
    "understudy.flows.gradient_matching",
    "understudy.flows.knowledge_distillation",
    "understudy.flows.preference_optimization",
    "mlflow.store.tracking.sqlalchemy_store",
    "transformers.models.gpt2.modeling_gpt2",
    "peft",
    "understudy.models.loading",
    # What tasks import once they compute: two seconds of each process of a flow.
    "datasets",
    "matplotlib.figure",
    "numba",
    "sentence_transformers",
    "sklearn.linear_model",
    "trl.trainer.dpo_trainer",
    "understudy.evaluation.measure",
    "understudy.methods.conditional_generation.train",
    "understudy.methods.knowledge_distillation.distil",
    "understudy.methods.preference_optimization.evaluation",
    "understudy.methods.preference_optimization.rounds",
    # Not Prefect's server: how often its services look is read from the environment when they are imported.
    "prefect.cli",
)
_LENGTH = 8


class Forked:
    """A process that was started from the server; it is killed when nobody holds this any longer.

    Attributes:
        pid: of the process, and of the group of whatever it starts.
        returncode: its exit status, negative for a signal, once somebody has asked for it.
    """

    def __init__(
        self, place: str, words: Iterable[str], *, environment: Mapping[str, str], folder: str, streams: Iterable[int]
    ) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.connect(place)
        asked = {"words": list(words), "environment": dict(environment), "folder": folder}
        content = json.dumps(asked).encode()
        socket.send_fds(self._connection, [len(content).to_bytes(_LENGTH, "big")], list(streams))
        self._connection.sendall(content)
        self.pid = int.from_bytes(_read(self._connection, _LENGTH), "big")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, negative for a signal, if the process has ended."""
        # Not `select`, which takes no number beyond 1023: the process of a long session has more files open.
        waiting = select.poll()
        if self.returncode is None:
            waiting.register(self._connection, select.POLLIN)
            if waiting.poll(0):
                self.wait()
        return self.returncode

    def wait(self) -> int:
        """The exit status, negative for a signal, once the process has ended."""
        if self.returncode is None:
            found = _read(self._connection, _LENGTH)
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(found, "big"))
            self._connection.close()
        return self.returncode

    def kill(self) -> None:
        """With all that it has started, as when a machine is lost."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()


@functools.cache
def place() -> str:
    """Where a server listens that stays until this process ends; all processes of `make test` have one together."""
    folder = os.environ.get("TESTS_SHARED")
    if folder is None:
        own = tempfile.TemporaryDirectory(prefix="forked-")
        atexit.register(own.cleanup)
        folder = own.name
    found = str(Path(folder) / "forked")
    with open(f"{found}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            held = _held(found)
        except (OSError, EOFError):
            Path(found).unlink(missing_ok=True)
            _start_server(found)
            held = _held(found)
    atexit.register(held.close)
    return found


def _held(where: str) -> socket.socket:
    """A connection that keeps the server; refused or ended at once where there is none, or none any longer."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.connect(where)
        held.sendall(bytes(_LENGTH))
        _read(held, 1)
    except (OSError, EOFError):
        held.close()
        raise
    return held


def _start_server(where: str) -> None:
    process = subprocess.Popen(
        [sys.executable, __file__, where], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    with process.stdout:
        assert process.stdout.readline() == b"listening\n"
    # It may outlive this process, which therefore does not wait for it; without a status Popen would warn of that.
    process.returncode = 0


def start(words: Iterable[str], *, environment: Mapping[str, str], streams: Iterable[int], folder: str = "") -> Forked:
    """Start `python WORDS` in a folder, else in that of this process, with three streams."""
    return Forked(place(), words, environment=environment, folder=folder or os.getcwd(), streams=streams)


def command(*words: str) -> str:
    """A command line that starts `python WORDS` from the server."""
    return " ".join([sys.executable, "-I", "-S", __file__, place(), *words])


def _read(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        more = connection.recv(size - len(content))
        if not more:
            raise EOFError("the server of forked processes is gone")
        content += more
    return content


def _serve(where: str) -> tuple[dict, list[int]]:
    """Fork for whoever asks, until nobody keeps it any longer; returns in each child, with what was asked."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    keepers: set[socket.socket] = set()
    # A child -> whoever asked for it.
    children: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as ready, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(where)
        listener.listen()
        os.write(1, b"listening\n")
        os.dup2(0, 1)
        ready.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj in keepers:
                    keepers.remove(key.fileobj)
                    ready.unregister(key.fileobj)
                    key.fileobj.close()
                    if not keepers:
                        _end_all(children)
                elif key.fileobj is not listener:
                    _end(key, ready, children)
                elif (begun := _begun(listener, ready, keepers, children)) is not None:
                    return begun


def _begun(
    listener: socket.socket,
    ready: selectors.BaseSelector,
    keepers: set[socket.socket],
    children: dict[int, socket.socket],
) -> tuple[dict, list[int]] | None:
    """Fork for whoever has connected; in the child what was asked, in the server None."""
    asker, _ = listener.accept()
    asked = _asked(asker)
    if asked is None:
        keepers.add(asker)
        ready.register(asker, selectors.EVENT_READ)
        asker.sendall(b"\0")
        return None
    child = os.fork()
    if child == 0:
        _let_go(ready, asker)
        return asked
    for stream in asked[1]:
        os.close(stream)
    asker.sendall(child.to_bytes(_LENGTH, "big"))
    children[child] = asker
    ready.register(asker, selectors.EVENT_READ, child)
    ready.register(os.pidfd_open(child), selectors.EVENT_READ, child)
    return None


def _end_all(children: Iterable[int]) -> None:
    """The last process that kept the server has ended, so the server ends, and all that it started."""
    for child in children:
        os.kill(child, signal.SIGKILL)
    sys.exit(0)


def _asked(connection: socket.socket) -> tuple[dict, list[int]] | None:
    """What to run, and its three streams; None where somebody only wants the server to stay."""
    length, streams, _, _ = socket.recv_fds(connection, _LENGTH, 3)
    size = int.from_bytes(length, "big")
    return (json.loads(_read(connection, size)), streams) if size else None


def _end(key: selectors.SelectorKey, ready: selectors.BaseSelector, children: dict[int, socket.socket]) -> None:
    """Whoever asked for a child is gone, so it is killed; or it has ended, which its asker is told."""
    ready.unregister(key.fileobj)
    if isinstance(key.fileobj, socket.socket):
        if key.data in children:
            os.kill(key.data, signal.SIGKILL)
        else:
            key.fileobj.close()
        return
    os.close(key.fd)
    _, status = os.waitpid(key.data, 0)
    asker = children.pop(key.data)
    with suppress(OSError):
        asker.sendall(status.to_bytes(_LENGTH, "big"))


def _let_go(ready: selectors.BaseSelector, asker: socket.socket) -> None:
    """In a child: close what belongs to the server."""
    asker.close()
    for key in list(ready.get_map().values()):
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
        elif key.data is not None:
            os.close(key.fd)


def _be_another(asked: dict, streams: list[int]) -> None:
    """Begin a session, and read anew what was read from the environment when it was imported."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    before = _of_prefect(os.environ)
    os.environ.clear()
    os.environ.update(asked["environment"])
    places = asked["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [place for place in places if place and place not in sys.path[1:]]
    os.chdir(asked["folder"])
    tempfile.tempdir = None
    if asked["words"][:2] == ["-m", "understudy.flows.cli"]:
        # It does so before it imports Prefect.
        from understudy.settings import prepare_environment

        prepare_environment()
    if _of_prefect(os.environ) != before:
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()


def _of_prefect(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(("PREFECT_", "HOME"))}


def _run(words: list[str]) -> None:
    """As `python WORDS`."""
    if words[0] == "-m":
        sys.path[0], sys.argv = os.getcwd(), words[1:]
        if not hasattr(sys.modules.get(words[1]), "__path__"):
            # Run anew; of a package `__main__` is run.
            sys.modules.pop(words[1], None)
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = str(Path(words[0]).parent), words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        forked = Forked(sys.argv[1], sys.argv[2:], environment=os.environ, folder=os.getcwd(), streams=range(3))
        sys.exit(forked.wait() % 256)
    what, its_streams = _serve(sys.argv[1])
    _be_another(what, its_streams)
    _run(what["words"])
