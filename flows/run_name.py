"""The name of a flow run that nobody else has named: what it runs, on which source, and two words of Prefect's own."""

from __future__ import annotations

import logging
import re
from typing import Final, TypeVar

from prefect import Flow
from prefect.context import FlowRunContext
from prefect.exceptions import CancelledRun
from prefect.utilities.names import generate_slug

from understudy.errors import UnderstudyError
from understudy.flows.deleted_run import told_if_deleted
from understudy.flows.lost_server import ServerLost, keeping, told_if_lost

Q = TypeVar("Q")
R = TypeVar("R")

_log = logging.getLogger(__name__)
# As Prefect names a run that nobody has named.
_BY_CHANCE: Final = re.compile(r"[a-z]+-[a-z]+")


def run_named(flow: Flow[[Q], R], request: Q) -> R:
    """Run a flow under a name that tells it from others in Prefect's UI, as `audit-reviews-lucky-otter`.

    Args:
        flow: started here, by a command or from Python.
        request: its one parameter.

    Raises:
        UnderstudyError: the run was cancelled on the Prefect server, or deleted there, or the server was lost before
            the run came to its end.
    """
    name = _name(flow.name, request, generate_slug(2))
    # A function, for Prefect would take a string for a template.
    named, made = flow.with_options(flow_run_name=lambda: name), list[R]()
    named.fn = keeping(named.fn, made)
    try:
        with told_if_lost(), told_if_deleted(name):
            return named(request)
    except ServerLost as lost:
        if not made:
            raise
        # Prefect has no part in what was made; whoever looks there will see a run that did not end.
        _log.warning("%s; the run is done all the same, and Prefect does not know that", lost.found)
        return made[-1]
    except CancelledRun:
        pass
    # Outside the handler: its text says nothing more.
    raise UnderstudyError(
        f"flow run {name}: expected to run to its end, found it cancelled on the Prefect server; call the same again "
        "to go on with it"
    )


def name_of_deployed() -> str:
    """The name of the flow run that is about to begin, of a deployment: its maker's, or its method, source and words.

    Prefect calls this at each beginning, also of a retry, which has its name already.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow is None or context.parameters is None:
        raise UnderstudyError("expected a flow run that begins; name it in `flow_run_name` of a flow")
    given = context.flow_run.name
    if not _BY_CHANCE.fullmatch(given):
        return given
    return _name(context.flow.name, context.parameters["request"], given)


def _name(flow: str, request: object, words: str) -> str:
    source = getattr(getattr(request, "run", request), "source", None)
    return "-".join(filter(None, (flow, source, words)))
