"""Which of two answers a judge prefers, asked in both orders (Zheng et al. 2023, arXiv 2306.05685, section 3.4).

A judge is any function that gives the probability of preferring the first of two answers. A probability of exactly 0.5
is half a vote. Where the two votes of a pair are for different answers, or both are halves, the pair is undecided and
counts half. The interval is Wilson's over pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from understudy.generation.instructions import Pair, PairEncoder
from understudy.generation.questions import context_for_questions, fitted_question
from understudy.generation.scoring import Floats, preferences
from understudy.models.loading import LoadedModel

# (instructions, first answers, second answers) -> probability that the first is better, one per instruction.
Judge = Callable[[Sequence[str], Sequence[str], Sequence[str]], Floats]
_NORMAL_95 = 1.959963984540054


@dataclass(frozen=True)
class Compared:
    """The outcome over all instructions.

    Attributes:
        rate: share of pairs won, undecided ones by half.
        interval: Wilson's at 95 %.
        undecided: share of pairs in which the preference went with the order, or there was none.
    """

    rate: float
    interval: tuple[float, float]
    undecided: float


def compare_answers(
    instructions: Sequence[str], ours: Sequence[str], others: Sequence[str], *, judge: Judge
) -> Compared:
    """How often a judge prefers our answers.

    Args:
        instructions: what was asked, at least one.
        ours: one answer each.
        others: one answer each.
        judge: asked twice, with the answers in both orders.
    """
    forward, backward = judge(instructions, ours, others), judge(instructions, others, ours)
    votes = [_vote(first) + 1 - _vote(second) for first, second in zip(forward, backward, strict=True)]
    rate = sum(votes) / (2 * len(votes))
    return Compared(rate, wilson(rate, len(votes)), sum(vote == 1 for vote in votes) / len(votes))


def _vote(probability: float) -> float:
    """What a judge's probability counts for the first answer: 1, 0, or 1/2 where it has no preference."""
    return 0.5 if probability == 0.5 else float(probability > 0.5)


def preference_judge(model: LoadedModel, encoder: PairEncoder, answers: tuple[Sequence[int], Sequence[int]]) -> Judge:
    """A language model as judge, by its probability of yes.

    Where request, answers and question exceed the judge's context, request and answers are shortened to one length of
    their first characters, and the question stays whole. `count_shortened` says how often.

    Args:
        model: judges.
        encoder: writes the question for it.
        answers: first tokens of yes and of no.

    Returns:
        The judge. It raises InputError where its context has no room for the question.
    """

    def judge(instructions: Sequence[str], first: Sequence[str], second: Sequence[str]) -> Floats:
        context = context_for_questions(model)
        asked = [
            Pair(fitted_question(_question, texts, encoder, max_length=context)[0])
            for texts in zip(instructions, first, second, strict=True)
        ]
        ids, mask, _ = encoder.prompts(asked, max_length=context)
        return preferences(model.model, (ids, mask), first=answers[0], second=answers[1])

    return judge


def count_shortened(
    model: LoadedModel, encoder: PairEncoder, instructions: Sequence[str], ours: Sequence[str], others: Sequence[str]
) -> int:
    """In how many comparisons `preference_judge` shortens request or answers; of private requests private."""
    context = context_for_questions(model)
    asked = zip(instructions, ours, others, strict=True)
    return sum(fitted_question(_question, texts, encoder, max_length=context)[1] for texts in asked)


def _question(request: str, first: str, second: str) -> str:
    return (
        f"Request: {request}\nAnswer 1: {first}\nAnswer 2: {second}\nIs answer 1 better than answer 2? Say yes or no."
    )


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's interval of a share at 95 %.

    >>> [round(end, 3) for end in wilson(0.5, 10)]
    [0.237, 0.763]
    """
    spread = _NORMAL_95**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
