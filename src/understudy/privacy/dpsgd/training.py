"""DP-SGD (Abadi et al. 2016, arXiv 1607.00133, Algorithm 1) for one or several gradient streams per batch.

Deviations from the paper: the update is divided by the public expected batch, not the drawn one; Adam
instead of plain descent (post-processing of the noised sum); an empty batch is a step of noise alone;
several streams of one batch, each clipped and noised on its own, are one event with z = (sum z_i^-2)^-1/2.

Masks and noise are functions of the charge and the step, so a checkpoint holds weights, their average where one is
kept, optimizer and step only, and a run that was killed and resumed ends in the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import deterministic

from understudy.allocator import freed_memory_kept
from understudy.compute import copied_to
from understudy.errors import InputError
from understudy.privacy.dpsgd.averaging import Average
from understudy.privacy.dpsgd.chunks import ROWS_IN_FLOATS
from understudy.privacy.dpsgd.per_example import LossFunction, clipped_gradient_sum
from understudy.privacy.dpsgd.plan import DpSgdPlan
from understudy.privacy.dpsgd.sides import Sides, side_by_side
from understudy.privacy.dpsgd.tapping import TappedLayers, frozen, tapped_layers
from understudy.privacy.grid_sum import GridSum
from understudy.privacy.mechanisms import Mechanisms
from understudy.progress import UNKEPT, Course

# From so many trained numbers on, what the system takes to clear memory is felt.
_MANY: Final = 1 << 21

Schedule = Literal["constant", "linear"]


@dataclass(frozen=True)
class Objective:
    """What one stream minimises, over which parameters, and how its noised gradient is applied (Adam).

    Attributes:
        loss: (model, batch) -> losses (batch,), computed with no model but the one that it is given, which may be a
            copy of modules around the same weights. The batch holds the rows of the data tensors, `slot` int64
            (batch,) and `step` int64 (), for public randomness that is a function of them.
        parameters: name -> parameter of the model.
        learning_rate: of Adam.
        schedule: constant, or linear decay to zero after the last step.
        passes: see `clipped_gradient_sum`.
    """

    loss: LossFunction
    parameters: Mapping[str, nn.Parameter]
    learning_rate: float
    schedule: Schedule = "constant"
    passes: int = 1

    def learning_rate_at(self, step: int, steps: int) -> float:
        """The learning rate of step 0, 1, ..., steps - 1."""
        return self.learning_rate * (1.0 - step / steps if self.schedule == "linear" else 1.0)


def train(
    model: nn.Module,
    *,
    plan: DpSgdPlan,
    objectives: Mapping[str, Objective],
    data: Mapping[str, Tensor],
    mechanisms: Mechanisms,
    micro_batch: int,
    averaging: float = 0.0,
    course: Course = UNKEPT,
) -> None:
    """Train `model` in place under `plan`; resuming from a checkpoint changes no byte of the result.

    *Guarantee*: every update is a function of `mechanisms` outputs alone; all of them together are `plan.event`
    (unit example, relation replace_special), for losses in which row b depends on row b only.

    Args:
        model: dropout zero; rows do not influence each other.
        plan: public.
        objectives: stream name -> objective. The gradients of all streams are taken at the same weights and
            applied in the plan's order.
        data: tensors of n rows, private, of fixed shapes; `valid` bool (n,) is false for null rows.
        mechanisms: of the charge that paid for `plan.event`.
        micro_batch: rows per forward pass, public, of which two threads take a half each (`sides`); the last one of a
            step is filled with rows that do not count.
        averaging: decay of the average over the steps that the model ends with, 0 to below 1; 0 ends with the last
            step's weights.
        course: keeps the state and tells of steps.

    Raises:
        InputError: before anything private is read, when the parts do not fit together.
    """
    _check(model, plan, objectives, data, micro_batch)
    if not 0 <= averaging < 1:
        raise InputError(f"averaging={averaging}: expected a decay of 0 to below 1; 0 averages nothing")
    device = _device(objectives)
    state = _State(objectives, averaging)
    start = state.restore(course.resumed())
    trained = [parameter for objective in objectives.values() for parameter in objective.parameters.values()]
    many = sum(parameter.numel() for parameter in trained) >= _MANY
    with (
        freed_memory_kept() if many else nullcontext(),
        _deterministic(),
        side_by_side(model, trained, rows=micro_batch) as sides,
    ):
        tapped = {name: _tapped(sides, objective) for name, objective in objectives.items()}
        for step in range(start, plan.steps):
            mask = mechanisms.poisson(step=step, n=plan.n, probability=plan.sampling_probability, purpose=plan.name)
            batches = list(_micro_batches(data, mask, step, size=micro_batch, device=device))
            gradients = {}
            for stream in plan.streams:
                # No name for the query: it is as large as the weights twice over, and nobody reads it again.
                gradients[stream.name] = mechanisms.gaussian_sum(
                    _clipped_sum(sides, tapped[stream.name], objectives[stream.name], batches, stream.l2_clip_norm),
                    sensitivity=stream.l2_clip_norm,
                    noise_multiplier=stream.noise_multiplier,
                    step=step,
                    purpose=f"{plan.name}/{stream.name}",
                )
            for name in list(gradients):
                rate = objectives[name].learning_rate_at(step, plan.steps)
                state.update(name, gradients.pop(name), learning_rate=rate, divisor=plan.expected_batch)
            state.average.add(step)
            course.stepped(step + 1, plan.steps, state.tensors)
    state.average.put_in_place()


def _micro_batches(
    data: Mapping[str, Tensor], mask: Tensor, step: int, *, size: int, device: torch.device
) -> Iterator[dict[str, Tensor]]:
    """The drawn rows in slot order, in batches of one size; rows that fill the last one are not valid."""
    slots = mask.nonzero().flatten()
    for start in range(0, len(slots), size):
        chunk = slots[start : start + size]
        missing = size - len(chunk)
        batch = {name: copied_to(_filled_up(name, values[chunk], missing), device) for name, values in data.items()}
        slot = functional.pad(chunk, (0, missing))
        yield {**batch, "slot": copied_to(slot, device), "step": torch.tensor(step, device="cpu")}


def _filled_up(name: str, rows: Tensor, missing: int) -> Tensor:
    """Rows, and behind them so many of no unit: zeros that are not valid, with a mask that attends to something."""
    blank = rows.new_full((missing, *rows.shape[1:]), int(name == "attention_mask"))
    return torch.cat([rows, blank])


# By the id of a copy of the model.
_Tapped = Mapping[int, TappedLayers]


def _tapped(sides: Sides, objective: Objective) -> _Tapped:
    """What is tapped in each copy of the model: looked for once in a training."""
    return {id(model): tapped_layers(model, objective.parameters) for model, _ in sides.parts}


def _clipped_sum(
    sides: Sides, tapped: _Tapped, objective: Objective, batches: list[dict[str, Tensor]], l2_clip_norm: float
) -> dict[str, Tensor]:
    """The stream's query in steps of the grid: zeros for an empty batch."""
    total = GridSum(sensitivity=l2_clip_norm, like=objective.parameters)
    with frozen(tapped[id(sides.model)].held):
        for some in _in_floats(batches, sides):
            parts: list[tuple[dict[str, Tensor], int]] = []
            for batch in some:
                before = parts.pop() if len(sides.parts) == 1 and parts else ({}, 0)
                parts = sides.apply(partial(_part, objective, tapped, batch, l2_clip_norm, before))
            while parts:
                part, units = parts.pop(0)
                total.add(part, units=units)
                del part
    return total.steps()


