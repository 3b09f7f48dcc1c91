"""Adapters as tensors: taken from a model, put into one, kept in a file.

An adapter is a dictionary of LoRA matrices under peft's names. It is stored as safetensors and never pickled.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor

from understudy.errors import InputError
from understudy.models import lora
from understudy.models.loading import LoadedModel
from understudy.tensor_files import load_tensors, save_tensors

Adapter = dict[str, Tensor]
Targets = tuple[str, ...] | Literal["all-linear"]


def with_adapter(
    base: LoadedModel, adapter: Mapping[str, Tensor] | None, *, alpha: float, targets: Targets = "all-linear"
) -> LoadedModel:
    """The adapter added into a copy of the base weights, which stay as they are.

    Args:
        base: public base model.
        adapter: its tensors; None: the base model itself.
        alpha: LoRA alpha that it was trained with.
        targets: layers that it was trained on, as of `lora.attach`.

    Returns:
        A model of its own in evaluation mode, on the base's device and in its precision, merged in float32; digest and
        name are the base's.

    Raises:
        InputError: the adapter is not one of this base model.
    """
    if adapter is None:
        return base
    return merge_adapter(replace(base, model=copy.deepcopy(base.model)), adapter, alpha=alpha, targets=targets)


def merge_adapter(
    base: LoadedModel, adapter: Mapping[str, Tensor] | None, *, alpha: float, targets: Targets = "all-linear"
) -> LoadedModel:
    """As `with_adapter`, in the base's own weights: for a base that was loaded for this and is used no further.

    Raises:
        InputError: the adapter is not one of this base model.
    """
    if adapter is None:
        return base
    dtype = base.model.dtype
    wrapped = wrap(base.model, rank=adapter_rank(adapter), alpha=alpha, seed=0, targets=targets)
    put_adapter(wrapped, adapter)
    return replace(base, model=lora.merge(wrapped).to(dtype).eval())


def wrap(model: Any, *, rank: int, alpha: float, seed: int, targets: Targets = "all-linear") -> PeftModel:
    """Add a fresh adapter, by default on all linear layers but the head; its start values come from a public seed."""
    return lora.attach(model, rank=rank, alpha=alpha, generator=torch.Generator().manual_seed(seed), targets=targets)


def take_adapter(model: PeftModel) -> Adapter:
    """The adapter's tensors on the CPU, by peft's names in alphabetical order."""
    state = get_peft_model_state_dict(model)
    return {name: state[name].detach().cpu().clone().contiguous() for name in sorted(state)}


def put_adapter(model: PeftModel, adapter: Mapping[str, Tensor]) -> None:
    """Set the adapter's tensors; nothing may be missing, left over or of another shape.

    Raises:
        InputError: the adapter belongs to another model or rank.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in take_adapter(model).items()}
    found = {name: tuple(tensor.shape) for name, tensor in adapter.items()}
    if wanted != found:
        differing = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        first = differing[0]
        raise InputError(
            f"adapter: {len(differing)} tensors do not fit the model, the first is {first}: expected shape "
            f"{wanted.get(first)}, found {found.get(first)}; give the adapter of this base model and lora_rank"
        )
    set_peft_model_state_dict(model, dict(adapter))


def adapter_rank(adapter: Mapping[str, Tensor]) -> int:
    """The inner dimension of an adapter.

    Raises:
        InputError: it holds no LoRA matrices.
    """
    ranks = {tensor.shape[0] for name, tensor in adapter.items() if ".lora_A." in name}
    if len(ranks) != 1:
        raise InputError(f"adapter: expected LoRA matrices of one rank, found ranks {sorted(ranks)}; give another file")
    return int(ranks.pop())


def same_weights(model: Any) -> Any:
    """A model of its own modules around the very same weights, so that wrapping it leaves `model` as it is."""
    shared = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return copy.deepcopy(model, shared)


def save_adapter(path: Path, adapter: Mapping[str, Tensor]) -> None:
    """Write an adapter as one safetensors file, whole or not at all; equal tensors give equal bytes."""
    save_tensors(path, adapter)


def load_adapter(path: Path) -> Adapter:
    """Read an adapter.

    Raises:
        ArtifactDamaged: the file is missing or not whole.
    """
    return load_tensors(path)
