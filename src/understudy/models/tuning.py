"""Normal fine-tuning of adapters: AdamW on a cosine, the same bytes when it was killed and goes on. No noise, no DP."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from understudy.compute import copied_to
from understudy.errors import InputError
from understudy.frozen import Frozen
from understudy.models.lora import trainable_parameters
from understudy.progress import UNKEPT, Course

BatchLoss = Callable[[Any, Mapping[str, Tensor]], Tensor]


class Steps(Frozen):
    """How far and how fast.

    Attributes:
        steps: in all.
        batch_size: rows per step.
        learning_rate: of AdamW at the first step.
        final_learning_rate: at the last one, by a cosine.
        seed: of the order of rows; public.
    """

    steps: int
    batch_size: int
    learning_rate: float
    final_learning_rate: float
    seed: int

    def learning_rate_at(self, step: int) -> float:
        """Of step 0, 1, ..., steps - 1."""
        done = step / max(self.steps - 1, 1)
        return self.final_learning_rate + (self.learning_rate - self.final_learning_rate) * 0.5 * (
            1 + math.cos(math.pi * done)
        )

    def rows_at(self, step: int, count: int) -> Tensor:
        """Row numbers of a step: passes over all rows, each in an order of its own."""
        places = range(step * self.batch_size, (step + 1) * self.batch_size)
        orders = {turn: self._order(turn, count) for turn in {place // count for place in places}}
        return torch.tensor([orders[place // count][place % count] for place in places], device="cpu")

    def _order(self, turn: int, count: int) -> list[int]:
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + turn) % 2**63)
        found: list[int] = torch.randperm(count, generator=generator).tolist()
        return found


def tune(
    model: Any,
    data: Mapping[str, Tensor],
    loss: BatchLoss,
    *,
    plan: Steps,
    course: Course = UNKEPT,
) -> None:
    """Train what is trainable of `model`, in place.

    Args:
        model: in eval mode, dropout zero.
        data: tensors of n rows each, public or released.
        loss: (model, batch of rows) -> losses (batch,), of which the mean is minimised.
        plan: steps, batch, rates.
        course: keeps the state and tells of steps.

    Raises:
        InputError: there is no row.
    """
    count = len(next(iter(data.values())))
    if count == 0:
        raise InputError("expected rows to fine-tune on, found none")
    parameters = trainable_parameters(model)
    optimizer = torch.optim.AdamW(list(parameters.values()), lr=plan.learning_rate)
    start = _restore(parameters, optimizer, course.resumed())
    device = next(iter(parameters.values())).device
    with _deterministic():
        for step in range(start, plan.steps):
            rows = plan.rows_at(step, count)
            batch = {name: copied_to(values[rows], device) for name, values in data.items()}
            for group in optimizer.param_groups:
                group["lr"] = plan.learning_rate_at(step)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss(model, batch).mean())
            optimizer.step()
            course.stepped(step + 1, plan.steps, lambda: _state(parameters, optimizer))
    optimizer.zero_grad(set_to_none=True)


def _state(parameters: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        found[f"weight/{name}"] = parameter.detach()
        for key, value in optimizer.state[parameter].items():
            found[f"adam/{key}/{name}"] = value
    return found


def _restore(
    parameters: Mapping[str, Any], optimizer: torch.optim.Optimizer, found: tuple[int, dict[str, Tensor]] | None
) -> int:
    """Take over a kept state; returns the number of completed steps."""
    if found is None:
        return 0
    done, tensors = found
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"weight/{name}"])
            moments = {key: tensors[f"adam/{key}/{name}"].to(parameter.device) for key in ("exp_avg", "exp_avg_sq")}
            # Adam counts its steps on the CPU.
            optimizer.state[parameter] = {"step": tensors[f"adam/step/{name}"], **moments}
    return done


@contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
