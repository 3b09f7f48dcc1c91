"""Base models are read from the disk once in a session: each later load of the same files gives a copy in memory."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from understudy.models import loading
from understudy.models.folders import folder_digest

# Those of a test and its neighbours: the models of one test file have a folder of their own.
_MOST = 12


def loaded_once(patch: pytest.MonkeyPatch) -> None:
    """Let `load_model` copy what it has read before; what it checks and mends it does each time."""
    for name in ("AutoModelForCausalLM", "AutoTokenizer"):
        kept = SimpleNamespace(from_pretrained=_keeping(getattr(loading, name).from_pretrained))
        patch.setattr(loading, name, kept)


def _keeping(load: Callable[..., Any]) -> Callable[..., Any]:
    kept: OrderedDict[str, Any] = OrderedDict()

    def loaded(folder: Any, *, config: Any = None, **given: Any) -> Any:
        asked = str((folder, folder_digest(folder), config, sorted(given.items())))
        if asked not in kept:
            kept[asked] = load(folder, **({} if config is None else {"config": config}), **given)
        kept.move_to_end(asked)
        while len(kept) > _MOST:
            kept.popitem(last=False)
        return copy.deepcopy(kept[asked])

    return loaded
