"""A causal language model that labels a text by the word it would write next: `BOS text template` -> label's word.

Paper: GRADMM, section 3 (prompt and response) and 5.1. Its loss is the negative log-likelihood of
the response, that is cross-entropy over the whole vocabulary at the template's last position (`loss="vocabulary"`);
`loss="verbalizer"` normalises over the K label words alone. The verdict is the likeliest of the K label words, of
which the paper says nothing. Every text begins after BOS, which the paper leaves open.

A model that was trained on real rows is an evaluation model, and what it says of real rows is internal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from understudy.evaluation.texts.language_model import pad
from understudy.evaluation.utility.classifier import Labels, check_labels
from understudy.generation.prompts import encode_text, special_ids

Loss = Literal["vocabulary", "verbalizer"]
_BATCH = 64


class LabelWords(Protocol):
    """What a verbaliser tells: the token that answers each label and the template before it; public."""

    @property
    def token_ids(self) -> Tensor:
        """(K,) int64, one token per label."""

    @property
    def template_ids(self) -> Tensor:
        """(T,) int64."""


@dataclass(frozen=True)
class LabelModel:
    """A model with the words that it answers with.

    Attributes:
        model: transformers causal language model, in eval mode.
        tokenizer: its tokenizer.
        words: label words and template in that tokenizer.
        max_length: tokens of a text that are read; BOS and template come on top.
        loss: what `label_losses` and fine-tuning mean by loss.
        prior: (K,) taken off the label words' logits before the likeliest is found; empty for nothing.
    """

    model: Any
    tokenizer: Any
    words: LabelWords
    max_length: int
    loss: Loss = "vocabulary"
    prior: tuple[float, ...] = ()

    @property
    def classes(self) -> int:
        """Number of labels."""
        return len(self.words.token_ids)


def encode_rows(target: LabelModel, texts: Sequence[str]) -> list[list[int]]:
    """`BOS text template` of each row; the text is cut at `max_length` tokens, the template never."""
    return [encode_row(target, text) for text in texts]


def encode_row(target: LabelModel, text: str) -> list[int]:
    """`BOS text template` of one row."""
    return [
        special_ids(target.tokenizer)[0],
        *encode_text(target.tokenizer, text)[: target.max_length],
        *target.words.template_ids.tolist(),
    ]


def padded(target: LabelModel, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Right-padded ids and attention mask of token sequences, on the model's device; both (rows, longest) int64."""
    return pad(sequences, pad_id=special_ids(target.tokenizer)[2], device=next(target.model.parameters()).device)


def last_states(target: LabelModel, sequences: Sequence[Sequence[int]]) -> Tensor:
    """What enters the output head at the last token of each sequence, (rows, d)."""
    ids, mask = padded(target, sequences)
    outputs = target.model.base_model(input_ids=ids, attention_mask=mask, use_cache=False)
    last: Tensor = outputs.last_hidden_state[torch.arange(len(ids), device=ids.device), mask.sum(1) - 1]
    return last


def label_loss(logits: Tensor, labels: Tensor, *, words: LabelWords, loss: Loss) -> Tensor:
    """Loss of each row's label word, (rows,) in nats.

    Args:
        logits: (rows, V) next-token logits after the template.
        labels: (rows,) int64 label indices.
        words: the label words.
        loss: over the whole vocabulary or over the label words.
    """
    tokens = words.token_ids.to(logits.device)
    if loss == "verbalizer":
        return functional.cross_entropy(logits[:, tokens], labels, reduction="none")
    return functional.cross_entropy(logits, tokens[labels], reduction="none")


def predict(target: LabelModel, texts: Sequence[str]) -> Labels:
    """The likeliest of the K label words for each text, (n,) int64; the first of equals."""
    return predict_encoded(target, encode_rows(target, texts))


def predict_encoded(target: LabelModel, sequences: Sequence[Sequence[int]]) -> Labels:
    """`predict` for token sequences that end with the template, whatever stands before."""
    tokens, prior = target.words.token_ids, torch.tensor(target.prior or [0.0] * target.classes, device="cpu")

    def likeliest(logits: Tensor, _rows: Tensor) -> Tensor:
        return (logits[:, tokens.to(logits.device)] - prior.to(logits)).argmax(-1)

    found = _read(target, sequences, likeliest)
    return found.astype(np.int64)


def label_losses(target: LabelModel, texts: Sequence[str], labels: Sequence[int] | Labels) -> npt.NDArray[np.float64]:
    """Loss of each text's own label, (n,) float64 in nats.

    Raises:
        InputError: when there is no text, or a label is missing or out of range.
    """
    truth = torch.from_numpy(check_labels(texts, labels, classes=target.classes))

    def read(logits: Tensor, rows: Tensor) -> Tensor:
        return label_loss(logits.double(), truth[rows].to(logits.device), words=target.words, loss=target.loss)

    return _read(target, encode_rows(target, texts), read).astype(np.float64)


def _read(
    target: LabelModel, sequences: Sequence[Sequence[int]], read: Callable[[Tensor, Tensor], Tensor]
) -> npt.NDArray[np.generic]:
    """`read(logits, rows)` over all sequences, those of like length together so that little is padded; (n,)."""
    if not sequences:
        return np.zeros(0)
    order = torch.tensor(
        sorted(range(len(sequences)), key=lambda row: len(sequences[row])), dtype=torch.long, device="cpu"
    )
    head = target.model.get_output_embeddings()
    with torch.no_grad():
        found = [
            read(head(last_states(target, [sequences[row] for row in rows.tolist()])), rows).cpu()
            for rows in torch.split(order, _BATCH)
        ]
    values: npt.NDArray[np.generic] = torch.cat(found)[torch.argsort(order)].numpy()
    return values
