"""Tasks run against one Prefect server per session and a fresh MLflow database per test."""

from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from unittest.mock import patch

import forked
import pytest


@pytest.fixture
def tracked(home: Path, prefect_server: None) -> Path:
    """A test that runs tasks asks for this; returns the home directory."""
    return home


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[forkserver.ForkServer]:
    """A process that has imported what the module of tests lists as `IMPORTED`, and has opened nothing."""
    started = forkserver.ForkServer()
    started.set_forkserver_preload(request.module.IMPORTED)
    yield started
    started._stop()


@pytest.fixture
def start(server: forkserver.ForkServer) -> Iterator[Callable[..., tuple[ForkServerProcess, Connection]]]:
    """`forked.start`, from the module's own server; what still runs after the test is killed."""
    processes = []

    def run(code: str, **names: object) -> tuple[ForkServerProcess, Connection]:
        with patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process):
            process, pipe = forked.start(code, **names)
        processes.append(process)
        return process, pipe

    yield run
    for process in processes:
        process.kill()
        process.join()
