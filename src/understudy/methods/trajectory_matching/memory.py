"""How many rows of a student's step pass at a time, from public facts.

A pass holds the graph of a gradient and of that gradient's derivative. The number of rows is no part of the charge, but
it changes the rounding. So it does not depend on the machine: a run that continues elsewhere ends in the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.models.shape import ModelShape, model_shape

# Bytes that a pass may take beside the loaded model. More rows in it are hardly faster on a CPU.
_AMPLE: Final = 5 << 29
_FLOAT: Final = 4
# Two ratios: what a second-order graph keeps over what a first-order one does, and resident bytes over kept ones, since
# freed pieces lie between them. Measured with SmolLM2-135M-Instruct (docs/results/trajectory-matching.md).
_SECOND_ORDER: Final = 3.0
_WASTE: Final = 3.3


def resolve(config: TrajectoryMatchingConfig, n: int, label_names: Sequence[str] = ()) -> TrajectoryMatchingConfig:
    """The settings with a number in place of `distil.micro_batch=auto`, by the model's files.

    Args:
        config: names the model.
        n: rows; not used.
        label_names: not used.
    """
    if config.distil.micro_batch != "auto":
        return config
    rows = rows_per_pass(config, model_shape(config.model))
    return config.model_copy(update={"distil": config.distil.model_copy(update={"micro_batch": rows})})


def rows_per_pass(config: TrajectoryMatchingConfig, shape: ModelShape | None) -> int:
    """The greatest power of two that has room, at most the batch; all of the batch where the shape is not known."""
    most, rows = config.distil.batch_size, 1
    if shape is None:
        return most
    while 2 * rows < most and pass_bytes(config, shape, 2 * rows) <= _AMPLE:
        rows *= 2
    return most if pass_bytes(config, shape, most) <= _AMPLE else rows


def pass_bytes(config: TrajectoryMatchingConfig, shape: ModelShape, rows: int) -> int:
    """Predicted peak of a pass above the loaded model."""
    tokens = rows * (config.max_length + config.distil.tokens)
    return round(_WASTE * _SECOND_ORDER * _FLOAT * tokens * shape.layers * shape.kept_per_token)
