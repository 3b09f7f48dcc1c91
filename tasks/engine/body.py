"""What the body of a running task may use, in whichever process it computes: a directory, progress, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from understudy.artifacts.access import ArtifactRef
from understudy.errors import UnderstudyError


@dataclass(frozen=True)
class Body:
    """The means of one running task.

    Attributes:
        directory: gives the directory of its checkpoints.
        progress: shows (steps done, steps in all).
        metrics: what it reports, filled while it runs.
    """

    directory: Callable[[], Path]
    progress: Callable[[int, int], None]
    metrics: dict[str, float] = field(default_factory=dict)


_current: ContextVar[Body | None] = ContextVar("understudy-task", default=None)


@contextmanager
def running(body: Body) -> Iterator[None]:
    """The functions below are those of this body while the block runs."""
    token = _current.set(body)
    try:
        yield
    finally:
        _current.reset(token)


def checkpoint_directory() -> Path:
    """The directory of the running task's checkpoints, with those of an interrupted attempt in it.

    Private (mode 0700), held by this worker alone, named anew for every attempt, removed when the result is
    committed.

    Raises:
        UnderstudyError: outside of a task.
        LeaseLost: when another worker has taken over.
    """
    return _require().directory()


def progress(step: int, total: int) -> None:
    """Show that `step` of `total` steps are done; both must be public.

    Raises:
        UnderstudyError: outside of a task.
        LeaseLost: when another worker has taken over.
    """
    _require().progress(step, total)


def progress_on(read: ArtifactRef | None) -> Callable[[int, int], None] | None:
    """`progress` of post-processing; None of a private artifact, for its content decides how much there is to do.

    Args:
        read: what is worked on; None is nothing but public.
    """
    return None if read is not None and read.is_private else progress


def report_metrics(metrics: Mapping[str, float]) -> None:
    """Record public or released numbers with the task; nothing computed on private rows may be among them."""
    _require().metrics.update(metrics)


def _require() -> Body:
    body = _current.get()
    if body is None:
        raise UnderstudyError("expected to be inside a task; call this from the body of a function with @task")
    return body
