"""What becomes of a run when the worker is killed that reads what it logs."""

import logging
import os
import subprocess
import sys

import pytest
from prefect.logging.handlers import PrefectConsoleHandler

from understudy.tasks.engine.lost_log import outlive_readers_of_the_log


@pytest.fixture
def log():
    """A logger of Prefect's console, whose reader is gone after the first line."""
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w", buffering=1)
    handler, logger = PrefectConsoleHandler(stream=stream), logging.getLogger("of_a_lost_log")
    logger.addHandler(handler)
    logger.warning("one")
    assert b"one" in os.read(reader, 1000)
    os.close(reader)
    yield logger
    logger.removeHandler(handler)
    os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # what the stream holds back goes there when it is closed
    stream.close()


def test_a_line_that_nobody_reads_ends_no_run(log):
    outlive_readers_of_the_log()
    log.warning("two")
    log.warning("three")
    (handler,) = log.handlers
    assert handler.console.quiet


def test_without_that_it_would():
    """If this fails, Prefect's console need not be told any more. In a process of its own, for it ends with it."""
    code = (
        "import logging, os; from prefect.logging.handlers import PrefectConsoleHandler as H;"
        "reader, writer = os.pipe(); os.close(reader); log = logging.getLogger('lost');"
        "log.addHandler(H(stream=os.fdopen(writer, 'w'))); log.warning('two'); os._exit(0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 1
