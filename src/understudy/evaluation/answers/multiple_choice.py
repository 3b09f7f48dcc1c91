"""Multiple choice by likelihood: the candidate answer with the highest mean log-likelihood per token is the choice.

Brown et al. 2020 (arXiv 2005.14165, section 2.4) for zero-shot and k-shot; the mean over tokens, as OPT and NACD take
it, does not favour short candidates. `questions_of` makes questions of instructions whose responses repeat, such as
labels: every different response is a candidate. Tasks of lm-evaluation-harness are asked in `harness.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from understudy.compute import widened
from understudy.errors import InputError, RowError
from understudy.generation.instructions import Pair, PairEncoder
from understudy.generation.step import backbone, head

MOST_CANDIDATES = 26


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        instruction: what is asked.
        candidates: the answers to choose from, at least two.
        answer: place of the right one.
    """

    instruction: str = field(repr=False)
    candidates: tuple[str, ...] = field(repr=False)
    answer: int = field(repr=False)

    def __post_init__(self) -> None:
        """Check that there is a choice, and a right one.

        Raises:
            InputError: naming what was found.
        """
        if len(self.candidates) < 2 or not 0 <= self.answer < len(self.candidates):
            raise InputError(
                f"expected at least two candidates and the place of the right one, found {len(self.candidates)} and "
                f"answer={self.answer}; correct the question"
            )


def questions_of(pairs: Sequence[Pair], *, candidates: Sequence[str] | None = None) -> list[Question]:
    """Questions of pairs whose responses are few and repeat; none where they are not.

    Args:
        pairs: instructions with the right responses.
        candidates: the answers to choose from; None takes the responses of the pairs.
    """
    if candidates is None:
        counts = Counter(pair.response.strip() for pair in pairs)
        candidates = sorted(counts)
        if not 2 <= len(candidates) <= min(MOST_CANDIDATES, len(pairs) // 2):
            return []
    place = {text: index for index, text in enumerate(candidates)}
    return [
        Question(pair.instruction, tuple(candidates), place[pair.response.strip()])
        for pair in pairs
        if pair.response.strip() in place
    ]


@torch.no_grad()
def rightly_answered(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    *,
    shots: Sequence[Pair] = (),
    template: Any = "auto",
    max_length: int = 128,
    batch_size: int = 16,
) -> list[bool]:
    """Whether each question's right candidate has the highest mean log-likelihood.

    Args:
        model: causal language model, in evaluation mode.
        tokenizer: of the model.
        questions: at least one.
        shots: k answered pairs that stand before every question; none is zero-shot. The earliest are left out of a
            question that they do not leave room for. Without shots a long question is cut as `PairEncoder` cuts it.
        template: how a pair is written, as of `PairEncoder`.
        max_length: tokens of a question with a candidate.
        batch_size: candidates in one forward pass.

    Raises:
        InputError: there is no question, or shots are given and a question does not fit even without them.
    """
    if not questions:
        raise RowError("expected at least one question, found none; bring pairs whose responses repeat")
    encoder = PairEncoder(tokenizer, template)
    encoder.check_width(max_length)
    asked = [
        pair
        for number, question in enumerate(questions)
        for pair in _behind_shots(encoder, question, shots, number=number, max_length=max_length)
    ]
    scores = [
        score
        for start in range(0, len(asked), batch_size)
        for score in likelihoods(model, encoder, asked[start : start + batch_size], max_length=max_length).tolist()
    ]
    right: list[bool] = []
    place = 0
    for question in questions:
        own = scores[place : place + len(question.candidates)]
        right.append(own.index(max(own)) == question.answer)
        place += len(own)
    return right


def before_question(shots: Sequence[Pair]) -> str:
    """The text of answered examples, as it stands before a question."""
    return "".join(f"{shot.instruction}\n{shot.response}\n\n" for shot in shots)


def fitting(tokenizer: Any, questions: Sequence[Question], *, template: Any, max_length: int) -> list[Question]:
    """The questions of which nothing is cut, whatever candidate stands behind them."""
    encoder = PairEncoder(tokenizer, template)
    return [one for one in questions if encoder.count_cut(_asked(one, ""), max_length=max_length) == (0, 0)]


def _behind_shots(
    encoder: PairEncoder, question: Question, shots: Sequence[Pair], *, number: int, max_length: int
) -> list[Pair]:
    """A question with each candidate, behind as many of the last shots as leave all of it whole."""
    for first in range(len(shots)):
        pairs = _asked(question, before_question(shots[first:]))
        if encoder.count_cut(pairs, max_length=max_length) == (0, 0):
            return pairs
    pairs = _asked(question, "")
    if shots and encoder.count_cut(pairs, max_length=max_length)[0]:
        raise RowError(
            f"question {number}: expected one that fits max_length={max_length} without an example before it, found a "
            "longer one; raise max_length, or leave the question out"
        )
    return pairs


def _asked(question: Question, before: str) -> list[Pair]:
    return [Pair(f"{before}{question.instruction}", candidate) for candidate in question.candidates]


@torch.no_grad()
def likelihoods(model: Any, encoder: PairEncoder, pairs: Sequence[Pair], *, max_length: int) -> Tensor:
    """Mean log-likelihood `(n,)` of the tokens of each response and its end token, given its instruction."""
    rows = encoder.encode(pairs, max_length=max_length)
    width = int(rows.attention_mask.sum(1).max())
    device = next(model.parameters()).device
    ids, mask = rows.input_ids[:, :width].to(device), rows.attention_mask[:, :width].to(device)
    states = backbone(model)(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    row, column = rows.loss_mask[:, 1:width].to(device).nonzero(as_tuple=True)
    logits = widened(head(model)(states[row, column]))
    found = torch.log_softmax(logits, -1).gather(1, ids[row, column + 1][:, None])[:, 0]
    sums = found.new_zeros(len(ids)).index_add(0, row, found)
    return sums / rows.loss_mask[:, 1:width].to(device).sum(1).clamp(min=1)
