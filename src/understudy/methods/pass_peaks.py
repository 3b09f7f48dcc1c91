"""What passes of a model hold at their peak above its weights, predicted from its shape and public lengths.

Counted are the numbers that are kept; what an allocator wastes between them was measured
(benchmarks/two_zone_memory.py).
"""

from __future__ import annotations

from typing import Final

from understudy.compute import Compute
from understudy.models.packed import packed_bytes
from understudy.models.room import FLOAT, width_of
from understudy.models.shape import ModelShape
from understudy.privacy.dpsgd.chunks import LOGITS_AT_ONCE

# What torch loads and sets up with its first operations.
LIBRARIES: Final = 40 << 20
# Characters of a token in English: no tokenizer is read for this.
CHARACTERS: Final = 5
# Copies of the logits of the rows in flight: sorted, summed in float64, drawn from.
_DRAWN: Final = 8
# The part of what a graph would keep of a layer that a pass without one holds.
_PASSING: Final = 0.5
# Copies of the logits that are held at a time where losses are read.
_LOGITS: Final = 2
# The part of a row that is response, of which alone there are logits.
_RESPONSE: Final = 0.5
# Adapters with the state of an optimizer, before and after a step, and a gradient.
_STATES: Final = 8


def drawing_bytes(
    shape: ModelShape,
    compute: Compute,
    rows: int,
    *,
    prompt: int,
    new: int,
    prompts: int | None = None,
    refilled: bool = False,
) -> int:
    """A generation of so many rows at a time: their cache, that of prompts that are read, and logits.

    Args:
        shape: of the model.
        compute: that it was loaded with.
        rows: in flight.
        prompt: tokens of a prompt.
        new: tokens of the longest continuation.
        prompts: that are read together, fewer than rows where they share some; None: as many as rows.
        refilled: whether rows that end make room for others, whose prompts are read beside a full cache.
    """
    together, narrow = rows if prompts is None else prompts, width_of(shape, compute) / FLOAT
    tokens = rows * (prompt + (2 if refilled else 1) * new) + (2 if refilled else 1) * together * prompt
    numbers = narrow * 2 * shape.layers * shape.keys * tokens + _DRAWN * rows * shape.vocabulary
    return LIBRARIES + round(FLOAT * numbers) + packed_bytes(compute, shape.parameters)


def reading_bytes(shape: ModelShape, compute: Compute, rows: int, *, length: int) -> int:
    """Losses of the responses of so many rows in a pass without a graph."""
    tokens, narrow = rows * length, width_of(shape, compute) / FLOAT
    logits = _LOGITS * _at_once(tokens, shape)
    return LIBRARIES + round(FLOAT * (narrow * _PASSING * tokens * shape.kept_per_token + logits))


def exporting_bytes(shape: ModelShape, compute: Compute) -> int:
    """A model in float32 beside its tensors, the file that is made of them and its bytes; weights included.

    A GPU holds the model alone.
    """
    return (4 if compute.device == "cpu" else 1) * FLOAT * shape.parameters


def adapter_numbers(shape: ModelShape, rank: int, *, attention: bool) -> int:
    """Numbers of adapters on all linear layers but the head, or on the attention's projections alone."""
    if not attention:
        return shape.adapter_parameters(rank)
    if not shape.gated:  # GPT-2 has one for queries, keys and values
        return rank * shape.layers * (shape.hidden + shape.queries + 2 * shape.keys)
    return rank * shape.layers * (4 * shape.hidden + 2 * shape.queries + 2 * shape.keys)


def kept_by_adapters(shape: ModelShape, *, attention: bool) -> int:
    """Numbers that the backward pass of a block reads of a token where only adapters are trained."""
    if not attention:
        return shape.kept_per_token
    return 3 * (shape.hidden + shape.queries) + 2 * shape.keys + (3 if shape.gated else 4) * shape.inner


def beside_adapters(shape: ModelShape, compute: Compute) -> float:
    """What a graph keeps of a block over what it keeps in float32: what adapters read stays in that."""
    return (1 + width_of(shape, compute) / FLOAT) / 2


def tuning_bytes(shape: ModelShape, compute: Compute, *, tokens: int, kept: float, adapters: int) -> int:
    """A step of plain training of adapters.

    Args:
        shape: of the model.
        compute: that it was loaded with.
        tokens: of the step.
        kept: numbers of a token in a layer, waste included.
        adapters: numbers that are trained.
    """
    chunk = _LOGITS * _at_once(tokens, shape)
    kept *= beside_adapters(shape, compute)
    return LIBRARIES // 2 + round(FLOAT * (kept * tokens * shape.layers + _STATES * adapters + chunk))


def _at_once(tokens: int, shape: ModelShape) -> int:
    """Logits that are held at a time, of rows whose responses are a part of them."""
    return min(LOGITS_AT_ONCE, round(_RESPONSE * tokens) * shape.vocabulary)
