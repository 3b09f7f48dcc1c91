"""What each phase of a run holds at its peak, predicted from public facts; a run that does not fit is refused.

Nothing here depends on rows, and nothing of a run depends on what is predicted. Passes are counted in numbers that
autograd keeps, per token and layer; what an allocator wastes between them was measured (benchmarks/matching_memory.py).
Encoded rows are left out: 17 bytes for each token that is read of a row.
"""

from __future__ import annotations

from typing import Final

from understudy.compute import Compute
from understudy.errors import InputError
from understudy.hardware import chosen
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.memory import pass_bytes
from understudy.models import room
from understudy.models.packed import packed_bytes
from understudy.models.room import FLOAT, weights_bytes, width_of
from understudy.models.shape import ModelShape, model_shape
from understudy.privacy.dpsgd.chunks import LOGITS_AT_ONCE
from understudy.settings import settings

# What torch loads and sets up with its first operations.
_LIBRARIES: Final = 40 << 20
# Resident over kept bytes of a first-order pass with adapters: of DP-SGD, of one plain training, and of several in one
# process, between whose pieces more is left free.
_WASTE_OF_ADAPTERS: Final = 1.4
_WASTE_OF_PLAIN: Final = 1.3
_WASTE_OF_TUNING: Final = 1.55
# Numbers in an attention head.
_HEAD: Final = 64
# The part of a row that is response, of which alone there are logits; and their copies, with a graph and without.
_RESPONSE: Final = 0.5
_LOGITS: Final = 3
# Adapters with the state of an optimizer, before and after a step, and a gradient.
_STATES: Final = 8
# Rows that the public model answers at a time on a CPU, copies of their logits, and held-out rows read at a time.
_ANSWERED: Final = 16
_SORTED: Final = 4
_MEASURED: Final = 16
# Pseudo tokens whose distances to all tokens are held at a time.
_COMPARED: Final = 256

# Setting -> the value that takes least memory, in the order in which they are named.
LOWEST: Final = {
    "distil.micro_batch": 1,
    "experts.micro_batch": 1,
    "experts.batch_size": 1,
    "tuning.batch_size": 1,
    "max_length": 16,
    "experts.lora_rank": 1,
    "selection.model": "",
    "tuning.transfer": None,
}


def check_fits(config: TrajectoryMatchingConfig) -> None:
    """Refuse a run that the machine's memory cannot hold, by its models' files alone.

    Raises:
        InputError: with what to lower.
    """
    room.check_fits(config, phases, LOWEST)


def phases(config: TrajectoryMatchingConfig, shape: ModelShape, *, compute: Compute | None = None) -> dict[str, int]:
    """Bytes at the peak of each phase, weights included.

    Args:
        config: of the run.
        shape: of the base model.
        compute: what tasks compute on; None asks the machine.
    """
    compute = compute or chosen()
    transfer, selector = (_named(name) for name in (config.tuning.transfer, config.selection.model))
    weights, of_transfer = weights_bytes(shape, compute), 0 if transfer is None else weights_bytes(transfer, compute)
    named = [one.parameters for one in (transfer, selector) if one is not None]
    twice = [shape.parameters] if config.experts.private else []
    apart = 1 if compute.device != "cpu" else min(settings().processes, config.experts.count)
    tuned = max(tuning_bytes(config, one) for one in (shape, transfer or shape))
    found = {
        "the experts": apart * (weights + expert_bytes(config, shape)),
        "the distillation": weights + distillation_bytes(config, shape, compute),
        "the tuning that measures": weights + of_transfer + tuned,
    }
    if compute.device == "cpu":  # a GPU does not hold what is checked, in float32 on the CPU
        found["the checks before a run"] = _LIBRARIES + FLOAT * (shape.parameters + max([0, *named, *twice]))
    if config.carrier == "written":
        found["the written carriers"] = weights + answering_bytes(config, shape, compute)
    if config.selection.strategy == "less":
        by = selector or shape
        found["the selection of rows"] = weights_bytes(by, compute) + selection_bytes(config, by)
    return found


def _named(name: str | None) -> ModelShape | None:
    """The shape of a further model; None without one, or where the check of that model will say what is wrong."""
    try:
        return model_shape(name) if name else None
    except InputError:
        return None


