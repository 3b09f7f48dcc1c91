"""What each phase of a run holds at its peak, predicted from public facts; a run that does not fit is refused.

Nothing here depends on rows, and nothing of a run depends on what is predicted. A process is asked for the phases of
its own zone: the client trains the adapter, exports and measures, the server has the pairs written and tunes on them.
What was measured beside it: benchmarks/two_zone_memory.py. Encoded rows are left out: 17 bytes for each token that is
read of a row.
"""

from __future__ import annotations

from typing import Final

from understudy.compute import Compute
from understudy.errors import InputError
from understudy.hardware import chosen
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.memory import pairs_per_pass
from understudy.methods.pass_peaks import (
    CHARACTERS,
    LIBRARIES,
    adapter_numbers,
    beside_adapters,
    drawing_bytes,
    exporting_bytes,
    kept_by_adapters,
    reading_bytes,
    tuning_bytes,
)
from understudy.models import room
from understudy.models.room import FLOAT, weights_bytes
from understudy.models.shape import ModelShape, model_shape
from understudy.settings import Zone, settings

# Resident over kept bytes of a first-order pass with adapters: of DP-SGD and of plain training.
_WASTE_OF_DP: Final = 1.4
_WASTE: Final = 1.5
# Adapters with Adam's moments, their noised sum and what it is made of.
_STATES: Final = 8
# Rows that are drawn, judged and scored at a time on a CPU, where the settings leave it open.
_ROWS: Final = 32
# Tokens around an example and an instruction: numbers, words of a list, a template; and of a list's or question's head.
_AROUND: Final = 6
_HEADING: Final = 24
# Tokens of an example that is shipped.
_BUILTIN: Final = 12
# What measures hold: libraries, the sentence encoder and its texts, vectors of terms.
_MEASURES: Final = 400 << 20

# Setting -> the value that takes least memory, in the order in which they are named.
LOWEST: Final = {
    "train.micro_batch": 1,
    "train.max_length": 16,
    "instructions.batch_size": 1,
    "instructions.shots": 1,
    "instructions.sampling.max_new_tokens": 1,
    "professional.sampling.max_new_tokens": 1,
    "tune.batch_size": 1,
    "tune.max_length": 16,
    "lora.targets": "attention",
    "lora.rank": 1,
    "measure.win_pairs": 0,
    "professional.model": "tiny-llama",
}


def check_fits(config: KnowledgeDistillationConfig, *, zone: Zone | None = None) -> None:
    """Refuse a run that this machine's memory cannot hold, by its models' files alone.

    Args:
        config: of the run.
        zone: whose steps are taken here; None: those of this process.

    Raises:
        InputError: with what to lower.
    """
    room.check_fits(config, lambda one, shape: phases(one, shape, zone=zone), LOWEST)


def phases(
    config: KnowledgeDistillationConfig,
    shape: ModelShape,
    *,
    compute: Compute | None = None,
    zone: Zone | None = None,
) -> dict[str, int]:
    """Bytes at the peak of each phase, weights included.

    Args:
        config: of the run.
        shape: of the base model.
        compute: what tasks compute on; None asks the machine.
        zone: whose phases; None: those of this process's zone.
    """
    compute, zone = compute or chosen(), zone or settings().zone
    professional = professional_shape(config)
    found = _in_both(config, shape, compute)
    if zone != "server":
        found |= _of_the_client(config, shape, professional, compute, has_both=zone == "both")
    if zone != "client":
        found |= _of_the_server(config, shape, professional, compute)
    return found


def professional_shape(config: KnowledgeDistillationConfig) -> ModelShape | None:
    """The shape of the professional model; None where it is served, or its own check will say what is wrong."""
    try:
        return None if config.professional.url is not None else model_shape(config.professional.model)
    except InputError:
        return None


def _in_both(config: KnowledgeDistillationConfig, shape: ModelShape, compute: Compute) -> dict[str, int]:
    """The base model is tuned on the seed set wherever it is loaded; adapters are merged in float32."""
    if not config.seed.pairs:
        return {}
    return {
        "the tuning on the seed set": max(weights_bytes(shape, compute) + tuned(config, shape, compute), _merged(shape))
    }


def _merged(shape: ModelShape) -> int:
    return LIBRARIES + FLOAT * shape.parameters


