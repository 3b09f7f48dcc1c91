"""Prefect's server, which may write down together what it is told of task runs in a part of a second."""

from prefect.server.api.server import create_app
from prefect.server.services import task_run_recorder

__all__ = ["create_app"]

# It takes the time between two records for whole seconds, and a part of one for none at all.
task_run_recorder.int = float
