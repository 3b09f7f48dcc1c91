"""Whether a machine has room for what a run is expected to hold, and what to lower where it has not.

A method predicts, from public settings and the shapes of its models, what each phase of a run holds at its peak,
weights included. Nothing here changes what a run computes: it is refused, or it goes on as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Final

from understudy.compute import Compute
from understudy.cores import resident_memory
from understudy.errors import InputError
from understudy.hardware import device_memory
from understudy.models.shape import ModelShape, model_shape

# Phase -> bytes at its peak.
Phases = Mapping[str, int]
# A setting that does not lower a phase by at least this part is not named.
_HELPS: Final = 0.9
FLOAT: Final = 4
_HALF: Final = 2


def weights_bytes(shape: ModelShape, compute: Compute) -> int:
    """What a model takes that is loaded for a task."""
    return width_of(shape, compute) * shape.parameters


def width_of(shape: ModelShape, compute: Compute) -> int:
    """Bytes of one of its weights."""
    return _HALF if compute.precision_of(shape.parameters) == "bfloat16" else FLOAT


def largest(phases: Phases) -> tuple[str, int]:
    """The phase that holds most, and how much that is."""
    return max(phases.items(), key=lambda one: one[1])


def expected_mib(model: Any, phases: Phases) -> int:
    """The peak of a run in MiB, of a process that has loaded the base model by now, or of a GPU.

    Args:
        model: the base model.
        phases: of the run, weights included.
    """
    peak = largest(phases)[1]
    if model.device.type == "cpu":
        peak += resident_memory() - sum(p.numel() * p.element_size() for p in model.parameters())
    return round(peak / 2**20)


def check_fits(config: Any, phases_of: Callable[[Any, ModelShape], Phases], lowest: Mapping[str, Any]) -> None:
    """`check_room` by the files of the base model alone; where they do not say its shape nothing is refused.

    Args:
        config: settings of the run, which name its `model`.
        phases_of: settings, shape of the base model -> phases.
        lowest: as for `check_room`.

    Raises:
        InputError: as `check_room`.
    """
    shape = model_shape(config.model)
    if shape is not None:
        check_room(config, lambda one: phases_of(one, shape), lowest)


def check_room(config: Any, phases_of: Callable[[Any], Phases], lowest: Mapping[str, Any]) -> None:
    """Refuse a run that the machine's memory cannot hold.

    Args:
        config: settings of the run, which name its `model`.
        phases_of: settings -> phases; a phase that other settings leave out is missing.
        lowest: setting, as `section.name` -> the value that takes least memory; None where it may be left out.

    Raises:
        InputError: saying what is expected, what the machine allows, and which settings lower it.
    """
    limit = device_memory()
    phase, expected = largest(phases_of(config))
    if expected <= limit:
        return
    ways = [
        _in_words(config, setting, value)
        for setting, value in lowest.items()
        if phases_of(changed(config, {setting: value})).get(phase, 0) < _HELPS * expected
    ]
    # What still would not fit at the lowest of all settings needs another model.
    fits = largest(phases_of(changed(config, lowest)))[1] <= limit
    lower = f"{' or '.join(ways)}, or " if fits else ""
    raise InputError(
        f"model={config.model!r} is expected to need {expected / 2**30:.1f} GiB for {phase}, this machine allows "
        f"{limit / 2**30:.1f}: {lower}choose a smaller model"
    )


def changed(config: Any, values: Mapping[str, Any]) -> Any:
    """Settings with other values, each named as `section.name`; what has no such value already stays."""
    for setting, value in values.items():
        config = _with(config, setting, value)
    return config


def _with(part: Any, setting: str, value: Any) -> Any:
    section, _, within = setting.partition(".")
    return part.model_copy(update={section: _with(getattr(part, section), within, value) if within else value})


def _in_words(config: Any, setting: str, value: Any) -> str:
    found = reduce(getattr, setting.split("."), config)
    if value is None or value == "":
        return f"leave out {setting}={found}"
    if setting.endswith(".model"):
        return f"choose a smaller model in place of {setting}={found}"
    if isinstance(value, str):
        return f"set {setting}={value} instead of {found}"
    return f"lower {setting}={found}"
