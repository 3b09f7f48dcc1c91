"""Progress of a long task: a bar in the terminal and an artifact in the Prefect UI, of public steps only.

Nothing is shown for work that ends within `quiet_s` seconds, and both are throttled. The bars of tasks that
run at the same time share one display on stderr, so that stdout stays clean for `--json`. Where stderr is no terminal,
each task that computes has a line when it begins, and another every minute.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from understudy.tasks.engine.prefect_links import asked_once

Publish = Callable[[float], None]
# After which a server that did not answer is told of progress again.
_AFTER_SILENCE_S = 30.0
# Between two lines of one task where no bar is shown.
_LINE_EVERY_S = 60.0

_log = logging.getLogger(__name__)


class Bars:
    """The shared display; it is there only while at least one bar is."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._lock = threading.Lock()
        self._display: Progress | None = None

    @property
    def are_shown(self) -> bool:
        """Whether stderr is a terminal."""
        return self._console.is_terminal

    def open(self, name: str, total: int) -> TaskID | None:
        """Add a bar; None when stderr is not a terminal."""
        if not self.are_shown:
            return None
        with self._lock:
            if self._display is None:
                columns = (
                    TextColumn("{task.description}"),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TimeRemainingColumn(),
                )
                self._display = Progress(*columns, console=self._console, transient=True)
                self._display.start()
            return self._display.add_task(name, total=total)

    def update(self, bar: TaskID, step: int, total: int) -> None:
        """Move a bar."""
        with self._lock:
            if self._display is not None:
                self._display.update(bar, completed=step, total=total)

    def close(self, bar: TaskID) -> None:
        """Remove a bar, and the display with the last one."""
        with self._lock:
            if self._display is None:
                return
            self._display.refresh()
            self._display.remove_task(bar)
            if not self._display.task_ids:
                self._display.stop()
                self._display = None


BARS = Bars()


@dataclass
class Reporter:
    """The progress of one task run."""

    name: str
    publish: Publish
    bars: Bars = field(default_factory=lambda: BARS)
    clock: Callable[[], float] = time.monotonic
    quiet_s: float = 2.0
    publish_every_s: float = 5.0
    _began: float | None = None
    _published: float | None = None
    _bar: TaskID | None = None
    _said: float | None = None
    _last: tuple[int, int] | None = None

    def begin(self) -> None:
        """Say in a log that the task begins to compute; a terminal has its bar."""
        self._said = self.clock()
        if not self.bars.are_shown:
            say_line(f"{self.name} begins")

    def update(self, step: int, total: int) -> None:
        """Note that `step` of `total` public steps are done."""
        if total < 1 or not 0 <= step <= total:
            raise ValueError(f"progress: expected 0 <= step <= total and total >= 1, found {step} of {total}")
        now = self.clock()
        self._began = now if self._began is None else self._began
        self._last = (step, total)
        if now - self._began < self.quiet_s:
            return
        if self._bar is None:
            self._bar = self.bars.open(self.name, total)
        if self._bar is not None:
            self.bars.update(self._bar, step, total)
        elif self._said is not None and now - self._said >= _LINE_EVERY_S:
            self._said = now
            say_line(f"{self.name}: {step} of {total}")
        if self._published is None or now - self._published >= self.publish_every_s:
            self._published = now
            self.publish(100.0 * step / total)

    def close(self) -> None:
        """Show the last step and remove the bar."""
        if self._bar is not None:
            self.bars.close(self._bar)
        if self._published is not None and self._last is not None:
            self.publish(100.0 * self._last[0] / self._last[1])


def say_line(words: str) -> None:
    """One line on stderr, in one write, for tasks that run at the same time share it.

    Nobody may read it any more: a worker that was killed has closed the pipe of a run that lives. That costs the line.
    """
    with suppress(OSError):
        sys.stderr.write(f"{words}\n")


@contextmanager
def waiting(words: str, console: Console | None = None) -> Iterator[None]:
    """Say in the terminal that something elsewhere is waited for, until it is there; nothing where stderr is a file."""
    with (console or Console(stderr=True)).status(words):
        yield


def say_waiting(words: Callable[[], str]) -> Callable[[float], None]:
    """What a task that waits says on stderr, of the seconds waited for: after two of them, then every minute."""
    due = 2.0

    def say(waited_s: float) -> None:
        nonlocal due
        if waited_s >= due:
            due = waited_s + 60.0
            say_line(f"waiting for {waited_s:.0f} s {words()}")

    return say


def prefect_publisher(name: str) -> Publish:
    """A publisher that makes one Prefect progress artifact and then updates it.

    A server that does not answer costs the picture, not the work: it is logged, and tried again after a while, of which
    no more than a tenth is spent on asking.
    """
    made: list[UUID] = []
    next_try = 0.0

    def publish(percent: float) -> None:
        import httpx
        from prefect.artifacts import create_progress_artifact, update_progress_artifact

        nonlocal next_try
        if (began := time.monotonic()) < next_try:
            return
        try:
            with asked_once():
                if made:
                    update_progress_artifact(made[0], progress=percent)
                else:
                    key = "".join(c if c.isalnum() and c.isascii() else "-" for c in name.lower())
                    created = create_progress_artifact(progress=percent, key=f"progress-{key}", description=name)
                    made.append(cast(UUID, created))
        except httpx.HTTPError as error:
            now = time.monotonic()
            next_try = now + max(_AFTER_SILENCE_S, 10 * (now - began))
            _log.warning("progress of task %r was not shown in Prefect: %s", name, type(error).__name__)

    return publish
