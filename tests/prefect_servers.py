"""Real Prefect servers that tests start, each in a process of its own on a free port of this machine."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SERVER = ("-m", "uvicorn", "--app-dir", str(Path(__file__).parent), "--factory", "batched_server:create_app")
# By default each event of a task run is a transaction of its own: two fifths of what the server has to do.
TOGETHER = {
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "0.2",
}


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A free port of this machine, for a server that is told its number; nobody else is given it meanwhile.

    It is bound here and not listened on. A server that asks for this very port may have it beside us, for both allow
    the address to be used again; to whoever asks for any port, the kernel gives one that is not bound.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def wait_for(api: str, poll: Callable[[], int | None], log: Path) -> None:
    """Wait until the server answers; `poll` gives the exit status of its process once that has ended."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert poll() is None, log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{api}/health", timeout=5) as answer:
                if answer.status == 200:
                    if os.environ.get("TESTS_DEVICE") == "cuda":
                        _make_gpu_limit(api)
                    return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"expected a Prefect server within 180 s: {log.read_text()[-2000:]}")


def _make_gpu_limit(api: str) -> None:
    """Make what the operator of a server with GPUs makes: as many slots as there are processes of tests."""
    body = json.dumps({"name": "gpu", "limit": os.cpu_count()}).encode()
    request = urllib.request.Request(f"{api}/v2/concurrency_limits/", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=30).close()


@contextlib.contextmanager
def temporary_server(folder: Path, database: Path) -> Iterator[None]:
    """Flows of this process are told to a server as Prefect starts it for whoever has none.

    Args:
        folder: exists; it is the server's home.
        database: an empty one with its tables, to be copied.
    """
    shutil.copy(database, folder / "prefect.db")
    log = folder / "server.log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UNDERSTUDY_")} | {
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder / 'prefect.db'}",
        "PREFECT_UI_ENABLED": "0",
        # Nobody listens to what happens; it would be taken apart once more for them.
        "PREFECT_SERVER_EVENTS_STREAM_OUT_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
        **TOGETHER,
    }
    command = [sys.executable, *SERVER, "--log-level", "error", "--host", "127.0.0.1", "--lifespan", "on", "--port"]
    with (
        held_port() as port,
        log.open("w") as said,
        subprocess.Popen([*command, str(port)], env=environment, stdout=said, stderr=said) as process,
    ):
        api = f"http://127.0.0.1:{port}/api"
        try:
            wait_for(api, process.poll, log)
            with flows_told_to(api, folder / "prefect.db"):
                yield
        finally:
            process.kill()


def flow_run_names() -> set[str]:
    """Of the runs that the server of now knows last."""
    from prefect import get_client
    from prefect.client.schemas.sorting import FlowRunSort

    with get_client(sync_client=True) as client:
        return {run.name for run in client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC)}


@contextlib.contextmanager
def flows_told_to(api: str, database: Path | None = None) -> Iterator[None]:
    """Flows of this process are told to this server, and have been when this ends.

    They send no heartbeat of Prefect's: its thread sleeps in whole seconds, and each flow would wait for it.
    """
    from prefect import context, settings
    from prefect.events.worker import EventsWorker
    from prefect.utilities.asyncutils import run_coro_as_sync

    async def events_are_sent() -> None:
        await EventsWorker.drain_all()

    updates = {settings.PREFECT_API_URL: api, settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    if database is not None:
        updates[settings.PREFECT_API_DATABASE_CONNECTION_URL] = f"sqlite+aiosqlite:///{database}"
    # Threads without a context of their own are told by the second, as in Prefect's own harness for tests.
    with (
        settings.temporary_settings(updates),
        context._temporary_global_settings_context(context.get_settings_context()),
    ):
        yield
        # The server may end before this process, which would then wait for ever.
        run_coro_as_sync(events_are_sent())
