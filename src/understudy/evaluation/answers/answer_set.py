"""Answers out of a fixed set, read from free text: accuracy and macro F1 of a model that answers in words.

KnowledgeSG, section 4.2: an answer that cannot be read counts as the neutral one. How many these were is said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from understudy.errors import RowError


@dataclass(frozen=True)
class Answered:
    """How free answers compare with the right ones.

    Attributes:
        given: `(n,)` int64, the place of each answer; an unreadable one counts as the neutral one, -1 where none is.
        correct: `(n,)` bool.
        accuracy: share of right answers.
        macro_f1: mean over answers that are right for some text.
        unparsed: how many texts named none of the answers, or several.
    """

    given: npt.NDArray[np.int64]
    correct: npt.NDArray[np.bool_]
    accuracy: float
    macro_f1: float
    unparsed: int


def read_answer(text: str, answers: Sequence[str]) -> int | None:
    """Which answer a text names, by whole words in any case; None where it names none, or several.

    Where an answer is part of a longer one, the longer one is named.

    >>> read_answer("Very positive", ["positive", "very positive"])
    1
    >>> read_answer("It is Positive.", ["negative", "neutral", "positive"])
    2
    >>> read_answer("positive or negative", ["negative", "neutral", "positive"]) is None
    True
    """
    longest_first = "|".join(re.escape(answer.lower()) for answer in sorted(answers, key=len, reverse=True))
    named = set(re.findall(rf"(?<!\w)(?:{longest_first})(?!\w)", text.lower()))
    places = [place for place, answer in enumerate(answers) if answer.lower() in named]
    return places[0] if len(places) == 1 else None


def score_answers(
    texts: Sequence[str], right: Sequence[int], *, answers: Sequence[str], neutral: int | None = None
) -> Answered:
    """Accuracy and macro F1 of free answers.

    Args:
        texts: what was answered, at least one.
        right: place of the right answer of each.
        answers: the fixed set.
        neutral: place of the answer that an unreadable text counts as; None: of none, so it is wrong.

    Raises:
        RowError: no text, or not one right answer for each.
    """
    if not texts or len(texts) != len(right):
        raise RowError(f"expected a right answer for each text, at least one, found {len(texts)} and {len(right)}")
    read = [read_answer(text, answers) for text in texts]
    unread = -1 if neutral is None else neutral
    given = np.array([unread if place is None else place for place in read], dtype=np.int64)
    wanted = np.asarray(right, dtype=np.int64)
    correct = given == wanted
    unparsed = sum(place is None for place in read)
    return Answered(given, correct, float(correct.mean()), macro_f1(given, wanted), unparsed)


def macro_f1(given: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> float:
    """The mean of F1 over the answers that are right somewhere.

    >>> macro_f1(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]))
    0.7333333333333334
    """
    scores = []
    for place in np.unique(wanted):
        hits = ((given == place) & (wanted == place)).sum()
        scores.append(2 * hits / ((given == place).sum() + (wanted == place).sum()))
    return float(np.mean(scores))
