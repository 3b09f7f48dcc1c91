"""Attention of models in bfloat16 on a CPU without AMX: computed in float32, around it everything stays as it is.

torch's own attention is slow in bfloat16 there. For eight rows of 48 tokens and nine heads of 64, its two passes take
2.9 times as long as in float32 with the conversions; for one new token of 32 rows after 63 others, attention takes 2.7
times as long. From some 256 positions on both take the same time (one thread of an AMD EPYC with AVX512-bf16).
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
SDPA_IN_FLOAT32: Final = "sdpa_in_float32"


def implementation(wanted: Attention, dtype: torch.dtype, device: str) -> str:
    """The name, for transformers, of what does what is wanted and is fast on this machine."""
    slow = dtype == torch.bfloat16 and device == "cpu" and not has_amx()
    return SDPA_IN_FLOAT32 if wanted == "sdpa" and slow else wanted


def sdpa_in_float32(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """`sdpa` of transformers, in float32 or wider; the output is in the query's precision.

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
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = widened(attention_mask)
    output, _ = sdpa_attention_forward(module, widened(query), widened(key), widened(value), attention_mask, **options)
    return output.to(query.dtype), None


AttentionInterface.register(SDPA_IN_FLOAT32, sdpa_in_float32)
AttentionMaskInterface.register(SDPA_IN_FLOAT32, sdpa_mask)
