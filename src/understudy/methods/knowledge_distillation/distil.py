"""The server's part as a whole (paper, algorithm 1): from the DP model to ranked pairs, and to a better adapter.

Everything here is post-processing of the DP adapter: it reads that, public text and the professional model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.compute import ON_CPU, Compute
from understudy.generation.instructions import Pair, PairEncoder
from understudy.generation.scoring import Floats, sparse_response_losses
from understudy.methods.knowledge_distillation.base import attach_adapter, shared_base, targets_of
from understudy.methods.knowledge_distillation.config import FilterConfig, KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.filters import drop_near_copies, judged, passed
from understudy.methods.knowledge_distillation.instructions import draw_instructions, first_wave
from understudy.methods.knowledge_distillation.public_texts import compared_with
from understudy.methods.knowledge_distillation.ranking import best_first, best_first_within, ifd_scores
from understudy.methods.knowledge_distillation.responses import (
    count_cut_requests,
    load_professional,
    request_responses,
    write_responses,
)
from understudy.models.adapters import Adapter, merge_adapter, put_adapter, take_adapter
from understudy.models.loading import LoadedModel
from understudy.models.tuning import Steps, tune
from understudy.progress import UNKEPT, Course, Progress, halves
from understudy.quantities import rounded_up

# Instructions that are drawn in all, at most, as a multiple of those of the first wave.
_MOST_WAVES = 5

SCHEMA = pa.schema([("instruction", pa.string()), ("response", pa.string()), ("ifd", pa.float64())])


@dataclass(frozen=True)
class Synthesis:
    """Synthetic pairs and what became of the instructions.

    Attributes:
        table: `instruction`, `response` and `ifd`, best first.
        facts: `drawn`, `dropped` by reason, `shortfall` and `cut`, the synthetic texts that were shortened, by where;
            as released as the table.
    """

    table: pa.Table = field(repr=False)
    facts: dict[str, Any] = field(repr=False)


def dp_model(config: KnowledgeDistillationConfig, adapter: Adapter | None, compute: Compute = ON_CPU) -> LoadedModel:
    """The shared base with an adapter merged in; without one, the base itself."""
    base = shared_base(config, compute)
    targets = targets_of(base.model, config.lora)
    return merge_adapter(base, adapter, alpha=config.lora.alpha, targets=targets)


def synthesise(
    model: LoadedModel,
    config: KnowledgeDistillationConfig,
    *,
    answers: Path,
    compute: Compute = ON_CPU,
    progress: Progress | None = None,
) -> Synthesis:
    """Draw instructions, filter them, have them answered, rank the pairs.

    What the filters drop is made up by further waves of instructions, until there are as many pairs as are wanted or
    `_MOST_WAVES` times as many instructions as in the first wave. A share of the likeliest is one of each wave.

    Args:
        model: the DP model, or the base to compare with.
        config: the run's settings.
        answers: folder in which answers of an endpoint are kept.
        compute: where the professional model goes.
        progress: called while instructions are drawn, the first half, and while they are answered, the second; of each
            wave.
    """
    professional = model if _served(config) else load_professional(config.professional, compute)
    done = _Done()
    while count := _next_wave(done, config):
        _wave(done, count, (model, professional), config, answers=answers, progress=progress)
    table = ranked(done.pairs, model, config)
    done.dropped["ranked below"] = len(done.pairs) - table.num_rows
    encoder, width = PairEncoder(model.tokenizer, config.template), config.tune.max_length
    done.cut["instructions scored"], done.cut["responses scored"] = encoder.count_cut(done.pairs, max_length=width)
    facts = {
        "drawn": {"": done.drawn},
        "dropped": {"": dict(done.dropped)},
        "shortfall": {"": config.samples - table.num_rows},
        "cut": {"": dict(done.cut)},
    }
    return Synthesis(table, facts)


@dataclass
class _Done:
    """What the waves so far gave: pairs, the instructions that no later one may repeat, and how many came to what."""

    pairs: list[Pair] = field(default_factory=list, repr=False)
    known: list[str] = field(default_factory=list, repr=False)
    drawn: int = 0
    asked: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)


def _next_wave(done: _Done, config: KnowledgeDistillationConfig) -> int:
    """How many instructions are drawn next: as many as give the missing pairs at the share so far; 0 ends."""
    first = first_wave(config)
    if not done.drawn:
        return first
    missing, share = config.samples - len(done.pairs), max(1, len(done.pairs)) / done.drawn
    return max(0, min(_MOST_WAVES * first - done.drawn, rounded_up(missing / share)))


def _wave(
    done: _Done,
    count: int,
    models: tuple[LoadedModel, LoadedModel],
    config: KnowledgeDistillationConfig,
    *,
    answers: Path,
    progress: Progress | None,
) -> None:
    """Draw `count` further instructions, filter them and have them answered."""
    (model, professional), (drawing, answering) = models, halves(progress)
    drawn = draw_instructions(model, config, count=count, first=done.drawn, progress=drawing)
    public = (*compared_with(config.filters), *done.known)
    texts = [drawn.texts[place] for place in drop_near_copies(drawn.texts, most=config.filters.bleu, public=public)]
    done.drawn += count
    done.known += texts
    done.dropped.update({"short": drawn.short, "near copy": len(drawn.texts) - len(texts)})
    if config.filters.judge != "none" and texts:
        judgement = judged(texts, professional, config)
        inside = passed(judgement.probabilities, config.filters, neutral=judgement.neutral)
        done.cut["requests judged"] += judgement.shortened
        done.dropped["not of the domain"] += len(texts) - len(inside)
        texts = [texts[place] for place in inside]
    if _served(config):
        responses = request_responses(texts, config, kept=answers, first=done.asked, progress=answering)
    else:
        responses = write_responses(texts, professional, config, answering, first=done.asked)
        done.cut["requests answered"] += count_cut_requests(texts, professional, config)
    pairs = [Pair(text, response) for text, response in zip(texts, responses, strict=True) if response.strip()]
    done.asked += len(texts)
    done.pairs += pairs
    done.dropped["no response"] += len(texts) - len(pairs)


def _served(config: KnowledgeDistillationConfig) -> bool:
    return config.professional.url is not None


def ranked(pairs: list[Pair], model: LoadedModel, config: KnowledgeDistillationConfig) -> pa.Table:
    """The best `samples` pairs with their scores."""
    encoder = PairEncoder(model.tokenizer, config.template)
    scores = ifd_scores(pairs, model, encoder=encoder, max_length=config.tune.max_length) if pairs else np.zeros(0)
    order = _order(scores, pairs, config.filters)[: config.samples]
    columns = {
        "instruction": [pairs[place].instruction for place in order],
        "response": [pairs[place].response for place in order],
        "ifd": [float(scores[place]) for place in order],
    }
    return pa.table(columns, schema=SCHEMA)


def _order(scores: Floats, pairs: list[Pair], filters: FilterConfig) -> list[int]:
    if filters.rank == "none":
        return list(range(len(pairs)))
    if filters.rank_within == "all":
        return best_first(scores)
    return best_first_within(scores, [pair.response for pair in pairs])


def improve(
    base: LoadedModel,
    adapter: Adapter | None,
    pairs: list[Pair],
    config: KnowledgeDistillationConfig,
    *,
    course: Course = UNKEPT,
) -> Adapter:
    """Tune the DP adapter on the synthetic pairs, without noise.

    Args:
        base: the shared base model; changed in place.
        adapter: of the client; None: a fresh one.
        pairs: synthetic; without any the adapter stays as it is.
        config: steps, batch, rates.
        course: keeps the state and tells of steps.
    """
    model = attach_adapter(base, config)
    if adapter is not None:
        put_adapter(model, adapter)
    if pairs:
        settings = config.tune
        rows = PairEncoder(base.tokenizer, config.template).encode(pairs, max_length=settings.max_length)
        tune(
            model,
            {"input_ids": rows.input_ids, "attention_mask": rows.attention_mask, "loss_mask": rows.loss_mask},
            sparse_response_losses,
            plan=Steps(
                steps=settings.steps,
                batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
                final_learning_rate=settings.final_learning_rate,
                seed=config.public_seed,
            ),
            course=course,
        )
    return take_adapter(model)
