"""A run of a worker outlives the worker that reads what it logs.

A worker gives each run a pipe for its log. When the worker alone is killed, the run computes on, and its next line
meets a pipe that nobody reads. Prefect's console is rich's, which then ends the whole process, as is right for a
command whose output is piped into `head`. Prefect's server gets the lines all the same, from another handler.
"""

from __future__ import annotations

import functools
import logging

from prefect.logging.handlers import PrefectConsoleHandler
from rich.console import Console


def outlive_readers_of_the_log() -> None:
    """Have Prefect's consoles in this process fall silent, instead of ending it, when nobody reads them any more."""
    known = [logger for logger in logging.Logger.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    handlers = {handler for logger in (logging.getLogger(), *known) for handler in logger.handlers}
    for handler in handlers:
        if isinstance(handler, PrefectConsoleHandler):
            # rich has no other way to say so; it forgets the line itself once it is quiet.
            handler.console.on_broken_pipe = functools.partial(_fall_silent, handler.console)  # type: ignore[method-assign]


def _fall_silent(console: Console) -> None:
    console.quiet = True
