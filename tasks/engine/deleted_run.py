"""The flow run of a worker that somebody deletes on the Prefect server while its process computes.

Prefect's engine cannot tell the server any more how it ended, and would show a page of errors over that. `Abort` is
Prefect's own word for a process that has nothing to tell.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prefect import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Abort, ObjectNotFound, PrefectException

from understudy.errors import UnderstudyError
from understudy.tasks.engine.prefect_links import asked_once

_log = logging.getLogger(__name__)


@contextmanager
def aborted_if_deleted(run: FlowRun) -> Iterator[None]:
    """Within it the flow of a run computes; one that no worker started is left to whoever called it.

    Raises:
        Abort: the run was deleted, and how it ended has been said.
    """
    if run.deployment_id is None:
        yield
        return
    try:
        yield
    except Exception as error:
        if not _is_deleted(run):
            raise
        told = f": {error}" if isinstance(error, UnderstudyError) else ""
        _log.error("flow run %s failed%s", run.name, told, exc_info=None if told else error)
    else:
        if not _is_deleted(run):
            return
    message = (
        f"flow run {run.name} was deleted on the Prefect server, which is told nothing of it; what is done is kept"
    )
    _log.warning(message)
    raise Abort(message)


def _is_deleted(run: FlowRun) -> bool:
    """Whether the server does not have it any more; one that does not answer has told nothing."""
    try:
        with asked_once(), get_client(sync_client=True) as client:
            client.read_flow_run(run.id)
    except ObjectNotFound:
        return True
    except (httpx.HTTPError, PrefectException) as error:
        _log.debug("whether flow run %s was deleted was not read: %s", run.id, type(error).__name__)
    return False
