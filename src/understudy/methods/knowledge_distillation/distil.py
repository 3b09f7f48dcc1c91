"""The server's part as a whole (paper, algorithm 1): from the DP model to ranked pairs, and to a better adapter.

Everything here is post-processing of the DP adapter: it reads that, public text and the professional model.
"""

from __future__ import annotations

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
from understudy.methods.knowledge_distillation.instructions import draw_instructions
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

    Args:
        model: the DP model, or the base to compare with.
        config: the run's settings.
        answers: folder in which answers of an endpoint are kept.
        compute: where the professional model goes.
        progress: called while instructions are drawn, the first half, and while they are answered, the second.
    """
    drawing, answering = halves(progress)
    served = config.professional.url is not None
    professional = model if served else load_professional(config.professional, compute)
    drawn = draw_instructions(model, config, progress=drawing)
    public = compared_with(config.filters)
    kept = drop_near_copies(drawn.texts, most=config.filters.bleu, public=public)
    dropped = {"short": drawn.short, "near copy": len(drawn.texts) - len(kept)}
    cut: dict[str, int] = {}
    texts = [drawn.texts[place] for place in kept]
    if config.filters.judge != "none" and texts:
        judgement = judged(texts, professional, config)
        inside = passed(judgement.probabilities, config.filters, neutral=judgement.neutral)
        cut["requests judged"] = judgement.shortened
        dropped["not of the domain"] = len(texts) - len(inside)
        texts = [texts[place] for place in inside]
    if served:
        responses = request_responses(texts, config, kept=answers, progress=answering)
    else:
        responses = write_responses(texts, professional, config, answering)
        cut["requests answered"] = count_cut_requests(texts, professional, config)
    pairs = [Pair(text, response) for text, response in zip(texts, responses, strict=True) if response.strip()]
    dropped["no response"] = len(texts) - len(pairs)
    table = ranked(pairs, model, config)
    dropped["ranked below"] = len(pairs) - table.num_rows
    encoder = PairEncoder(model.tokenizer, config.template)
    cut["instructions scored"], cut["responses scored"] = encoder.count_cut(pairs, max_length=config.tune.max_length)
    facts = {
        "drawn": {"": drawn.drawn},
        "dropped": {"": dropped},
        "shortfall": {"": config.samples - table.num_rows},
        "cut": {"": cut},
    }
    return Synthesis(table, facts)


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
