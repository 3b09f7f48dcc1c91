"""A flow run that somebody deletes on the Prefect server while its process computes.

Prefect's engine notices when the run ends, and fails over it, whatever the run has made by then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.exceptions import ObjectNotFound

from understudy.errors import UnderstudyError


def is_of_flow_run(error: ObjectNotFound) -> bool:
    """Whether it is a flow run that the server does not have, as opposed to anything else that was asked for."""
    request = getattr(error.http_exc, "request", None)
    return request is not None and re.search(r"/flow_runs/[0-9a-f-]{36}(/|$)", request.url.path) is not None


@contextmanager
def told_if_deleted(name: str) -> Iterator[None]:
    """Within it a flow runs.

    Args:
        name: of the flow run.

    Raises:
        UnderstudyError: the flow run was deleted.
    """
    try:
        yield
    except ObjectNotFound as error:
        if not is_of_flow_run(error):
            raise
        # An interrupt behind it is still found.
        raise UnderstudyError(
            f"flow run {name}: expected to run to its end, found it deleted on the Prefect server; what is done is "
            "kept: call the same again to go on with it, under the same charge if there is one"
        ) from None
