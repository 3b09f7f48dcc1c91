"""Prefect's temporary server, which a run has that was told of no other.

Its database is made on first use, and two servers that make it at a time fail over each other's tables. So one run
after another starts its server. What killed runs left there as Running is marked
Crashed then.

A service manager that ends a run signals the server beside it. Prefect's client would then ask it again for more than
a minute, though it never comes back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen
from typing import Any

from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_SERVER_EPHEMERAL_ENABLED,
    Settings,
    temporary_settings,
)

from understudy.locks import locked_folder
from understudy.tasks.engine.heartbeat import end_dead_runs

# What Prefect says of events that it cannot send: of no use to whoever has ended the server.
_COMPLAINTS = ("prefect.events.clients", "prefect._internal.concurrency", "EventsWorker")


def start_in_turn() -> None:
    """Start the temporary server of this process, which its flow finds; where there is another server, nothing."""
    if PREFECT_API_URL.value() or not PREFECT_SERVER_EPHEMERAL_ENABLED.value():
        return
    # All of Prefect's server, which whoever has one elsewhere need not wait for.
    from understudy.flows.tied_server import TiedServer

    home = PREFECT_HOME.value()
    home.mkdir(parents=True, exist_ok=True)
    with locked_folder(home):
        TiedServer().start()
        end_dead_runs()


@contextmanager
def given_up_with_it() -> Iterator[None]:
    """Within it, Prefect's client asks the temporary server no second time once that has ended."""
    from prefect.server.api.server import SubprocessASGIServer

    process = SubprocessASGIServer().server_process if SubprocessASGIServer._instances else None
    if process is None:
        yield
        return
    left = threading.Event()
    with temporary_settings() as settings:
        watch = threading.Thread(target=_watch, args=(process, settings, left), name="server-watch", daemon=True)
        watch.start()
        yield
        # Not after an interrupt: what Prefect sends at the end of the process may fail as well.
        left.set()


def _watch(process: Popen[Any], settings: Settings, left: threading.Event) -> None:
    while process.poll() is None:
        if left.wait(0.1):
            return
    # Prefect reads its settings at each attempt, so that this holds for a call that is waiting for its next one too.
    settings.client.max_retries = 0
    settings.logging.to_api.enabled = False
    logging.raiseExceptions = False  # else Prefect writes to the terminal that it cannot send its log
    for name in _COMPLAINTS:
        # Not by its level: of those that Prefect uses inside, another setting decides.
        logging.getLogger(name).disabled = True