def _in_floats(batches: list[dict[str, Tensor]], sides: Sides) -> Iterator[list[dict[str, Tensor]]]:
    """Runs of micro-batches whose rows may be added up in floats before they are rounded to the grid.

    A sum as large as the weights is made, widened and added once a run. Where two threads share a micro-batch there is
    little to be gained, because little is trained.
    """
    rows = max((len(batch["valid"]) for batch in batches), default=1)
    size = max(ROWS_IN_FLOATS // rows, 1) if len(sides.parts) == 1 else 1
    return (batches[start : start + size] for start in range(0, len(batches), size))


def _part(
    objective: Objective,
    tapped: _Tapped,
    batch: Mapping[str, Tensor],
    l2_clip_norm: float,
    before: tuple[dict[str, Tensor], int],
    model: nn.Module,
    rows: slice,
) -> tuple[dict[str, Tensor], int]:
    """The clipped sum of some rows of a micro-batch, added to an earlier one, and of how many; null ones count."""
    some = {name: value[rows] if value.ndim else value for name, value in batch.items()}
    found = clipped_gradient_sum(
        model,
        tapped[id(model)],
        objective.loss,
        some,
        l2_clip_norm=l2_clip_norm,
        valid=some["valid"],
        passes=objective.passes,
        added_to=before[0],
    )
    return found, before[1] + len(some["valid"])


class _State:
    """Weights, their average and one Adam per stream: everything a checkpoint holds."""

    def __init__(self, objectives: Mapping[str, Objective], averaging: float) -> None:
        self._objectives = objectives
        self._weights = {n: p for o in objectives.values() for n, p in o.parameters.items()}
        self.average = Average(self._weights, decay=averaging)
        self._optimizers = {
            name: torch.optim.Adam(list(objective.parameters.values()), lr=objective.learning_rate)
            for name, objective in objectives.items()
        }

    def update(self, stream: str, gradient: Mapping[str, Tensor], *, learning_rate: float, divisor: float) -> None:
        """One Adam step on the noised sum divided by the public expected batch."""
        optimizer = self._optimizers[stream]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        for name, parameter in self._objectives[stream].parameters.items():
            parameter.grad = (gradient[name] / divisor).to(parameter.dtype)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """`weight/NAME`, `average/NAME` and `adam/STREAM/NAME/KEY`, the last only from the first step on."""
        found = {f"weight/{name}": parameter.detach() for name, parameter in self._weights.items()}
        found |= self.average.tensors()
        for stream, optimizer in self._optimizers.items():
            for name, parameter in self._objectives[stream].parameters.items():
                for key, value in optimizer.state[parameter].items():
                    found[f"adam/{stream}/{name}/{key}"] = value
        return found

    def restore(self, found: tuple[int, dict[str, Tensor]] | None) -> int:
        """Take over a kept state; returns the number of completed steps."""
        if found is None:
            return 0
        done, tensors = found
        with torch.no_grad():
            for name, parameter in self._weights.items():
                parameter.copy_(tensors[f"weight/{name}"])
        self.average.restore(tensors)
        for stream, optimizer in self._optimizers.items():
            for name, parameter in self._objectives[stream].parameters.items():
                moments = {
                    key: tensors[f"adam/{stream}/{name}/{key}"].to(parameter.device)
                    for key in ("exp_avg", "exp_avg_sq")
                }
                # Adam counts its steps on the CPU.
                optimizer.state[parameter] = {"step": tensors[f"adam/{stream}/{name}/step"], **moments}
        return done


def _check(
    model: nn.Module,
    plan: DpSgdPlan,
    objectives: Mapping[str, Objective],
    data: Mapping[str, Tensor],
    micro_batch: int,
) -> None:
    names = [stream.name for stream in plan.streams]
    if sorted(objectives) != sorted(names):
        raise InputError(f"objectives={sorted(objectives)}: expected one for each of the streams {names}")
    valid = data.get("valid")
    if valid is None or valid.dtype != torch.bool or {len(values) for values in data.values()} != {plan.n}:
        shapes = {name: tuple(values.shape) for name, values in data.items()}
        raise InputError(f"expected tensors of n={plan.n} rows, `valid` bool among them, found {shapes}")
    if micro_batch < 1:
        raise InputError(f"micro_batch={micro_batch}: expected at least 1")
    seen: dict[str, nn.Parameter] = {}
    for objective in objectives.values():
        for name, parameter in objective.parameters.items():
            if seen.setdefault(name, parameter) is not parameter:
                raise InputError(f"two different parameters are called {name!r}")
    if any(isinstance(m, nn.Dropout) and m.training and m.p > 0 for m in model.modules()):
        raise InputError("expected a model without dropout: set it to zero or call model.eval()")


def _device(objectives: Mapping[str, Objective]) -> torch.device:
    return next(p.device for objective in objectives.values() for p in objective.parameters.values())


@contextmanager
def _deterministic() -> Iterator[None]:
    """Operations that repeat bit for bit; one without such a form is an error."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    # Only a debugging aid: nothing here reads memory before it is written.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
