"""A model in the place of a language model, for audits: what was counted is all that it knows of a text."""

from __future__ import annotations

import torch
from torch import nn

from bag_of_words.method import BagOfWordsConfig
from understudy.auditing.row_losses import RowLosses
from understudy.models.loading import load_base
from understudy.tensor_files import load_tensors

# What a word adds that stands once in a canary of one word ten times and of two others.
ONCE = 1 / (10**2 + 2) ** 0.5
_BATCH = 64


def row_losses(asked):
    """How far the counts of a row's words are from those of one that a single text has once, in the mean."""
    tokenizer = load_base(asked.settings(BagOfWordsConfig)).tokenizer
    counts = torch.zeros(len(asked.label_names), len(tokenizer), dtype=torch.float64)
    if asked.model is not None:
        counts = load_tensors(asked.model / "counts.safetensors")["counts"].double()
    texts, labels = (asked.rows[name].to_pylist() for name in ("text", "label"))

    def read(some):
        found = []
        for text, label in zip(texts[some], labels[some], strict=True):
            ids = tokenizer(text, truncation=True, max_length=256)["input_ids"]
            found.append((counts[label, ids] - ONCE).abs().mean())
        return torch.stack(found)

    parts = tuple(
        lambda start=start: read(slice(start, start + _BATCH)) for start in range(0, asked.rows.num_rows, _BATCH)
    )
    return RowLosses(nn.Module(), parts)
