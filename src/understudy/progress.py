"""How a long piece of work goes on: who is told how far it is, and where its state is kept; imports nothing of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Progress = Callable[[int, int], None]  # (parts done, parts in all), public numbers only


def halves(progress: Progress | None) -> tuple[Progress | None, Progress | None]:
    """For work in two parts that are told as one: each part tells of its own, which are half of what there is."""
    if progress is None:
        return None, None
    return lambda done, parts: progress(done, 2 * parts), lambda done, parts: progress(parts + done, 2 * parts)


class CheckpointSink(Protocol):
    """Where a training keeps its state, under the private root (`models.checkpoints.TrainingCheckpoint`)."""

    def due(self, step: int) -> bool:
        """Whether to keep the state after `step` steps; asked once after each step."""
        ...

    def load(self) -> tuple[int, dict[str, Tensor]] | None:
        """The newest (completed steps, state), or None."""
        ...

    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep the state after `step` steps, whole or not at all."""
        ...


@dataclass(frozen=True)
class Course:
    """The course of a training, step by step; resuming from what it kept changes no byte of the result.

    Attributes:
        checkpoint: keeps the state after each step that it calls due, and after the last; None keeps nothing.
        progress: called with (steps done, steps); None tells nobody.
    """

    checkpoint: CheckpointSink | None = None
    progress: Progress | None = None

    def resumed(self) -> tuple[int, dict[str, Tensor]] | None:
        """The newest (completed steps, state), or None where the training begins."""
        return None if self.checkpoint is None else self.checkpoint.load()

    def begun(self, state: Callable[[], Mapping[str, Tensor]]) -> None:
        """Keep the state before the first step, whether or not it is due."""
        if self.checkpoint is not None:
            self.checkpoint.save(0, state())

    def stepped(self, done: int, steps: int, state: Callable[[], Mapping[str, Tensor]]) -> None:
        """Keep the state if it is due, and then tell that `done` of `steps` are done."""
        if self.checkpoint is not None and (self.checkpoint.due(done) or done == steps):
            self.checkpoint.save(done, state())
        if self.progress is not None:
            self.progress(done, steps)


UNKEPT: Final = Course()
