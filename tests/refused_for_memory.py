"""Runs that a machine has no room for: what their refusal names."""

import re
from types import ModuleType
from typing import Any

import pytest

from understudy.errors import InputError
from understudy.models.room import changed, largest
from understudy.models.shape import ModelShape

# Of 135 million and of 7 billion parameters.
BIG = ModelShape(30, 576, 576, 192, 1536, True, 49_152, 134_515_008)
LARGE = ModelShape(32, 4096, 4096, 4096, 11_008, True, 32_000, 6_738_415_616)
SHAPES = {"big": BIG, "large": LARGE}


def named_in_refusal(peaks: ModuleType, asked: Any, *, gib: int) -> set[str]:
    """The settings that a refusal of such a run of model `big` says to lower; each lowers what it says is too large.

    Args:
        peaks: of the method: `phases`, `check_fits` and `LOWEST`.
        asked: settings.
        gib: of the machine, which is small already.
    """
    phase, peak = largest(peaks.phases(asked, BIG))
    expected = f"{peak / 2**30:.1f} GiB for {phase}, this machine allows {gib}.0"
    with pytest.raises(InputError, match=expected) as refused:
        peaks.check_fits(asked)
    found = set(re.findall(r"([a-z_.]+)=", str(refused.value).partition(": ")[2]))
    for setting in found:
        assert peaks.phases(changed(asked, {setting: peaks.LOWEST[setting]}), BIG).get(phase, 0) < peak
    return found


def needs_a_smaller_model(peaks: ModuleType, asked: Any, *, gib: int) -> None:
    """Of a model that no setting makes fit it is said."""
    with pytest.raises(InputError, match=rf"this machine allows {gib}\.0: choose a smaller model$"):
        peaks.check_fits(asked.model_copy(update={"model": "large"}))
