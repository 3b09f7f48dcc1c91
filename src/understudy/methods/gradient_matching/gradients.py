"""How far the gradient of synthetic rows lies from that of real ones, along fine-tuning.

Paper: gradient matching (GRADMM), appendix D, Figures 8 and 9: with L the mean loss over the real rows, L^s that over
the synthetic ones and theta_t the weights after t steps,
|grad L(theta_t) - grad L^s(theta_t)| / |grad L(theta_t)|, once for the last layer, once for all weights.
The last layer is the output head, weight and bias; where it shares its weights with the embeddings, their use as
embeddings does not count there, but does in the gradient of all weights. The loss is the target model's own
(`LabelModel.loss`), clipped nowhere and without noise.

Both figures read the real rows outside any mechanism: they are internal, and never choose anything that is exported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.utility.classifier import check_labels
from understudy.evaluation.utility.label_model import LabelModel, encode_rows, label_loss, last_states
from understudy.evaluation.utility.transfer import Callback

_CHUNK = 32


@dataclass(frozen=True)
class GradientError:
    """Relative distance of the mean gradients; 0 is a perfect match, 1 what no gradient at all would reach.

    Attributes:
        last_layer: of the output head.
        full: of all weights; None where it was not asked for.
    """

    last_layer: float
    full: float | None = None


def gradient_error(
    target: LabelModel, synthetic: LabelledTexts, real: LabelledTexts, *, full: bool = False
) -> GradientError:
    """Compare the mean gradients of synthetic and real rows at the model's present weights.

    Args:
        target: the model; its weights, gradients and `requires_grad` are left as they are.
        synthetic: labelled rows.
        real: labelled rows, private; a random part of them is enough where there are many.
        full: also differentiate by all weights, at the price of a backward pass over every row.

    Raises:
        InputError: when a side has no row or a label is out of range.
    """
    last_layer = relative_distance([head_gradient(target, synthetic)], [head_gradient(target, real)])
    if not full:
        return GradientError(last_layer)
    return GradientError(last_layer, relative_distance(all_gradients(target, synthetic), all_gradients(target, real)))


def record_errors(
    synthetic: LabelledTexts, real: LabelledTexts, *, full: bool = False
) -> tuple[Callback, list[tuple[int, GradientError]]]:
    """A callback for `transfer.fine_tune`, and the list into which it writes (steps done, error); internal."""
    found: list[tuple[int, GradientError]] = []

    def callback(step: int, target: LabelModel) -> None:
        found.append((step, gradient_error(target, synthetic, real, full=full)))

    return callback, found


def head_gradient(target: LabelModel, rows: LabelledTexts) -> Tensor:
    """Gradient of the mean loss by the output head, in closed form: mean of (p - onehot) [h; 1?]^T.

    Args:
        target: the model.
        rows: labelled rows.

    Returns:
        (V, d), or (V, d + 1) if the head has a bias; K rows instead of V where the loss is over the label words, for
        the other rows of the head get none.
    """
    truth, encoded = _checked(target, rows)
    head = target.model.get_output_embeddings()
    tokens = target.words.token_ids.to(truth.device)
    total: Tensor | None = None
    with torch.no_grad():
        for chunk in torch.split(torch.arange(len(encoded), device="cpu"), _CHUNK):
            states = last_states(target, [encoded[row] for row in chunk.tolist()])
            logits, answers = head(states), truth[chunk]
            logits, answers = (logits[:, tokens], answers) if target.loss == "verbalizer" else (logits, tokens[answers])
            errors = logits.softmax(-1) - functional.one_hot(answers, logits.shape[-1])
            inputs = states if head.bias is None else functional.pad(states, (0, 1), value=1.0)
            product = errors.T @ inputs
            total = product if total is None else total.add_(product)
    assert total is not None  # there is at least one row
    return total / len(encoded)


def all_gradients(target: LabelModel, rows: LabelledTexts) -> list[Tensor]:
    """Gradient of the mean loss by every weight, in the order of `model.parameters()`; shared weights count once."""
    truth, encoded = _checked(target, rows)
    weights = list(target.model.parameters())
    head = target.model.get_output_embeddings()
    totals = [torch.zeros_like(weight) for weight in weights]
    with _differentiable(weights), torch.enable_grad():
        for chunk in torch.split(torch.arange(len(encoded), device="cpu"), _CHUNK):
            logits = head(last_states(target, [encoded[row] for row in chunk.tolist()]))
            loss = label_loss(logits, truth[chunk], words=target.words, loss=target.loss).sum() / len(encoded)
            for total, part in zip(totals, torch.autograd.grad(loss, weights, allow_unused=True), strict=True):
                if part is not None:
                    total += part
    return totals


def relative_distance(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """|found - wanted| / |wanted| over all tensors together; infinite where `wanted` is zero."""
    distance, norm = (
        sum(float(tensor.double().square().sum()) for tensor in tensors)
        for tensors in ((a - b for a, b in zip(found, wanted, strict=True)), wanted)
    )
    return float((distance / norm) ** 0.5) if norm > 0 else float("inf")


def _checked(target: LabelModel, rows: LabelledTexts) -> tuple[Tensor, list[list[int]]]:
    device = next(target.model.parameters()).device
    truth = torch.from_numpy(check_labels(rows.texts, rows.labels, classes=target.classes)).to(device)
    return truth, encode_rows(target, rows.texts)


@contextmanager
def _differentiable(weights: Sequence[Any]) -> Iterator[None]:
    """Let gradients reach all weights, and put `requires_grad` back."""
    before = [weight.requires_grad for weight in weights]
    try:
        for weight in weights:
            weight.requires_grad_(True)
        yield
    finally:
        for weight, required in zip(weights, before, strict=True):
            weight.requires_grad_(required)
