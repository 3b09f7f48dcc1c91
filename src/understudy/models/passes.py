"""How many rows of a step go through the model at a time where a GPU computes.

A GPU spends most of a pass of few rows on starting operations, so more rows in a pass make a step faster almost in
proportion. The number follows from public facts: the model, the length of rows, the expected step and the GPU's memory.
What is charged says `auto`, and the device that it stands for is part of what a charge is bound to, with its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from understudy.hardware import memory_for_passes
from understudy.models.shape import ModelShape

Rows = int | Literal["auto"]

# From here on a pass is bound by products, not by starting them.
_TOKENS: Final = 1 << 14
_FLOAT: Final = 4


def rows_on_a_gpu(on_cpu: int, *, expected: float, tokens: int, taken: Callable[[int], int]) -> int:
    """Rows of a pass on this machine's GPUs: those of a CPU, doubled as long as that is faster and has room.

    Args:
        on_cpu: rows that a CPU takes.
        expected: rows of a step.
        tokens: padded length of a row.
        taken: rows -> bytes that a training with so many rows in a pass takes above the loaded model.
    """
    # With more a training would compute its layers twice.
    rows, room = on_cpu, memory_for_passes() // 2
    while 2 * rows <= expected and 2 * rows * tokens <= _TOKENS and taken(2 * rows) <= room:
        rows *= 2
    return rows


def rows_of_adapters(
    asked: Rows, *, on_cpu: int, device: str, shape: ModelShape | None, rank: int, tokens: int, expected: float
) -> int:
    """Rows of a pass of a training that keeps adapters on all linear layers, or fewer.

    Args:
        asked: by the settings: a number holds everywhere.
        on_cpu: what `auto` means on a CPU, and for a model of unknown shape.
        device: type that computes.
        shape: of the base model.
        rank: of the adapters.
        tokens: padded length of a row.
        expected: rows of a step.
    """
    if asked != "auto":
        return asked
    if device != "cuda" or shape is None:
        return on_cpu
    of_a_row = tokens * shape.layers * shape.kept_per_token + shape.adapter_parameters(rank)
    return rows_on_a_gpu(on_cpu, expected=expected, tokens=tokens, taken=lambda rows: _FLOAT * rows * of_a_row)
