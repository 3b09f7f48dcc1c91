"""Multiple choice behind answered public examples (Brown et al. 2020, arXiv 2005.14165, section 2.4: k-shot).

The examples are drawn once, by the public seed, and stand before every question. The width of a question grows by
theirs, so that none of them gives way; that they fit the model's context is checked before the charge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from understudy.data.public_tables import pairs_digest, read_pairs
from understudy.errors import InputError
from understudy.evaluation.answers.config import AnswersConfig
from understudy.evaluation.answers.multiple_choice import Question, before_question, fitting, rightly_answered
from understudy.generation.instructions import Pair, pairs_of
from understudy.generation.step import backbone

# Tokens that may be more where two texts meet than in each by itself.
_MARGIN = 8


def draw_shots(settings: AnswersConfig, *, seed: int) -> list[Pair]:
    """The examples; none where none are asked for.

    Args:
        settings: how many, and of which public table.
        seed: public.

    Raises:
        InputError: the table cannot be read, is not the one that the run began with, or has fewer pairs.
    """
    if not settings.shots:
        return []
    table = read_pairs(settings.shots_from, setting="evaluation.shots_from", digest=settings.shots_digest)
    if table.num_rows < settings.shots:
        raise InputError(
            f"evaluation.shots={settings.shots}: expected as many pairs in evaluation.shots_from="
            f"{settings.shots_from}, found {table.num_rows}; lower it, or name a longer table"
        )
    pairs = pairs_of(table)
    drawn = np.random.default_rng(seed).choice(len(pairs), size=settings.shots, replace=False)
    return [pair for row in drawn.tolist() if (pair := pairs[row]) is not None]


def shots_digest(settings: AnswersConfig) -> str:
    """What identifies the table of examples; empty where no example is asked for.

    Raises:
        InputError: it cannot be read.
    """
    return pairs_digest(settings.shots_from, setting="evaluation.shots_from") if settings.shots else ""


def shots_width(tokenizer: Any, shots: Sequence[Pair], *, max_length: int) -> int:
    """Tokens of a question of `max_length` behind all examples."""
    return max_length + len(tokenizer.encode(before_question(shots), add_special_tokens=False)) + _MARGIN


def check_shots(model: Any, tokenizer: Any, settings: AnswersConfig, *, max_length: int, seed: int) -> None:
    """Refuse examples that could not stand before a question; public values only.

    Raises:
        InputError: as `draw_shots`, or the model's context is too short.
    """
    if not (shots := draw_shots(settings, seed=seed)):
        return
    context = getattr(backbone(model).config, "max_position_embeddings", None)
    width = shots_width(tokenizer, shots, max_length=max_length)
    if context is not None and width > context:
        raise InputError(
            f"evaluation.shots={settings.shots}: expected room for them and a question of {max_length} tokens in the "
            f"model's context of {context}, found {width} tokens; lower it, or name a table of shorter pairs"
        )


def few_shot(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    shots: Sequence[Pair],
    *,
    template: Any = "auto",
    max_length: int,
) -> list[bool]:
    """Whether each question that fits `max_length` whole is answered rightly behind the examples.

    A question that would be cut is left out, for the examples stand in what would be cut of it. Which these are is the
    same for every model of one tokenizer.
    """
    whole = fitting(tokenizer, questions, template=template, max_length=max_length)
    if not whole or not shots:
        return []
    width = shots_width(tokenizer, shots, max_length=max_length)
    return rightly_answered(model, tokenizer, whole, shots=shots, template=template, max_length=width)
