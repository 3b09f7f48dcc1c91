"""The gradient of one example's label loss, as two factors (GRADMM, section 4.3), and what is done with it.

The label is predicted at one position only, so the gradient of the output head is rank one: with p the predicted
distribution, y the label's token and h the head's input it is (p - onehot(y)) h^T, and with a bias h has a 1 appended.
Norms, inner products and clipped sums follow from the factors; no gradient of one example is ever formed.

    kind         left (B, L)                               right (B, R)           gradient
    head         p - onehot(y) over the vocabulary         h, or h and 1          left right^T
    label_rows   the same over the K label tokens alone    h, or h and 1          left right^T
    sketch       A (p - onehot(y)), A (m, vocabulary)      B right, B (m, R)      left * right / sqrt(m)

Deviations from the paper: it matches the weight alone, here weight and bias are one vector. `label_rows` and `sketch`
are ours: noise grows with the square root of the dimension, what is known of the labels does not. A and B are public
and hold independent signs, under which an inner product of two gradients is kept in the mean, with a standard deviation
of about 1/sqrt(m) of their norms (less than with normal entries, for the left factor has few large parts). The head
must be a plain linear layer whose output is the logits: models that scale or cap them are refused. Where the head is
tied to the input embedding, the gradient is that of its use as a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from understudy.errors import InputError
from understudy.generation.prompts import row_seeds
from understudy.generation.sampling import head
from understudy.methods.gradient_matching.config import TargetConfig
from understudy.methods.gradient_matching.verbalizer import Verbalizer
from understudy.models.output_head import logits_are_the_heads
from understudy.privacy.dpsgd.layers import check_rows_apart

Kind = Literal["head", "label_rows", "sketch"]


@dataclass(frozen=True)
class TargetSpace:
    """Where gradients live; all of it public.

    Attributes:
        kind: head, label_rows or sketch.
        token_ids: `(K,)` int64, the labels' tokens.
        has_bias: Whether the head has a bias.
        vocabulary: Rows V of the head.
        hidden_size: Width d of the head's input.
        sketch: A `(m, V)` and B `(m, d or d + 1)` float32 of +-1; None for the other kinds.
    """

    kind: Kind
    token_ids: Tensor
    has_bias: bool
    vocabulary: int
    hidden_size: int
    sketch: tuple[Tensor, Tensor] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one label's gradient."""
        if self.sketch is not None:
            return (self.sketch[0].shape[0],)
        rows = self.vocabulary if self.kind == "head" else len(self.token_ids)
        return (rows, self.hidden_size + int(self.has_bias))

    @property
    def dimension(self) -> int:
        """Numbers in one label's gradient."""
        return math.prod(self.shape)


def target_space(model: Any, verbalizer: Verbalizer, config: TargetConfig, *, public_seed: int) -> TargetSpace:
    """The space of a model's gradients, on the model's device.

    Args:
        model: Causal language model of transformers.
        verbalizer: The labels' tokens.
        config: Kind and size of the sketch.
        public_seed: Of the sketch.

    Raises:
        InputError: The model's logits are not a linear function of its last hidden state.
    """
    check_head(model)
    weight, bias = head(model).weight, head(model).bias
    rows, width = weight.shape
    sketch = None
    if config.kind == "sketch":
        seed = row_seeds(public_seed, [0], purpose="gradient-matching/sketch")[0]
        generator = torch.Generator().manual_seed(seed)
        sketch = (
            _signs(config.sketch_dimension, rows, generator).to(weight.device),
            _signs(config.sketch_dimension, width + (bias is not None), generator).to(weight.device),
        )
    return TargetSpace(
        kind=config.kind,
        token_ids=verbalizer.token_ids.to(weight.device),
        has_bias=bias is not None,
        vocabulary=rows,
        hidden_size=width,
        sketch=sketch,
    )


def check_head(model: Any) -> None:
    """Refuse a model whose logits are not its head's output at its last hidden state of one row alone.

    Raises:
        InputError: There is no such head, its output is scaled or capped before it becomes logits, or the model is a
            mixture of experts, in which rows meet.
    """
    check_rows_apart(model)
    layer = head(model)
    if not isinstance(layer, torch.nn.Linear):
        raise InputError(f"model={type(model).__name__}: expected a linear output head, found {type(layer).__name__}")
    if not logits_are_the_heads(model):
        raise InputError(
            f"model={type(model).__name__}: expected logits that are the output head's, found them scaled or capped; "
            "gradient matching has no closed form for this model, choose another"
        )


