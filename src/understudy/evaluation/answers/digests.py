"""Digests of what the settings of an evaluation of answers name; a method's `resolve` sets them before the charge."""

from __future__ import annotations

from understudy.evaluation.answers.config import AnswersConfig


def with_digests(settings: AnswersConfig) -> AnswersConfig:
    """The settings with the digests of the table of examples and of the harness's tasks; without any as they are.

    Raises:
        InputError: the table cannot be read, or the harness is not installed.
    """
    if not (settings.shots or settings.harness_tasks):
        return settings
    from understudy.evaluation.answers.harness import harness_digest
    from understudy.evaluation.answers.shots import shots_digest  # torch, only where needed

    return settings.model_copy(
        update={
            "shots_digest": settings.shots_digest or shots_digest(settings),
            "harness_digest": settings.harness_digest or harness_digest(settings),
        }
    )
