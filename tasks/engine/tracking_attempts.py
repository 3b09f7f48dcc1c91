"""Writing to a tracking store: a few attempts, and an error that tells nothing of what was to be written."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from understudy.addresses import public_address
from understudy.durable import is_of_disk, is_of_full_database
from understudy.errors import InputError, TrackingFailed
from understudy.tasks.engine.failures import keep_text

T = TypeVar("T")

_RETRY_AFTER_S = (0.2, 1.0, 3.0)


def persisted(what: str, uri: str, write: Callable[[], T]) -> T:
    """Write, with a few attempts: a busy database or a lost connection passes.

    Args:
        what: for a message.
        uri: of the store.
        write: writes it; the same again changes nothing.

    Raises:
        TrackingFailed: it cannot be written.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    for delay in (*_RETRY_AFTER_S, None):
        try:
            return write()
        except (MlflowException, SQLAlchemyError, OSError) as error:
            if delay is None:
                failure = TrackingFailed(
                    f"tracking: {what} could not be recorded ({type(error).__name__}{_kept(error)}); what is done is "
                    f"stored and is not computed again. {_remedy(error, uri)} and run the same command again"
                )
                break
            time.sleep(delay)
    # Outside the handler: Prefect would log the text of the error behind it.
    raise failure


def _remedy(error: Exception, uri: str) -> str:
    behind: BaseException | None = error  # MLflow's error, that of SQLAlchemy, and that of the driver
    while behind is not None:
        if is_of_full_database(behind) or (isinstance(behind, OSError) and is_of_disk(behind)):
            return f"The disk of {public_address(uri)} takes no more: make room there"
        behind = behind.__cause__
    return "Check UNDERSTUDY_MLFLOW_URI"


def _kept(error: Exception) -> str:
    """Where the text of an error is kept: it may hold what was to be written, or a password, and Prefect shows errors.

    Nothing where it cannot be written either.
    """
    try:
        return f", whose text is in {keep_text(error, 'tracking')}"
    except (OSError, InputError):
        return ""
