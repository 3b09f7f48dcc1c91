"""Base models are read from the disk once in a session: each later load of the same files gives a copy in memory."""

import copy
import io
import mmap
import os
import pickle
import weakref
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TokenizersBackend

from understudy.models import loading
from understudy.models.folders import folder_digest

# Those of a test and its neighbours: the models of one test file have a folder of their own.
_MOST = 12
_ALIGNED = 64  # bytes


def loaded_once(patch: pytest.MonkeyPatch) -> None:
    """Let `load_model` copy what it has read before; what it checks and mends it does each time."""
    for name, keep in (("AutoModelForCausalLM", _Original), ("AutoTokenizer", _Vocabulary)):
        kept = SimpleNamespace(from_pretrained=_keeping(getattr(loading, name).from_pretrained, keep))
        patch.setattr(loading, name, kept)
    for name in ("_add_tokens", "update_post_processor"):
        patch.setattr(TokenizersBackend, name, _apart(getattr(TokenizersBackend, name)))


def _keeping(load: Callable[..., Any], keep: Callable[[Any], Any]) -> Callable[..., Any]:
    kept: OrderedDict[str, Any] = OrderedDict()

    def loaded(folder: Any, *, config: Any = None, **given: Any) -> Any:
        asked = str((folder, folder_digest(folder), config, sorted(given.items())))
        if asked not in kept:
            kept[asked] = keep(load(folder, **({} if config is None else {"config": config}), **given))
        kept.move_to_end(asked)
        while len(kept) > _MOST:
            kept.popitem(last=False)
        return kept[asked].copy()

    return loaded


class _Vocabulary:
    """A tokenizer whose copies share their vocabulary until one of them changes it: to read it takes long."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def copy(self) -> Any:
        shared = getattr(self.original, "_tokenizer", None)
        made = copy.deepcopy(self.original, {} if shared is None else {id(shared): shared})
        made.shares_its_vocabulary = shared is not None
        return made


def _apart(change: Callable[..., Any]) -> Callable[..., Any]:
    """What changes a tokenizer changes no other."""

    def changed(tokenizer: Any, *args: Any, **given: Any) -> Any:
        if vars(tokenizer).pop("shares_its_vocabulary", False):
            tokenizer._tokenizer = copy.deepcopy(tokenizer._tokenizer)
        return change(tokenizer, *args, **given)

    return changed


class _Original:
    """A model whose copies share memory until they are written to.

    Its tensors lie in a file in memory that each copy maps privately: the system copies a page when it is written to,
    and most copies write to none.
    """

    def __init__(self, original: Any) -> None:
        self.places: list[tuple[torch.Tensor, int]] = []
        self.file = os.memfd_create("model")
        weakref.finalize(self, os.close, self.file)
        written = io.BytesIO()
        _Pickler(written, self).dump(original)
        self.pickled = written.getvalue()

    def copy(self) -> Any:
        return _Unpickler(io.BytesIO(self.pickled), self).load()

    def keep(self, tensor: torch.Tensor) -> int:
        """Write it to the file; its number."""
        content = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        place = os.lseek(self.file, 0, os.SEEK_END)
        rest = memoryview(content.ljust(-(-len(content) // _ALIGNED) * _ALIGNED, b"\0"))
        while rest:
            rest = rest[os.write(self.file, rest) :]
        self.places.append((tensor, place))
        return len(self.places) - 1


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, original: _Original) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.original = original
        self.numbers: dict[int, int] = {}

    def persistent_id(self, found: Any) -> int | None:
        """Tensors by their number: two names of one tensor stay so."""
        if not isinstance(found, torch.Tensor) or not found.numel():
            return None
        if id(found) not in self.numbers:
            self.numbers[id(found)] = self.original.keep(found)
        return self.numbers[id(found)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, original: _Original) -> None:
        super().__init__(file)
        self.places = original.places
        self.memory = mmap.mmap(original.file, 0, access=mmap.ACCESS_COPY)
        self.made: dict[int, torch.Tensor] = {}

    def persistent_load(self, number: int) -> torch.Tensor:
        if number not in self.made:
            kept, place = self.places[number]
            values = torch.frombuffer(self.memory, dtype=kept.dtype, count=kept.numel(), offset=place).view(kept.shape)
            is_parameter = isinstance(kept, torch.nn.Parameter)
            self.made[number] = torch.nn.Parameter(values, kept.requires_grad) if is_parameter else values
        return self.made[number]