def expert_bytes(config: TrajectoryMatchingConfig, shape: ModelShape) -> int:
    """A step of an expert's training above the loaded model; by DP-SGD where it is private."""
    experts = config.experts
    if not experts.private:
        return first_order_bytes(config, shape, experts.batch_size)
    rows, adapters = experts.micro_batch, shape.adapter_parameters(experts.lora_rank)
    tokens = rows * config.max_length
    chunk = 2 * min(LOGITS_AT_ONCE, tokens * shape.vocabulary)
    kept = _WASTE_OF_ADAPTERS * tokens * shape.layers * shape.kept_per_token
    return _LIBRARIES + FLOAT * (round(kept) + (rows + _STATES) * adapters + chunk)


def first_order_bytes(
    config: TrajectoryMatchingConfig, shape: ModelShape, rows: int, tokens: int = 0, waste: float = _WASTE_OF_PLAIN
) -> int:
    """A step of plain training of adapters above the loaded model, behind so many pseudo tokens a row."""
    length, adapters = config.max_length + tokens, shape.adapter_parameters(config.experts.lora_rank)
    kept = waste * rows * length * shape.layers * (_kept(shape) + _attended(shape, length))
    return _LIBRARIES + FLOAT * (round(kept) + _LOGITS * _logits(config, shape, rows) + _STATES * adapters)


def _kept(shape: ModelShape) -> int:
    """Numbers of a token in a layer; GPT-2 has its activation in parts, of which two more are kept."""
    return shape.kept_per_token + (0 if shape.gated else 2 * shape.inner)


def _attended(shape: ModelShape, length: int) -> int:
    """What plain attention keeps of a token besides: scaled and repeated keys, and weights over all tokens."""
    return 4 * shape.queries - 2 * shape.keys + 2 * -(-shape.queries // _HEAD) * length


def _logits(config: TrajectoryMatchingConfig, shape: ModelShape, rows: int) -> int:
    return round(_RESPONSE * rows * config.max_length) * shape.vocabulary


def answering_bytes(config: TrajectoryMatchingConfig, shape: ModelShape, compute: Compute) -> int:
    """Answers of the public model above the loaded model."""
    cache = 2 * shape.layers * shape.keys * 2 * config.max_length
    drawn = FLOAT * _ANSWERED * (cache + _SORTED * shape.vocabulary)
    return _LIBRARIES + drawn + packed_bytes(compute, shape.parameters)


def selection_bytes(config: TrajectoryMatchingConfig, shape: ModelShape) -> int:
    """The warm-up of LESS above the loaded selector, and its projection, which has 12 bytes for each number."""
    experts = config.experts
    return first_order_bytes(config, shape, experts.batch_size) + 12 * shape.adapter_parameters(experts.lora_rank)


def distillation_bytes(config: TrajectoryMatchingConfig, shape: ModelShape, compute: Compute) -> int:
    """A step of distillation above the loaded model."""
    settings_, adapters = config.distil, shape.adapter_parameters(config.experts.lora_rank)
    rows = min(settings_.rows_at_once or settings_.batch_size, settings_.batch_size)
    snapshots = config.experts.count * (config.experts.epochs + 1)
    held = (snapshots + 2 * settings_.inner_steps + _STATES) * adapters
    table = shape.vocabulary * shape.hidden * (width_of(shape, compute) < FLOAT)
    compared = min(_COMPARED, settings_.batch_size * settings_.inner_steps * settings_.tokens) * shape.vocabulary
    graph = pass_bytes(config, shape, rows)
    return _LIBRARIES + FLOAT * (held + table) + max(graph, 2 * FLOAT * compared)


def tuning_bytes(config: TrajectoryMatchingConfig, shape: ModelShape) -> int:
    """Tuning on the result, and what is measured with it, above the loaded models."""
    tuned = first_order_bytes(config, shape, config.tuning.batch_size, config.distil.tokens, _WASTE_OF_TUNING)
    read = _LIBRARIES + FLOAT * (
        _LOGITS * _logits(config, shape, _MEASURED) + _MEASURED * config.max_length * shape.kept_per_token
    )
    return max(tuned, read)
