"""The trained model: a language model, a discriminator on its hidden states, perhaps a filter of its own.

Paper, section 5.1.3 and its diagram: one transformer, two heads. Deviation: the head may see the mean of the
text's states up to a position (as PPLM's discriminator does) instead of the state at that position.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from understudy.compute import widened_weights
from understudy.errors import InputError
from understudy.generation.prompts import PromptTable
from understudy.generation.sampling import backbone
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.models import lora
from understudy.models.layer_stack import layer_stack


class Discriminator(nn.Module):
    """MLP from hidden states `(..., d)` to label logits `(..., labels)`, in float32 whatever the states are in."""

    def __init__(self, hidden_size: int, width: int, labels: int, *, generator: torch.Generator) -> None:
        super().__init__()
        # Made without values: torch would draw them from the global generator.
        self.inner = nn.Linear(hidden_size, width, device="meta").to_empty(device="cpu")
        self.outer = nn.Linear(width, labels, device="meta").to_empty(device="cpu")
        for layer in (self.inner, self.outer):
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Label logits."""
        logits: Tensor = self.outer(torch.tanh(self.inner(hidden.to(self.inner.weight.dtype))))
        return logits


class Classifier(nn.Module):
    """A transformer with a label head: naive_filter's own model of p(label | text)."""

    def __init__(self, lm: nn.Module, discriminator: Discriminator) -> None:
        super().__init__()
        self.lm = lm
        self.discriminator = discriminator

    def label_logits(self, states: Tensor) -> Tensor:
        """Label logits `(..., labels)` of hidden states `(..., d)`."""
        logits: Tensor = self.discriminator(states)
        return logits


class MultitaskModel(nn.Module):
    """What is trained and what generates.

    Attributes:
        lm: Causal language model, with or without adapters.
        discriminator: Head on its last hidden states; None for the variants that have none.
        filter: A second transformer with a head, for variant naive_filter.
    """

    def __init__(
        self, lm: nn.Module, *, discriminator: Discriminator | None = None, filter: Classifier | None = None
    ) -> None:
        super().__init__()
        self.lm = lm
        self.discriminator = discriminator
        self.filter = filter

    @property
    def classifier(self) -> MultitaskModel | Classifier | None:
        """Whichever part models p(label | text); None for the variants that have none."""
        if self.filter is not None:
            return self.filter
        return self if self.discriminator is not None else None

    def label_logits(self, states: Tensor) -> Tensor:
        """Label logits `(..., labels)` of hidden states `(..., d)`.

        Raises:
            InputError: The variant has no discriminator.
        """
        if self.discriminator is None:
            raise InputError("this variant has no discriminator: expected variant=naive_pplm or multitask")
        logits: Tensor = self.discriminator(states)
        return logits


@dataclass(frozen=True)
class TrainedModel:
    """A model with everything generation needs beside it; all of it public but for the weights' label.

    Attributes:
        model: Evaluation mode, adapters merged.
        tokenizer: The base model's.
        label_names: Every label, in the order of the indices.
        prompts: One prompt per label.
    """

    model: MultitaskModel
    tokenizer: Any
    label_names: tuple[str, ...]
    prompts: PromptTable


def build_model(lm: Any, *, label_names: Sequence[str], config: ConditionalGenerationConfig) -> MultitaskModel:
    """Attach adapters and heads to a base model, from the public seed.

    Args:
        lm: Plain base model; changed in place.
        label_names: Every label.
        config: Variant, adapter and head sizes.
    """
    if not config.trains:
        return MultitaskModel(lm.requires_grad_(False)).eval()
    generator = torch.Generator().manual_seed(config.public_seed)
    size, labels = int(lm.config.hidden_size), len(label_names)
    filter_lm = copy.deepcopy(lm) if config.variant == "naive_filter" else None

    def head() -> Discriminator:
        made = Discriminator(size, config.discriminator.width, labels, generator=generator)
        return made.to(next(lm.parameters()).device)

    adapted = _train_weights(lm, config=config, rank=config.lora.rank, generator=generator)
    if filter_lm is not None:
        filter_lm.requires_grad_(False)
        if config.filter.lora_rank > 0:
            filter_lm = _train_weights(filter_lm, config=config, rank=config.filter.lora_rank, generator=generator)
        return MultitaskModel(adapted, filter=Classifier(filter_lm, head())).eval()
    return MultitaskModel(adapted, discriminator=None if config.variant == "naive" else head()).eval()


def _train_weights(lm: Any, *, config: ConditionalGenerationConfig, rank: int, generator: torch.Generator) -> Any:
    """Adapters of the given rank, or the weights themselves at rank 0; `frozen_layers` stay as they are."""
    if rank > 0:
        adapted = lora.attach(lm, rank=rank, alpha=config.lora.alpha, targets=config.lora.targets, generator=generator)
    else:
        # What is trained is float32; nothing but a frozen weight may be narrower.
        adapted = widened_weights(lm).requires_grad_(True)
    layers = transformer_layers(adapted)
    if config.train.frozen_layers > len(layers):
        raise InputError(
            f"train.frozen_layers={config.train.frozen_layers}: expected at most {len(layers)}, all of the model's"
        )
    for layer in layers[len(layers) - config.train.frozen_layers :]:
        layer.requires_grad_(False)
    if not lora.trainable_parameters(adapted):
        raise InputError(
            f"train.frozen_layers={config.train.frozen_layers} leaves nothing to train with rank={rank}: lower it"
        )
    return adapted


def transformer_layers(lm: Any) -> list[nn.Module]:
    """The stack of transformer blocks.

    Raises:
        InputError: The model has none that can be told from its other parts.
    """
    stack = layer_stack(backbone(lm))
    if stack is None:
        raise InputError(
            f"{type(backbone(lm)).__name__}: expected a transformer with its layers in a list, as GPT-2, Llama and OPT "
            "have them, found none; choose another model"
        )
    return stack.layers


def merge_adapters(model: MultitaskModel) -> MultitaskModel:
    """Fold all adapters into the weights: the model that generates and that may leave."""
    for part in (model, model.filter):
        if part is not None and hasattr(part.lm, "merge_and_unload"):
            part.lm = lora.merge(part.lm)  # type: ignore[arg-type]
    return model.requires_grad_(False).eval()
