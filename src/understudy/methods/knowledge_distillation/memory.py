"""How many pairs of the client's training pass through the model at a time, from public facts."""

from __future__ import annotations

from typing import Final

from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.models.passes import rows_of_adapters
from understudy.models.shape import ModelShape

_ON_CPU: Final = 8


def pairs_per_pass(
    config: KnowledgeDistillationConfig, *, expected: float, shape: ModelShape | None, device: str
) -> int:
    """The micro-batch of the client's training; public.

    Args:
        config: names it, or says `auto`.
        expected: pairs of a step.
        shape: of the base model.
        device: type that computes.
    """
    return rows_of_adapters(
        config.train.micro_batch,
        on_cpu=_ON_CPU,
        device=device,
        shape=shape,
        rank=config.lora.rank,
        tokens=config.train.max_length,
        expected=expected,
    )
