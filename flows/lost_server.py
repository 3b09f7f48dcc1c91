"""A Prefect server that ends, or is out of reach, while a flow computes, and does not come back.

Prefect's client asks it again for about a minute. Then the engine fails over it, whatever the run has made by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty

import httpx
from prefect.events.worker import EventsWorker

from understudy.addresses import public_address
from understudy.errors import UnderstudyError
from understudy.runs.checks.answers import said
from understudy.settings import prefect_setting


@contextmanager
def told_if_lost() -> Iterator[None]:
    """Within it a flow runs.

    Raises:
        UnderstudyError: the server did not answer any more; or what the flow had failed with before that.
    """
    try:
        yield
    except httpx.TransportError as error:
        _drop_events()
        # An interrupt behind it is still found.
        raise _failed_with(error) or UnderstudyError(_lost(error)) from None


def _drop_events() -> None:
    """Drop the events that wait for the server: a process that ends would try each of them for seven seconds."""
    # Among all services of Prefect's, which are kept by no public name.
    services = list(EventsWorker._instances.values())  # type: ignore[misc]
    for worker in (service for service in services if isinstance(service, EventsWorker)):
        with suppress(Empty):
            while True:
                event = worker._queue.get_nowait()
                if event is not None:
                    worker._on_item_dropped(event)
                worker._queue.task_done()


def _failed_with(error: BaseException) -> UnderstudyError | None:
    """The flow's own failure, of which the server was to be told."""
    passed: list[BaseException] = []
    behind: BaseException | None = error
    while behind is not None and behind not in passed:
        if isinstance(behind, UnderstudyError):
            return behind
        passed.append(behind)
        behind = behind.__cause__ or behind.__context__
    return None


def _lost(error: httpx.TransportError) -> str:
    url = prefect_setting("PREFECT_API_URL")
    place = f"PREFECT_API_URL={public_address(url)}" if url else "Prefect's temporary server"
    start = "start it (prefect server start) and " if url else ""
    return (
        f"{place}: expected a Prefect server that answers until the run ends, found {said(error)}; what is done is "
        f"kept: {start}call the same again to go on, under the same charge if there is one"
    )
