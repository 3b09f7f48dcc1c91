"""Which raw instructions are kept (paper, section 3.3): no near-copies, and only what belongs to the domain.

Near-copies are found by sentence BLEU (sacrebleu) among the synthetic instructions and against public ones. Whether an
instruction belongs to the domain is judged by the professional model's probability of yes over yes and no, not by a
search for words in what it writes.
*Deviations*: the paper's comparison with the private instructions is left out, because it is not post-processing. If no
threshold is given, a share of the instructions is kept, those that are likeliest of the domain. With a threshold a
model that leans to no would leave none of them (SmolLM2-135M-Instruct says yes with a probability of 0.2 to 0.4 to
nearly every request).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from sacrebleu.metrics import BLEU

from understudy.errors import InputError
from understudy.generation.instructions import LEAST_ROOM, Pair, PairEncoder
from understudy.generation.questions import context_for_questions, fitted_question
from understudy.generation.scoring import Floats, preferences
from understudy.methods.knowledge_distillation.config import FilterConfig, KnowledgeDistillationConfig
from understudy.models.loading import LoadedModel
from understudy.quantities import rounded_up

_YES = ("yes", "Yes", "YES", " yes", " Yes", " YES")
_NO = ("no", "No", "NO", " no", " No", " NO")
NEUTRAL = "N/A"
_ROWS = 32  # questions read at a time


def drop_near_copies(texts: Sequence[str], *, most: float, public: Sequence[str] = ()) -> list[int]:
    """Places of the texts whose BLEU to every text kept before them, and to every public one, is at most `most`.

    Args:
        texts: in the order in which they were drawn.
        most: 0 to 100.
        public: texts to compare with too.
    """
    metric = BLEU(effective_order=True)
    kept: list[int] = []
    known = [(text, _words(text)) for text in public]
    for place, text in enumerate(texts):
        words = _words(text)
        # Texts that share no word have BLEU 0.
        if all(_bleu(metric, text, other) <= most for other, others in known if words & others):
            kept.append(place)
            known.append((text, words))
    return kept


def _words(text: str) -> frozenset[str]:
    return frozenset(text.lower().split())


def _bleu(metric: BLEU, text: str, reference: str) -> float:
    return float(metric.sentence_score(text, [reference]).score)


@dataclass(frozen=True)
class Judgement:
    """What the judge says of some instructions.

    Attributes:
        probabilities: that each belongs to the domain, `(n,)`.
        neutral: that of a request without content.
        shortened: how many instructions were shortened so that the question fits the judge's context.
    """

    probabilities: Floats
    neutral: float
    shortened: int


def judged(texts: Sequence[str], judge: LoadedModel, config: KnowledgeDistillationConfig) -> Judgement:
    """Ask whether each instruction, and a request without content, belongs to the domain.

    Args:
        texts: instructions.
        judge: the professional model, or the base where the professional one is served.
        config: domain, template, batch.

    Raises:
        InputError: the judge cannot tell yes from no by their first tokens, or the question does not fit its context.
    """
    yes, no = answer_tokens(judge)
    encoder = PairEncoder(judge.tokenizer, config.professional.template)
    context = context_for_questions(judge)
    write = partial(question, about=config.about)
    asked = [fitted_question(write, [text], encoder, max_length=context) for text in (*texts, NEUTRAL)]
    ids, mask, _ = encoder.prompts([Pair(text) for text, _ in asked], max_length=context)
    at_once = config.instructions.batch_size
    rows = _ROWS if at_once == "auto" else at_once
    found = preferences(judge.model, (ids, mask), first=yes, second=no, batch_size=rows)
    return Judgement(found[:-1], float(found[-1]), sum(shortened for _, shortened in asked))


def check_question(judge: LoadedModel, config: KnowledgeDistillationConfig) -> None:
    """Refuse a judge that could not be asked.

    Raises:
        InputError: it cannot tell yes from no by their first tokens, or the question does not fit its context.
    """
    answer_tokens(judge)
    context = context_for_questions(judge)
    least = question(NEUTRAL * LEAST_ROOM, about=config.about)
    if not PairEncoder(judge.tokenizer, config.professional.template).fits(least, max_length=context):
        raise InputError(
            f"filters.judge=professional: expected a context with room for the question {least!r}, found one of "
            f"{context} tokens in {judge.name}; shorten about, use filters.judge=none, or choose another model"
        )


def question(text: str, *, about: str) -> str:
    """What the judge is asked."""
    subject = f"a clear request about {about}" if about.strip() else "a clear request"
    return f"Request: {text}\nIs this {subject}? Answer yes or no."


def answer_tokens(judge: LoadedModel) -> tuple[list[int], list[int]]:
    """First tokens of yes and of no, however they are written; those of both count for neither.

    Raises:
        InputError: one of them has no first token of its own.
    """
    found = []
    for forms in (_YES, _NO):
        encoded = (judge.tokenizer.encode(form, add_special_tokens=False, verbose=False) for form in forms)
        found.append({ids[0] for ids in encoded if ids})
    both = found[0] & found[1]
    yes, no = (sorted(side - both) for side in found)
    if not yes or not no:
        raise InputError(
            f"professional.model={judge.name}: its tokenizer gives yes and no the same first token, so it cannot "
            "judge; use filters.judge=none or another model"
        )
    return yes, no


def passed(probabilities: Floats, settings: FilterConfig, *, neutral: float) -> list[int]:
    """Places of the instructions that are judged to belong to the domain, in their order.

    Args:
        probabilities: of belonging to it.
        settings: share or threshold.
        neutral: probability of a request without content.

    >>> passed(np.array([0.1, 0.3, 0.2, 0.3]), FilterConfig(share=0.5), neutral=0.4)
    [1, 3]
    """
    if settings.threshold is None:
        count = rounded_up(settings.share * len(probabilities))
        return sorted(int(place) for place in np.argsort(-probabilities, kind="stable")[:count])
    least = neutral if settings.threshold == "neutral" else settings.threshold
    return [int(place) for place in np.flatnonzero(probabilities > least)]