def label_loss(space: TargetSpace, logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the labels' tokens, over the vocabulary or (label_rows) the labels alone.

    Args:
        space: Says which.
        logits: `(B, V)` at the template's last position.
        labels: `(B,)` int64 label indices.

    Returns:
        `(B,)`.
    """
    if space.kind == "label_rows":
        return functional.cross_entropy(logits[:, space.token_ids], labels, reduction="none")
    return functional.cross_entropy(logits, space.token_ids[labels], reduction="none")


def factors(space: TargetSpace, hidden: Tensor, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Each example's gradient as its two factors.

    Args:
        space: Where gradients live.
        hidden: `(B, d)`, the head's input.
        logits: `(B, V)`, the head's output.
        labels: `(B,)` int64 label indices.

    Returns:
        left `(B, L)` and right `(B, R)`, differentiable.
    """
    ones = hidden.new_ones(len(hidden), 1)
    right = torch.cat([hidden, ones], dim=1) if space.has_bias else hidden
    if space.kind == "label_rows":
        return _residual(logits[:, space.token_ids], labels), right
    left = _residual(logits, space.token_ids[labels])
    if space.sketch is None:
        return left, right
    a, b = space.sketch
    return left @ a.T, right @ b.T


def gradient_norm(space: TargetSpace, left: Tensor, right: Tensor) -> Tensor:
    """Norm `(B,)` of each example's gradient; of its sketch, where it is sketched."""
    if space.sketch is not None:
        norm: Tensor = torch.linalg.vector_norm(left * right, dim=1) / math.sqrt(left.shape[1])
        return norm
    norm = torch.linalg.vector_norm(left, dim=1) * torch.linalg.vector_norm(right, dim=1)
    return norm


def inner(space: TargetSpace, left: Tensor, right: Tensor, target: Tensor, labels: Tensor) -> Tensor:
    """Inner product `(B,)` of each example's gradient with its own label's target.

    Args:
        space: Where gradients live.
        left: `(B, L)`.
        right: `(B, R)`.
        target: `(K, *space.shape)`.
        labels: `(B,)` int64.
    """
    if space.sketch is not None:
        return (left * right * target[labels]).sum(1) / math.sqrt(left.shape[1])
    # One product per label that occurs: a copy of the target per example would be K times the head, B times over.
    order = labels.argsort(stable=True)
    parts = []
    for label in sorted(set(labels.tolist())):
        rows = (labels == label).nonzero()[:, 0]
        parts.append(((right[rows] @ target[label].T) * left[rows]).sum(1))
    return torch.cat(parts)[order.argsort()]


def clipped_sum(
    space: TargetSpace,
    left: Tensor,
    right: Tensor,
    labels: Tensor,
    valid: Tensor,
    l2_clip_norm: float,
    *,
    into: Tensor | None = None,
) -> Tensor:
    """Sum of the clipped gradients of each label's examples.

    *Guarantee*: replacing one example by the null example (relation replace_special, unit example) moves the result
    by at most `l2_clip_norm` in L2 norm over all labels together, up to float rounding: an example adds to one label
    only. One that is not valid adds nothing, whatever it holds; nor does one whose gradient is not finite.

    Args:
        space: Where gradients live.
        left: `(B, L)`, private.
        right: `(B, R)`, private.
        labels: `(B,)` int64, private; any value in range where not valid.
        valid: `(B,)` bool, private.
        l2_clip_norm: C > 0, public.
        into: `(K, *space.shape)` float64, the sum of other examples, which is added to in place; None starts at 0.

    Returns:
        `(K, *space.shape)` float64, so that the order of the examples leaves no mark on its float32 value.
    """
    left, right = left.double(), right.double()
    norms = gradient_norm(space, left, right)
    counted = valid & norms.isfinite()
    weights = torch.where(counted, (l2_clip_norm / norms).clamp(max=1.0), 0.0)
    # Not by multiplication: 0 times an infinite or undefined value would not be 0.
    left = torch.where(counted[:, None], left * weights[:, None], 0.0)
    right = torch.where(counted[:, None], right, 0.0)
    classes = len(space.token_ids)
    total = left.new_zeros(classes, *space.shape) if into is None else into
    if space.sketch is not None:
        member = functional.one_hot(labels, classes).to(left.dtype)
        return total.addmm_(member.T, left * right / math.sqrt(left.shape[1]))
    for label in range(classes):
        # By its members only: with zeros in the other rows each label would cost a product of the whole batch.
        members = (counted & (labels == label)).nonzero()[:, 0]
        if len(members):
            total[label].addmm_(left[members].T, right[members])
    return total


def _residual(logits: Tensor, truth: Tensor) -> Tensor:
    """Softmax - onehot(truth), whose entry at the truth is minus the sum of the others.

    As p - 1 it would lose all its digits in float32 where the model is sure of the truth.
    """
    wrong = 1 - torch.zeros_like(logits).scatter(1, truth[:, None], 1.0)
    others = logits.softmax(-1) * wrong
    return others - (1 - wrong) * others.sum(1, keepdim=True)


def _signs(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Independent +1 and -1, float32."""
    return torch.randint(0, 2, (rows, columns), generator=generator, dtype=torch.int8).float() * 2 - 1
