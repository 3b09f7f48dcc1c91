"""A pass over made-up rows before anything is charged: only that shows what a model's layers do with examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from understudy.errors import InputError
from understudy.privacy.dpsgd.per_example import LossFunction, clipped_gradient_sum


@contextmanager
def told_of_model(name: str, advice: str) -> Iterator[None]:
    """Within it whatever a model raises on made-up rows is told as a model that does not fit.

    Args:
        name: of the model.
        advice: what to do instead.

    Raises:
        InputError: something was raised.
    """
    try:
        yield
    except InputError as error:
        raise InputError(f"model={name}: {error}; {advice}") from None
    # Whatever a foreign architecture raises.
    except Exception as error:
        raise InputError(
            f"model={name}: expected a model whose layers give each example a gradient of its own, found "
            f"{type(error).__name__} on two made-up ones: {' '.join(str(error).split())[:200]}; {advice}"
        ) from error


def check_gradients(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    loss_fn: LossFunction,
    batch: Mapping[str, Tensor],
    *,
    valid: Tensor,
    l2_clip_norm: float,
    name: str,
    advice: str,
) -> None:
    """Take the clipped gradients of made-up rows, as a step of the training will.

    Args:
        model: what is trained.
        parameters: as of `clipped_gradient_sum`, as are the loss, the batch, `valid` and the clip norm.
        loss_fn: of the training.
        batch: at least two rows: of one alone every layer keeps its examples apart.
        valid: of the rows.
        l2_clip_norm: C.
        name: of the model.
        advice: what to do instead.

    Raises:
        InputError: a layer raises on them, or mixes them, as in models whose experts read tokens of all rows.
    """
    with told_of_model(name, advice):
        clipped_gradient_sum(model, parameters, loss_fn, batch, l2_clip_norm=l2_clip_norm, valid=valid)
