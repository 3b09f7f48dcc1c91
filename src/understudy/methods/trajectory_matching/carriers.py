"""The rows that may carry pseudo tokens, encoded, and the choice among them.

Real rows, public rows, or public instructions that the public model answered: the last two are never private, whatever
the experts saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from understudy.compute import ON_CPU, Compute, copied_to
from understudy.data.instructions import INSTRUCTION_SCHEMA
from understudy.generation.config import SamplingConfig
from understudy.generation.instructions import LEAST_ROOM, Pair, PairEncoder
from understudy.generation.prompts import special_token_ids
from understudy.generation.rows import rows_in_flight
from understudy.generation.sampling import sample
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.less import less_scores
from understudy.methods.trajectory_matching.selection import (
    bm25_scores,
    dsir_scores,
    free_rows,
    highest,
    random_rows,
    rows_wanted,
)
from understudy.methods.trajectory_matching.student import Rows, Student, generator_seed
from understudy.models.loading import LoadedModel, load_base, load_model
from understudy.progress import CheckpointSink, Progress

_BATCH = 16


def encoded(pairs: Sequence[Pair], tokenizer: Any, config: TrajectoryMatchingConfig) -> Rows:
    """Pairs as the student reads them; `table_of` has put a carrier's system text into its instruction."""
    encoder = PairEncoder(tokenizer, config.template)
    found = encoder.encode(pairs, max_length=config.max_length)
    place = encoder.opening_length if config.distil.place == "instruction" else 0
    return Rows(found.input_ids, found.attention_mask, found.loss_mask, place)


def answered(
    base: LoadedModel, pairs: Sequence[Pair], config: TrajectoryMatchingConfig, *, progress: Progress | None = None
) -> list[Pair]:
    """The same instructions, answered by the public model; where it says nothing, the given response stays.

    An answer may take `max_length` tokens, more than any row has room for. One that has not ended by then stays a text,
    which `encoded` cuts like every long response: without an end token, so that no student learns to stop there.
    """
    encoder = PairEncoder(base.tokenizer, config.template)
    ids, mask, _ = encoder.prompts(pairs, max_length=config.max_length - LEAST_ROOM)
    device = base.model.device
    written, done = list(pairs), 0
    for rows, limit in _batches(mask.sum(1), base, config):
        width = int(mask[rows].sum(1).max())
        drawn = sample(
            base.model,
            (copied_to(ids[rows, -width:], device), copied_to(mask[rows, -width:], device)),
            config=SamplingConfig(max_new_tokens=limit),
            seeds=[generator_seed((config.public_seed << 32) + row) for row in rows],
            eos=encoder.end,
            forbidden=special_token_ids(base.tokenizer),
        )
        for row, tokens in zip(rows, drawn, strict=True):
            written[row] = replace(pairs[row], response=encoder.decode(tokens) or pairs[row].response)
        done += len(rows)
        if progress is not None:
            progress(done, len(pairs))
    return written


def _batches(lengths: Tensor, base: LoadedModel, config: TrajectoryMatchingConfig) -> Iterator[tuple[list[int], int]]:
    """Rows that are answered together, and how many tokens each may take.

    A row's limit follows from its own prompt's length, and only rows of one limit go together: an answer is the same
    whatever stands beside it. It is `max_length`, or what the context holds behind the prompt.
    """
    context = getattr(base.model.config, "max_position_embeddings", None)
    room = torch.full_like(lengths, config.max_length) if context is None else context - lengths
    limits = room.clamp(max=config.max_length)
    for limit in limits.unique().tolist():
        together = rows_in_flight(base.model, "auto", on_cpu=_BATCH, prompt=int(lengths.max()), new=limit)
        for rows in torch.split((limits == limit).nonzero()[:, 0], together):
            yield rows.tolist(), limit


def load_selector(config: TrajectoryMatchingConfig, compute: Compute = ON_CPU) -> LoadedModel:
    """The model whose gradients `less` compares: that of `selection.model`, or the run's own.

    It reads the rows in its own tokens, so it may be of another family than the distiller.

    Raises:
        InputError: as `load_model`.
    """
    named = config.selection
    if not named.model:
        return load_base(config, compute)
    return load_model(named.model, digest=named.model_digest, compute=compute)


def choose(
    pairs: Sequence[Pair],
    target: Sequence[Pair] | None,
    config: TrajectoryMatchingConfig,
    *,
    student: Student | None = None,
    tokenizer: Any = None,
    checkpoint: CheckpointSink | None = None,
    progress: Progress | None = None,
) -> list[int]:
    """Which pairs carry pseudo tokens, in ascending order.

    Args:
        pairs: to choose from.
        target: that the chosen should resemble; None sets some of the pairs aside for it.
        config: strategy and number.
        student: needed by `less`; of the selector.
        tokenizer: needed by `less`; of the selector.
        checkpoint: of `less`; the others take next to no time.
        progress: of `less`.

    Raises:
        InputError: more are wanted than can be chosen from.
    """
    settings = config.selecting
    generator = np.random.default_rng(config.public_seed)
    if settings.strategy == "random":
        return random_rows(len(pairs), rows_wanted(settings, len(pairs)), generator=generator)
    aside: list[int] = []
    if target is None:
        aside = random_rows(len(pairs), len(pairs) - free_rows(settings, len(pairs)), generator=generator)
        target = [pairs[row] for row in aside]
    places = sorted(set(range(len(pairs))) - set(aside))
    free, like = [pairs[row] for row in places], list(target)[: settings.validation]
    wanted = rows_wanted(settings, len(free))
    if settings.strategy == "less":
        assert student is not None
        rows, resembled = (encoded(some, tokenizer, config) for some in (free, like))
        scores = less_scores(student, rows, resembled, config, checkpoint=checkpoint, progress=progress).numpy()
    elif settings.strategy == "bm25":
        scores = bm25_scores([_text(pair) for pair in free], [_text(pair) for pair in like])
    else:
        texts = [_text(pair) for pair in free]
        scores = dsir_scores(texts, [_text(pair) for pair in like], buckets=settings.buckets, generator=generator)
    return [places[row] for row in highest(scores, wanted)]


def table_of(pairs: Sequence[Pair]) -> pa.Table:
    """Pairs as a table of instructions; a system text stands before its instruction."""
    instructions = [f"{pair.system}\n\n{pair.instruction}".strip() for pair in pairs]
    return pa.table([instructions, [pair.response for pair in pairs]], schema=INSTRUCTION_SCHEMA)


def _text(pair: Pair) -> str:
    return f"{pair.instruction}\n{pair.response}"
