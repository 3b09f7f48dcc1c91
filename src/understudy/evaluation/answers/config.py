"""What an evaluation of answers may be told beside a method's own settings: public values only, no torch."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import model_validator

from understudy.frozen import DigestOf, Frozen
from understudy.quantities import Count, setting


class AnswersConfig(Frozen):
    """Multiple choice behind answered examples, and tasks of lm-evaluation-harness.

    The examples are public: what a model does with private examples before it says nothing of a model that leaves
    without them, and the control without private rows would see them too.
    """

    shots: int = setting(
        0, "Answered public pairs that stand before each multiple-choice question, 0 to 32; 0: none.", ge=0, le=32
    )
    shots_from: str = setting(
        "", "Public table with columns instruction and response of which the public seed draws these pairs."
    )
    shots_digest: Annotated[str, DigestOf("shots_from")] = setting("", "sha256 of that table; set by the run.")
    harness_tasks: tuple[str, ...] = setting(
        (),
        "Tasks of lm-evaluation-harness that every model is measured on, by name or as paths of task files; needs the "
        "extra `harness`, and fetches their data from the hub. A task file that names code is refused.",
    )
    harness_digest: Annotated[str, DigestOf("harness_tasks")] = setting(
        "", "sha256 of their names, their files and the harness's version; set by the run."
    )
    harness_questions: Count = setting(100, "Questions of each of these tasks, at most.")

    @model_validator(mode="after")
    def _check_shots(self) -> Self:
        if self.shots and not self.shots_from:
            raise ValueError(
                f"evaluation.shots={self.shots}: expected a public table to draw them from, found none; name one with "
                "evaluation.shots_from=TABLE, or leave evaluation.shots out"
            )
        return self
