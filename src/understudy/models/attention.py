"""Attention of models in bfloat16 on a CPU: computed in float32 where that is faster; around it everything stays.

Where torch's own attention is slow in bfloat16 (one thread, nine heads of 64):

- Without AMX (an AMD EPYC with AVX512-bf16), everywhere. For eight rows of 48 tokens its two passes take 2.9 times as
  long as in float32 with the conversions; for one new token of 32 rows after 63 others, attention takes 2.7 times as
  long. From some 256 positions on both take the same time.
- With AMX, in the backward pass of short texts. Both passes for eight rows of 48 tokens take 3.4 times as long as in
  float32 with the conversions, of 160 tokens 1.5 times, from 192 tokens on the same or less. A new token of 32 rows
  after 63 others takes a quarter of the time, and two thirds where it is differentiated.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from understudy.compute import widened
from understudy.hardware import has_amx

Attention = Literal["sdpa", "eager"]

# By this name models ask for it; transformers checks of whatever has `sdpa` in its name that the architecture can.
SDPA_OF_BFLOAT16: Final = "sdpa_of_bfloat16"
# Positions from which on, with AMX, the backward pass takes no longer in bfloat16.
_LONG: Final = 192


def implementation(wanted: Attention, dtype: torch.dtype, device: str) -> str:
    """The name, for transformers, of what does what is wanted and is fast on this machine."""
    slow = dtype == torch.bfloat16 and device == "cpu"
    return SDPA_OF_BFLOAT16 if wanted == "sdpa" and slow else wanted


def sdpa_of_bfloat16(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """`sdpa` of transformers, in float32 or wider where that is faster; the output is in the query's precision.

    What decides are the processor, the number of positions, and whether gradients are wanted: no row's content.

    Args:
        module: the attention layer.
        query: `(batch, heads, positions, width)`.
        key: `(batch, key heads, all positions, width)`.
        value: as `key`.
        attention_mask: bool, or numbers that are added to the products; None for a causal or for no mask.
        options: of transformers' function.

    Returns:
        `(batch, positions, heads, width)`, and no weights.
    """
    inputs = query, key, value
    if _is_slow(query, key, value):
        inputs = widened(query), widened(key), widened(value)
        if attention_mask is not None and attention_mask.is_floating_point():
            attention_mask = widened(attention_mask)
    output, _ = sdpa_attention_forward(module, *inputs, attention_mask, **options)
    return output.to(query.dtype), None


def _is_slow(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether torch's own attention takes longer in bfloat16 than in float32."""
    if not has_amx():
        return True
    differentiated = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
    return differentiated and 1 < query.shape[2] < _LONG


AttentionInterface.register(SDPA_OF_BFLOAT16, sdpa_of_bfloat16)
AttentionMaskInterface.register(SDPA_OF_BFLOAT16, sdpa_mask)
