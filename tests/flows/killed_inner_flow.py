"""A flow that is killed inside a flow that it calls, and its next attempt; run by test_worker.py, each in a process.

Without an argument it makes the flow run, says its id and is killed; with that id it is the next attempt.
"""

import os
import sys
import time
from uuid import UUID

from prefect import flow, get_client, task
from prefect.client.schemas.filters import TaskRunFilter
from prefect.flow_engine import run_flow
from prefect.runtime import task_run
from prefect.states import Pending

from understudy.tasks.engine.heartbeat import beating

IS_KILLED = len(sys.argv) == 1


@task(name="step", task_run_name="step")
def step() -> None:
    if not IS_KILLED:
        return
    own = TaskRunFilter.model_validate({"id": {"any_": [task_run.id]}, "state": {"type": {"any_": ["RUNNING"]}}})
    with get_client(sync_client=True) as client:
        # Prefect tells the server of a task's state while the task runs.
        while not client.read_task_runs(task_run_filter=own):
            time.sleep(0.1)
    os._exit(9)


@flow(name="inner", persist_result=False)
def inner() -> None:
    with beating():
        step()


@flow(name="outer", persist_result=False)
def outer() -> None:
    with beating():
        inner()


if __name__ == "__main__":
    with get_client(sync_client=True) as client:
        made = client.create_flow_run(outer, state=Pending()) if IS_KILLED else client.read_flow_run(UUID(sys.argv[1]))
    sys.stdout.write(f"{made.id}\n")
    sys.stdout.flush()
    run_flow(outer, flow_run=made)
