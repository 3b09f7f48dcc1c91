"""Rows of text and label -> tensors of one public shape (paper, section 5.1): `BOS <label> SEP <text> EOS`.

Length and prompt width come from the config and the label list, never from the rows; how many texts were cut is
internal. A null row keeps its slot and holds an empty text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from understudy.data.private_rows import PrivateRows
from understudy.generation.prompts import PromptTable, build_prompts, encode_text, special_ids
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.topic_counts import topics_of_rows


@dataclass(frozen=True)
class EncodedRows:
    """All rows as tensors; private but for its shapes and prompts.

    Attributes:
        input_ids: `(n, length)` int64.
        attention_mask: `(n, length)` int64, 1 on prompt, text and EOS.
        loss_mask: `(n, length)` bool, text and EOS only.
        label: `(n,)` int64, 0 for null rows.
        topic: `(n,)` int64, 0 for null rows and without topics.
        valid: `(n,)` bool, False for null rows.
        prompts: The public prompts; text begins in column `prompts.width`.
        label_names: Every label, public.
        truncated: How many texts were cut: internal, never shown outside.
    """

    input_ids: Tensor = field(repr=False)
    attention_mask: Tensor = field(repr=False)
    loss_mask: Tensor = field(repr=False)
    label: Tensor = field(repr=False)
    topic: Tensor = field(repr=False)
    valid: Tensor = field(repr=False)
    prompts: PromptTable
    label_names: tuple[str, ...]
    truncated: int = field(repr=False)

    @property
    def label_span(self) -> tuple[int, int]:
        """Public columns of the label."""
        return self.prompts.label_span


def encode(
    private: PrivateRows,
    *,
    tokenizer: Any,
    config: ConditionalGenerationConfig,
    device: str = "cpu",
    embedded: dict[str, npt.NDArray[np.float32]] | None = None,
) -> EncodedRows:
    """Encode rows for training; a row whose text or label is None is the null row.

    Args:
        private: The rows.
        tokenizer: The base model's tokenizer.
        config: Gives prompt, topics and padded length.
        device: That the sentence encoder reads rows on, where there are topics.
        embedded: Gets the embedding of each text, where there are topics; private.

    Raises:
        InputError: Label names collide.
    """
    prompts = prompts_of(tokenizer, private.label_names, config)
    label = torch.tensor(private.label_indices, dtype=torch.long, device="cpu")
    text_ids, text_mask, truncated = encode_texts(
        private.valid_texts, prompts=prompts, tokenizer=tokenizer, config=config
    )
    topic = topics_of_rows(private.valid_texts, config.topics.found, device=device, embedded=embedded)
    place = label * prompts.topics + topic
    prompt_mask = prompts.attention_mask[place]
    return EncodedRows(
        input_ids=torch.cat([prompts.input_ids[place], text_ids], dim=1),
        attention_mask=torch.cat([prompt_mask, text_mask.long()], dim=1),
        loss_mask=torch.cat([torch.zeros_like(prompt_mask, dtype=torch.bool), text_mask], dim=1),
        label=label,
        topic=topic,
        valid=torch.tensor(private.valid, dtype=torch.bool, device="cpu"),
        label_names=tuple(private.label_names),
        prompts=prompts,
        truncated=truncated,
    )


def count_topics(rows: EncodedRows) -> Tensor:
    """Exact counts `(labels * topics,)` int64 of the rows that are not null, label by label: private.

    A row counts in one cell, so replacing it by the null row changes one count by 1.
    """
    cells = len(rows.label_names) * rows.prompts.topics
    return torch.bincount((rows.label * rows.prompts.topics + rows.topic)[rows.valid], minlength=cells)


def prompts_of(tokenizer: Any, label_names: Sequence[str], config: ConditionalGenerationConfig) -> PromptTable:
    """The prompts of a run: those of `build_prompts`, by its settings."""
    return build_prompts(tokenizer, label_names, config.prompt, about=config.about, topics=config.topics.found)


def encode_texts(
    texts: Sequence[str | None], *, prompts: PromptTable, tokenizer: Any, config: ConditionalGenerationConfig
) -> tuple[Tensor, Tensor, int]:
    """Text and its end in the columns after the prompt.

    Returns:
        Ids `(rows, columns)` int64, mask `(rows, columns)` bool, and how many texts were cut (internal). A row whose
        text is None is all padding.
    """
    room = config.train.max_length
    pad = special_ids(tokenizer)[2]
    ids = torch.full((len(texts), room), pad, dtype=torch.long, device="cpu")
    mask = torch.zeros(len(texts), room, dtype=torch.bool, device="cpu")
    truncated = 0
    for row, text in enumerate(texts):
        tokens = [] if text is None else [*encode_text(tokenizer, text, lead=prompts.lead), prompts.end]
        truncated += len(tokens) > room
        tokens = tokens[:room]
        ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.long, device="cpu")
        mask[row, : len(tokens)] = True
    return ids, mask, truncated
