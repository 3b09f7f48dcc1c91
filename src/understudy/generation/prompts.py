"""Prompts of the form `BOS <label name> SEP`, one width for all labels (Keskar et al. 2019, CTRL).

Names of different token length are padded on the left to one public width, so that text always begins in the same
column; masked columns carry position 0 and nothing attends to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from understudy.errors import InputError
from understudy.generation.config import PromptFormat

__all__ = ["PromptFormat", "PromptTable", "build_prompts", "encode_prompts", "position_ids", "row_seeds"]


@dataclass(frozen=True)
class PromptTable:
    """The prompts of all labels, padded to one width; all of it public.

    Attributes:
        input_ids: `(labels, width)` int64, padded on the left.
        attention_mask: `(labels, width)` int64, 0 on padding.
        label_span: First column of the widest label and the column after its last.
        neutral_ids: `(width,)` int64, the prompt whose label columns hold padding: to be filled with random tokens.
        ordinary_ids: `(ordinary,)` int64, every token id but the special ones.
    """

    input_ids: Tensor
    attention_mask: Tensor
    label_span: tuple[int, int]
    neutral_ids: Tensor
    ordinary_ids: Tensor

    @property
    def width(self) -> int:
        """Columns of a prompt: the text begins in this column."""
        return self.input_ids.shape[1]


def special_ids(tokenizer: Any) -> tuple[int, int, int]:
    """Ids of BOS, EOS and padding; BOS falls back to EOS (GPT-2) and padding to EOS.

    Raises:
        InputError: The tokenizer has no end-of-text token.
    """
    eos = tokenizer.eos_token_id
    if eos is None:
        raise InputError(
            "tokenizer.eos_token_id=None: expected a tokenizer with an end-of-text token; choose another model"
        )
    bos = eos if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    pad = eos if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return int(bos), int(eos), int(pad)


def encode_prompts(tokenizer: Any, label_name: str, prompt: PromptFormat | None = None) -> list[int]:
    """Token ids of `BOS <before> <label name> <separator>`, unpadded."""
    before, label, separator = _pieces(tokenizer, label_name, prompt or PromptFormat())
    return [*before, *label, *separator]


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text as it stands after the separator."""
    # Not verbose: the tokenizer would log the length of the first text beyond its model's limit.
    return list(tokenizer.encode(" " + text.strip(), add_special_tokens=False, verbose=False))


def _pieces(tokenizer: Any, label_name: str, prompt: PromptFormat) -> tuple[list[int], list[int], list[int]]:
    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False, verbose=False)) if text else []

    bos = special_ids(tokenizer)[0]
    return [bos, *encode(prompt.before)], encode(" " + label_name.strip()), encode(prompt.separator)


def build_prompts(tokenizer: Any, label_names: Sequence[str], prompt: PromptFormat | None = None) -> PromptTable:
    """Encode the prompts of all labels to one public width.

    Raises:
        InputError: Fewer than two labels, a label without tokens, or two labels with the same tokens.
    """
    if len(label_names) < 2:
        raise InputError(
            f"label_names={list(label_names)}: expected at least two labels; declare every label of the data"
        )
    pieces = [_pieces(tokenizer, name, prompt or PromptFormat()) for name in label_names]
    _check_labels(label_names, [label for _, label, _ in pieces])
    _, _, pad = special_ids(tokenizer)
    before, _, separator = pieces[0]
    widest = max(len(label) for _, label, _ in pieces)
    width = len(before) + widest + len(separator)
    rows = [[*head, *label, *tail] for head, label, tail in pieces]
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    neutral = torch.tensor([*before, *[pad] * widest, *separator])
    special = set(tokenizer.all_special_ids)
    ordinary = torch.tensor([token for token in range(len(tokenizer)) if token not in special])
    return PromptTable(ids, mask, (len(before), len(before) + widest), neutral, ordinary)


def _check_labels(names: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
    seen: dict[tuple[int, ...], str] = {}
    for name, ids in zip(names, tokens, strict=True):
        if not ids:
            raise InputError(
                f"label name {name!r} has no tokens: expected a name that the tokenizer can write; rename it"
            )
        if tuple(ids) in seen:
            raise InputError(
                f"label names {seen[tuple(ids)]!r} and {name!r} have the same tokens {list(ids)}: expected names "
                "that differ; rename one"
            )
        seen[tuple(ids)] = name


def position_ids(attention_mask: Tensor) -> Tensor:
    """Positions that count from each row's first real token; padding gets 0.

    Args:
        attention_mask: `(batch, length)`, 1 on real tokens.

    Returns:
        `(batch, length)` int64.
    """
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def row_seeds(public_seed: int, rows: Sequence[int], *, purpose: str) -> list[int]:
    """One public 63-bit seed per row: a function of seed, purpose and row alone, whatever else is drawn beside it."""
    digests = (hashlib.sha256(f"{public_seed}/{purpose}/{row}".encode()).digest() for row in rows)
    return [int.from_bytes(digest[:8], "big") >> 1 for digest in digests]