def _of_the_client(
    config: KnowledgeDistillationConfig,
    shape: ModelShape,
    professional: ModelShape | None,
    compute: Compute,
    *,
    has_both: bool,
) -> dict[str, int]:
    weights = weights_bytes(shape, compute)
    judge = professional if config.measure.win_pairs else None
    found = {
        "the adapter's training": weights + training_bytes(config, shape, compute),
        "the export": exporting_bytes(shape, compute),
        "the measures": _MEASURES + max(_merged(shape), weights + measured(config, shape, compute)),
    }
    if judge is not None:
        asked = config.tune.max_length + 2 * config.professional.sampling.max_new_tokens
        judging = reading_bytes(judge, compute, _ROWS, length=asked)
        found["the judge that measures"] = _MEASURES + weights_bytes(judge, compute) + judging
    if compute.device == "cpu":  # a GPU does not hold what is checked, in float32 on the CPU
        further = max(shape.parameters, professional.parameters if professional is not None and has_both else 0)
        found["the checks before a charge"] = LIBRARIES + FLOAT * (shape.parameters + further)
    return found


def _of_the_server(
    config: KnowledgeDistillationConfig, shape: ModelShape, professional: ModelShape | None, compute: Compute
) -> dict[str, int]:
    weights = weights_bytes(shape, compute)
    beside = 0 if professional is None else weights_bytes(professional, compute)
    return {
        "the synthetic pairs": max(
            _merged(shape), weights + beside + writing_bytes(config, shape, professional, compute)
        ),
        "the tuning on the pairs": weights + tuned(config, shape, compute),
    }


def training_bytes(config: KnowledgeDistillationConfig, shape: ModelShape, compute: Compute) -> int:
    """A step of the adapter's DP-SGD above the loaded model."""
    attention = config.lora.targets == "attention"
    rows = pairs_per_pass(config, expected=config.train.batch_size, shape=shape, device=compute.device)
    tokens, adapters = rows * config.train.max_length, adapter_numbers(shape, config.lora.rank, attention=attention)
    kept = _WASTE_OF_DP * beside_adapters(shape, compute) * tokens * shape.layers
    kept *= kept_by_adapters(shape, attention=attention)
    chunk = 2 * config.train.max_length * shape.vocabulary  # logits of one example at a time
    return LIBRARIES + FLOAT * (round(kept) + (rows + _STATES) * adapters + chunk)


def tuned(config: KnowledgeDistillationConfig, shape: ModelShape, compute: Compute) -> int:
    """A step of plain training on pairs above the loaded model."""
    attention = config.lora.targets == "attention"
    return tuning_bytes(
        shape,
        compute,
        tokens=config.tune.batch_size * config.tune.max_length,
        kept=_WASTE * kept_by_adapters(shape, attention=attention),
        adapters=adapter_numbers(shape, config.lora.rank, attention=attention),
    )


def writing_bytes(
    config: KnowledgeDistillationConfig, shape: ModelShape, professional: ModelShape | None, compute: Compute
) -> int:
    """Instructions, what the professional model makes of them, and their ranking, above both loaded models."""
    peaks = [_drawn(config, shape, compute), reading_bytes(shape, compute, _ROWS, length=config.tune.max_length)]
    if config.filters.judge != "none":
        asked = _rows(config), config.instructions.sampling.max_new_tokens + _heading(config)
        peaks.append(reading_bytes(professional or shape, compute, asked[0], length=asked[1]))
    if professional is not None:
        written = config.instructions.sampling.max_new_tokens + _AROUND
        peaks.append(_answered(config, professional, compute, prompt=written, refilled=True))
    return max(peaks)


def measured(config: KnowledgeDistillationConfig, shape: ModelShape, compute: Compute) -> int:
    """Losses of held-out pairs and answers to them, above one loaded model; instructions may fill the width."""
    read = reading_bytes(shape, compute, _ROWS, length=config.tune.max_length)
    return max(read, _answered(config, shape, compute, prompt=config.tune.max_length, refilled=False))


def _drawn(config: KnowledgeDistillationConfig, shape: ModelShape, compute: Compute) -> int:
    """Instructions in flight, behind examples: those of a table are taken to be as long as what is drawn."""
    asked = config.instructions
    example = _AROUND + (_BUILTIN if asked.examples == "builtin" else asked.sampling.max_new_tokens)
    prompt = asked.shots * example + _heading(config)
    new = asked.sampling.max_new_tokens
    return drawing_bytes(shape, compute, _rows(config), prompt=prompt, new=new, refilled=True)


def _answered(
    config: KnowledgeDistillationConfig, shape: ModelShape, compute: Compute, *, prompt: int, refilled: bool
) -> int:
    rows = _rows(config) if refilled else min(_rows(config), config.measure.win_pairs)
    new = config.professional.sampling.max_new_tokens
    return drawing_bytes(shape, compute, rows, prompt=prompt, new=new, refilled=refilled)


def _heading(config: KnowledgeDistillationConfig) -> int:
    return _HEADING + len(config.about) // CHARACTERS


def _rows(config: KnowledgeDistillationConfig) -> int:
    return _ROWS if config.instructions.batch_size == "auto" else config.instructions.batch_size
