"""What leaves distillation (NACD, section 3.3): pseudo tokens as embeddings, and as text for any other model.

The text of a pseudo token is its nearest token, special ones left out. Another model's tokenizer reads that text anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from understudy.generation.prompts import special_token_ids
from understudy.methods.trajectory_matching.distil import Distilled, nearest_tokens
from understudy.tensor_files import load_tensors, save_tensors

PROMPTS_FILE = "pseudo_tokens.safetensors"


def ordinary_tokens(tokenizer: Any, vocabulary: int) -> Tensor:
    """`(vocabulary,)` bool: tokens that are text of their own, which reads back as it was written."""
    allowed = torch.zeros(vocabulary, dtype=torch.bool, device="cpu")
    special = set(special_token_ids(tokenizer))
    for token in range(min(vocabulary, len(tokenizer))):
        text = tokenizer.decode([token])
        allowed[token] = token not in special and bool(text.strip()) and text.isprintable() and "\ufffd" not in text
    return allowed


def decoded(prompts: Tensor, vocabulary: Tensor, tokenizer: Any) -> tuple[Tensor, list[str]]:
    """The nearest ordinary tokens `(rows, k)` int64 of pseudo tokens `(rows, k, d)`, and their text for each row."""
    tokens, _ = nearest_tokens(prompts, vocabulary, allowed=ordinary_tokens(tokenizer, len(vocabulary)))
    return tokens, [" ".join(str(tokenizer.decode(row)).split()) for row in tokens.tolist()]


def with_pseudo_text(instructions: Sequence[str], pseudo: Sequence[str]) -> list[str]:
    """Instructions behind the text of their pseudo tokens."""
    return [f"{before} {text}" for before, text in zip(pseudo, instructions, strict=True)]


def save_distilled(folder: Path, distilled: Distilled, tokens: Tensor) -> None:
    """Write pseudo tokens, their nearest tokens, the step size and the curves as one safetensors file."""
    save_tensors(
        folder / PROMPTS_FILE,
        {
            "embeddings": distilled.prompts,
            "nearest_tokens": tokens,
            "step_size": torch.tensor([distilled.step_size], dtype=torch.float64, device="cpu"),
            "matching_loss": distilled.losses,
            "distance_to_nearest_token": distilled.distances,
        },
    )


def load_distilled(folder: Path) -> tuple[Distilled, Tensor]:
    """Read what `save_distilled` wrote: the result and its nearest tokens."""
    found = load_tensors(folder / PROMPTS_FILE)
    result = Distilled(
        prompts=found["embeddings"],
        step_size=float(found["step_size"]),
        losses=found["matching_loss"],
        distances=found["distance_to_nearest_token"],
    )
    return result, found["nearest_tokens"]
