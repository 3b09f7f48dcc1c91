"""How many rows are drawn at a time where a GPU computes.

A GPU spends nearly all of a step of few rows on starting operations: at the shape of SmolLM2-135M a token of 2,048 rows
takes less than twice as long as one of 128 (docs/results/performance.md). So rows are doubled while they have room. The
number follows from public facts: the model, the lengths, and the GPU's memory, which is part of a kind of machine.
"""

from __future__ import annotations

from typing import Any, Final

from understudy.hardware import memory_for_passes
from understudy.models.passes import Rows
from understudy.models.shape import ModelShape, shape_of

# From here on a step is bound by products, not by starting them.
_MOST: Final = 2048
_FLOAT: Final = 4
# Numbers in an attention head, or more; narrower ones make a prompt's weights of attention more.
_HEAD: Final = 64


def rows_in_flight(model: Any, asked: Rows, *, on_cpu: int, prompt: int, new: int) -> int:
    """Rows that a generation holds at a time.

    Args:
        model: that draws, where it computes.
        asked: by the settings: a number holds everywhere.
        on_cpu: what `auto` means on a CPU, and for a model of unknown shape.
        prompt: tokens of the longest prompt.
        new: tokens of the longest continuation.
    """
    if asked != "auto":
        return asked
    shape = shape_of(model.config.to_dict(), parameters=0) if model.device.type == "cuda" else None
    if shape is None:
        return on_cpu
    return doubled(on_cpu, bytes_of_a_row=drawing_bytes(shape, prompt=prompt, new=new))


def doubled(on_cpu: int, *, bytes_of_a_row: int) -> int:
    """Rows on this machine's GPUs: those of a CPU, doubled as long as that is faster and takes half of the memory."""
    rows, room = on_cpu, memory_for_passes() // 2
    while 2 * rows <= _MOST and 2 * rows * bytes_of_a_row <= room:
        rows *= 2
    return rows


def drawing_bytes(shape: ModelShape, *, prompt: int, new: int) -> int:
    """Predicted peak of a row above the loaded model, if every row has a prompt of its own.

    Keys and values are counted twice, for rows that end make room for others and move; a layer's activations of the
    prompt and its weights of attention once, with the keys of every query head; logits with what sorts and sums them.
    """
    cache = 2 * shape.layers * shape.keys * (prompt + 2 * new)
    attention = 2 * shape.queries * (prompt + new) + 2 * -(-shape.queries // _HEAD) * prompt**2
    return _FLOAT * (2 * cache + attention + prompt * shape.kept_per_token + 16 * shape.vocabulary)
