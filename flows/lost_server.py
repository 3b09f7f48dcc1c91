"""A Prefect server that ends, or is out of reach, while a flow computes, and does not come back.

Prefect's client asks it again for about a minute. Then the engine fails over it, whatever the run has made by then. So
does a server, or what stands before it, that answers nothing but that it is busy.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from queue import Empty
from typing import ParamSpec, TypeVar

import httpx
from prefect.events.worker import EventsWorker
from prefect.exceptions import PrefectHTTPStatusError

from understudy.addresses import public_address
from understudy.errors import UnderstudyError
from understudy.runs.checks.answers import said
from understudy.settings import prefect_setting

P = ParamSpec("P")
R = TypeVar("R")


class ServerLost(UnderstudyError):
    """The Prefect server was lost.

    Attributes:
        found: which server it was, and what its last answer was, in words.
    """

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(f"{found}; {remedy}")
        self.found = found


def keeping(function: Callable[P, R], made: list[R]) -> Callable[P, R]:
    """A flow's function that leaves its result in `made`, where it is found although Prefect lost it."""

    @wraps(function)
    def kept(*given: P.args, **named: P.kwargs) -> R:
        made.append(function(*given, **named))
        return made[-1]

    # Prefect checks parameters by these, and looks up what is only named in the module of the function that it has.
    kept.__annotations__ = inspect.get_annotations(function, eval_str=True)
    kept.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    return kept


@contextmanager
def told_if_lost() -> Iterator[None]:
    """Within it a flow runs.

    Raises:
        ServerLost: the server did not answer any more.
        UnderstudyError: what the flow had failed with before that.
    """
    try:
        with _events_said_once():
            yield
    except (httpx.TransportError, PrefectHTTPStatusError, RuntimeError) as error:
        silence = _silence(error)
        if silence is None:
            raise
        _drop_events()
        # An interrupt behind it is still found.
        raise _failed_with(error) or _lost(silence) from None


@contextmanager
def _events_said_once() -> Iterator[None]:
    """Within it Prefect's client says once that it cannot send events, and not of each with all that stands in it."""
    said = False

    def passes(record: logging.LogRecord) -> bool:
        nonlocal said
        told = record.getMessage()
        if not told.startswith(("Unable to connect to ", "Service 'EventsWorker' failed ")):
            return True
        passes_now, said = not said and told.startswith("Unable"), True
        return passes_now

    loggers = [logging.getLogger(name) for name in ("prefect.events.clients", "prefect._internal.concurrency")]
    for logger in loggers:
        logger.addFilter(passes)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(passes)


def _silence(error: Exception) -> httpx.TransportError | PrefectHTTPStatusError | None:
    """The missing answer of a server that is away or out of service, which an error of Prefect's client is about."""
    # At the first call of a flow, Prefect's client says it in words of its own.
    found = error.__cause__ if str(error).startswith("Failed to reach API at ") else error
    if isinstance(found, PrefectHTTPStatusError):
        return found if _is_out_of_service(found) else None
    return found if isinstance(found, httpx.TransportError) else None


def _is_out_of_service(error: httpx.HTTPStatusError) -> bool:
    """Whether the answer is of a server that fails, and not of one that refuses what it was asked."""
    return error.response.status_code == httpx.codes.TOO_MANY_REQUESTS or error.response.is_server_error


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


def _lost(error: httpx.TransportError | PrefectHTTPStatusError) -> ServerLost:
    url = prefect_setting("PREFECT_API_URL")
    place = f"PREFECT_API_URL={public_address(url)}" if url else "Prefect's temporary server"
    start = "start it (prefect server start) and " if url and isinstance(error, httpx.TransportError) else ""
    return ServerLost(
        f"{place}: expected a Prefect server that answers until the run ends, found {said(error)}",
        f"what is done is kept: {start}call the same again to go on, under the same charge if there is one",
    )
