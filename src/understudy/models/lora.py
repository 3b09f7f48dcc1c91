"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) through peft, started from a public generator.

The start values are peft's own (A Kaiming-uniform with a = sqrt(5), B zero), drawn here from a generator that
the caller passes: the global random state is neither read nor changed.
"""

from __future__ import annotations

import math
import warnings
from typing import Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from understudy.compute import widened_weights
from understudy.errors import InputError


def attach(
    model: PreTrainedModel,
    *,
    rank: int,
    alpha: float,
    generator: torch.Generator,
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear",
) -> PeftModel:
    """Freeze `model` and add trainable adapters to its linear layers.

    Args:
        model: the base model; it is changed in place and belongs to the result. Its precision stays; adapters are
            float32 in any case.
        rank: inner dimension of the adapters, at least 1.
        alpha: the adapters' output is scaled by alpha / rank.
        generator: public CPU randomness for the start values.
        targets: last parts of layer names (`q_proj`, ...), or all linear layers but the output head.

    Returns:
        A peft model whose trainable parameters are exactly the adapters; its function is that of `model`.

    Raises:
        InputError: when rank < 1 or no layer matches the targets.
    """
    if rank < 1:
        raise InputError(f"LoRA rank={rank}: expected at least 1")
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=targets if targets == "all-linear" else list(targets),
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        task_type="CAUSAL_LM",
    )
    # peft draws start values from the global generators: they are overwritten below, the state put back.
    with torch.random.fork_rng(devices=_cuda_devices(model)), warnings.catch_warnings():
        # peft 0.21 asks transformers 5.23 for a property under its old name.
        warnings.filterwarnings("ignore", message=".is_gradient_checkpointing. is deprecated")
        try:
            adapted = get_peft_model(model, config)
        except ValueError as error:
            raise InputError(f"LoRA targets={targets!r}: no such layer in {type(model).__name__}") from error
    for name, parameter in trainable_parameters(adapted).items():
        _initialise(name, parameter, generator)
    return adapted


def _initialise(name: str, parameter: nn.Parameter, generator: torch.Generator) -> None:
    start = torch.zeros(parameter.shape, device="cpu")
    if ".lora_A." in name:
        nn.init.kaiming_uniform_(start, a=math.sqrt(5), generator=generator)
    with torch.no_grad():
        parameter.copy_(start)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters with `requires_grad`, by name, in alphabetical order."""
    found = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return dict(sorted(found.items()))


def merge(model: PeftModel) -> PreTrainedModel:
    """Add the adapters to the base weights and return the plain model in float32, changed in place.

    In bfloat16 most of what was learned would be lost in rounding.
    """
    merged: PreTrainedModel = widened_weights(model).merge_and_unload()
    return merged


def _cuda_devices(model: nn.Module) -> list[torch.device]:
    return sorted({p.device for p in model.parameters() if p.device.type == "cuda"}, key=str)
