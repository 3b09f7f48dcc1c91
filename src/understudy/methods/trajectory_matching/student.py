"""The student: a base model whose adapters are arguments, and its loss on [pseudo tokens ; embedded text].

Paper: NACD, Equation 1. The pseudo tokens of a row are embeddings. They stand before the whole row, or before its
instruction, after the opening of the template. The loss is the mean over the row's response and end tokens, then over
the rows. The base model stays frozen. Deviations: the paper has the first place only, which a model hardly reads when a
begin token follows. It does not say over which tokens its loss is taken; the response alone is the usual choice in
instruction tuning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from understudy.compute import copied_to, widened
from understudy.generation.step import backbone, head
from understudy.methods.trajectory_matching.unroll import Weights
from understudy.models.lora import attach, trainable_parameters


@dataclass(frozen=True)
class Rows:
    """Encoded instructions with responses, padded on the right to one width.

    They lie on the CPU. The student takes those of one pass to its own device.

    Attributes:
        input_ids: `(n, width)` int64.
        attention_mask: `(n, width)` int64, 1 on all but padding.
        loss_mask: `(n, width)` bool, response and end token.
        place: column that pseudo tokens stand before; in front of every response.
    """

    input_ids: Tensor = field(repr=False)
    attention_mask: Tensor = field(repr=False)
    loss_mask: Tensor = field(repr=False)
    place: int = 0

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, rows: Tensor) -> Rows:
        """Some rows, cut to the longest of them: what padding there is after that reaches no loss."""
        mask = self.attention_mask[rows]
        width = max(2, int(mask.sum(1).max()))
        return Rows(self.input_ids[rows, :width], mask[:, :width], self.loss_mask[rows, :width], self.place)

    def on(self, device: torch.device) -> Rows:
        """The same rows on a device."""
        return Rows(
            copied_to(self.input_ids, device),
            copied_to(self.attention_mask, device),
            copied_to(self.loss_mask, device),
            self.place,
        )


class Student(nn.Module):
    """A base model with adapters that are given with each call."""

    def __init__(self, base: Any, *, rank: int, alpha: float, seed: int) -> None:
        """Attach adapters to `base`, which is changed; nothing of it is trained in place."""
        super().__init__()
        generator = torch.Generator().manual_seed(generator_seed(seed))
        self.adapted = attach(base, rank=rank, alpha=alpha, generator=generator)
        self.start: Weights = {
            name: parameter.detach().clone() for name, parameter in trainable_parameters(self.adapted).items()
        }
        self.requires_grad_(False)

    @property
    def lm(self) -> Any:
        """The base model, adapters inside."""
        return self.adapted.get_base_model()

    @property
    def vocabulary(self) -> Tensor:
        """Input embeddings `(vocabulary, d)`."""
        weight: Tensor = self.lm.get_input_embeddings().weight
        return weight

    def embed(self, input_ids: Tensor) -> Tensor:
        """Embeddings `(batch, width, d)`, without a graph."""
        with torch.no_grad():
            found: Tensor = self.lm.get_input_embeddings()(input_ids)
        return found

    def forward(self, rows: Rows, prompts: Tensor | None) -> Tensor:
        """Loss `(batch,)` of each row, its pseudo tokens at their place."""
        rows = rows.on(self.vocabulary.device)
        inputs, attention = self.embed(rows.input_ids), rows.attention_mask
        offset = 0
        if prompts is not None:
            offset = prompts.shape[1]
            parts = inputs[:, : rows.place], prompts.to(inputs), inputs[:, rows.place :]
            inputs = torch.cat(parts, dim=1)
            attention = functional.pad(attention, (offset, 0), value=1)
        states = backbone(self.lm)(inputs_embeds=inputs, attention_mask=attention, use_cache=False).last_hidden_state
        # Only the positions that predict a response meet the head: logits are the largest tensor of all.
        row, column = rows.loss_mask[:, 1:].nonzero(as_tuple=True)
        logits = widened(head(self.lm)(states[row, column + offset]))
        losses = functional.cross_entropy(logits, rows.input_ids[row, column + 1], reduction="none")
        sums = losses.new_zeros(len(rows)).index_add(0, row, losses)
        return sums / rows.loss_mask[:, 1:].sum(1).clamp(min=1)

    def loss(self, weights: Weights, rows: Rows, prompts: Tensor | None) -> Tensor:
        """Mean loss `()` of the rows at some adapters' weights.

        Args:
            weights: of the adapters, by name.
            rows: of one batch, on any device.
            prompts: `(batch, k, d)` pseudo tokens, or None.
        """
        named = {f"adapted.{name}": value for name, value in weights.items()}
        found: Tensor = functional_call(self, named, (rows, prompts)).mean()
        return found


@dataclass(frozen=True)
class BatchLoss:
    """The loss of the inner steps over fixed batches of rows, a `StudentLoss`."""

    student: Student
    batches: Sequence[Rows]

    def __call__(self, weights: Weights, prompts: Tensor, step: int, rows: slice = slice(None)) -> Tensor:
        """Loss of some rows of one inner step."""
        batch = self.batches[step]
        places = torch.arange(len(batch), device=batch.input_ids.device)[rows]
        return self.student.loss(weights, batch[places], prompts)


def generator_seed(number: int) -> int:
    """A seed for torch, whose generator of the CPU reads 32 bits of it: a smaller number itself, or a digest's bits.

    >>> generator_seed(7), generator_seed(1 << 32) == generator_seed(0)
    (7, False)
    """
    return number if number < 2**32 else int.from_bytes(hashlib.sha256(str(number).encode()).digest()[:4], "big")


def moved(weights: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Weights on a device, float32."""
    return {name: value.to(device, torch.float32) for name, value in weights.items()}
