"""A method's own flow, run below that of an audit or a comparison."""

from __future__ import annotations

from prefect import Flow

from understudy.flows.deleted_run import told_if_deleted
from understudy.lazy import load
from understudy.methods import registry
from understudy.runs.exported import Exported
from understudy.runs.request import RunRequest
from understudy.tasks.engine.progress import say_line


def inner_run(method: str, request: RunRequest, *, name: str) -> Exported:
    """Run a method's flow below the running one, which may be a retry.

    Prefect counts the flows that a flow calls. At a retry it would hand out what the call of the same number has kept,
    which may be another run's, and would fail where that file is gone, as it is on another machine. So none is kept:
    the flow runs again and finds its finished tasks.

    Args:
        method: its name.
        request: what its flow is asked.
        name: of the flow run, public: it tells it from its siblings in Prefect's UI.

    Raises:
        UnderstudyError: it was deleted on the Prefect server.
    """
    flow: Flow[[RunRequest], Exported] = load(registry.get(method).flow)
    say_line(f"run {name} begins")
    # A function, for Prefect would take a string for a template.
    with told_if_deleted(name):
        return flow.with_options(persist_result=False, flow_run_name=lambda: name)(request)
