"""What a worker's log says of an error that names its own remedy: a line, where Prefect's engine shows its way twice.

The command line says such errors in a line as well. All others keep their tracebacks.
"""

from __future__ import annotations

import logging
from typing import Final

from understudy.errors import UnderstudyError

# Of Prefect's engine: what ends a flow, and with it the process that a worker started for it.
_TOLD_BY: Final = ("prefect.flow_runs", "prefect.engine")


def tell_refusals_in_a_line() -> None:
    """From now on in this process; telling it twice changes nothing."""
    for name in _TOLD_BY:
        logging.getLogger(name).addFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], UnderstudyError):
        record.exc_info = None
    return True
