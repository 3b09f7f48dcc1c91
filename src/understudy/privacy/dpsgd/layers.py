"""Which layers give per-example gradients, and in which factored form.

The gradient of a weight matrix for one example is a sum of outer products over its positions,
`sum_t left_t right_t^T`: output gradient and input of a linear layer, or, for an embedding, a one-hot row
and the output gradient. Norms, inner products and weighted sums are computed from these factors, so that
the gradient itself is materialised only where it is smaller than its factors.

Source: Bu et al. 2022, "Differentially Private Optimization on Large Model at Small Cost", arXiv
2210.00038; the ghost norm goes back to Goodfellow 2015, arXiv 1510.01799, and Li et al. 2021, arXiv
2110.05679.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from understudy.errors import InputError
from understudy.privacy.dpsgd.token_losses import HeadFactors

# Matched by name, so that transformers need not be imported here: a linear layer with weight (inputs, outputs).
_CONV1D = "transformers.pytorch_utils.Conv1D"
# How configs of transformers call the number of experts of a layer.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# They share LlamaRMSNorm's formula: weight * x / sqrt(mean(x^2) + variance_epsilon).
RMS_NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Phi3RMSNorm")


@dataclass(frozen=True)
class Factors:
    """Gradient of one matrix per example: `sum_t left_t right_t^T`.

    Attributes:
        left: (batch, positions, height), or row numbers (batch, positions) that stand for one-hot rows.
        right: (batch, positions, width).
    """

    left: Tensor
    right: Tensor

    @property
    def sparse(self) -> bool:
        """Whether `left` holds row numbers."""
        return not self.left.is_floating_point()

    def dense(self) -> Tensor:
        """The gradients themselves, (batch, height, width); only for a `left` that is not row numbers."""
        return torch.bmm(self.left.transpose(1, 2), self.right)

    def is_larger_than_dense(self) -> bool:
        """Whether the factors take more memory than the gradients (then they also cost more work)."""
        _, positions, height = self.left.shape
        width = self.right.shape[2]
        return height * width <= positions * (height + width)


Factored = Factors | HeadFactors


def inner_product(one: Factored, other: Factored) -> tuple[Tensor, Tensor]:
    """Inner product of two gradients of the same matrix, example by example, in float64.

    `<sum_t l_t r_t^T, sum_s l'_s r'_s^T> = sum_ts <l_t, l'_s> <r_t, r'_s>` (ghost norm, T^2 terms).

    Returns:
        The inner products (batch,), and the product of the two kernels' Frobenius norms (batch,): the scale
        of the float32 rounding error that cancellation may leave in the first.
    """
    rows = _left_kernel(one, other)
    columns = torch.bmm(one.right, other.right.transpose(1, 2))
    scale = _frobenius(rows) * _frobenius(columns)
    return rows.mul_(columns).sum((1, 2), dtype=torch.float64), scale


def _left_kernel(one: Factored, other: Factored) -> Tensor:
    """<l_t, l'_s> as (batch, positions, other positions)."""
    if isinstance(one, HeadFactors):
        return _head_kernel(one, other)
    if isinstance(other, HeadFactors):
        return _head_kernel(other, one).transpose(1, 2).contiguous()
    if one.sparse and other.sparse:
        return (one.left[:, :, None] == other.left[:, None, :]).to(one.right.dtype)
    if one.sparse:
        return _left_kernel(other, one).transpose(1, 2).contiguous()
    if other.sparse:
        return one.left.gather(2, other.left[:, None, :].expand(-1, one.left.shape[1], -1))
    return torch.bmm(one.left, other.left.transpose(1, 2))


def _head_kernel(head: HeadFactors, other: Factored) -> Tensor:
    if head is other:
        return head.error_products()
    if isinstance(other, HeadFactors):
        return head.error_products_with(other)
    return head.errors_at(other.left) if other.sparse else head.error_products_with(other.left)


def _frobenius(kernel: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(kernel.flatten(1), dim=1, dtype=torch.float64)
    return norms


def add_weighted_sum(total: Tensor, factors: Factored, weights: Tensor, poisoned: Tensor | None) -> None:
    """Add `sum_b weights_b * gradient_b` to `total` (height, width) with one matrix product (book-keeping).

    Args:
        total: changed in place.
        factors: of the whole batch.
        weights: (batch,), zero for examples that must not count.
        poisoned: bool (batch,), examples that hold infinities or nans; None if there are none.
    """
    if isinstance(factors, HeadFactors):
        factors.add_weighted_sum(total, weights, poisoned)
        return
    left, right = factors.left, _without(poisoned, factors.right)
    weights = weights.to(right.dtype)[:, None, None]
    if factors.sparse:
        total.index_add_(0, left.flatten(), (right * weights).flatten(0, 1))
        return
    left = _without(poisoned, left)
    if left.shape[2] < right.shape[2]:
        left = left * weights
    else:
        right = right * weights
    total.addmm_(left.flatten(0, 1).t(), right.flatten(0, 1))


def add_weighted_dense(total: Tensor, gradients: Tensor, weights: Tensor, poisoned: Tensor | None) -> None:
    """Add `sum_b weights_b * gradients_b` to `total`; arguments as for `add_weighted_sum`."""
    flat = _without(poisoned, gradients).flatten(1)
    total.view(-1).add_(weights.to(flat.dtype) @ flat)


def _without(poisoned: Tensor | None, values: Tensor) -> Tensor:
    """`values` with poisoned examples set to zero: a zero weight alone would leave 0 * inf = nan."""
    if poisoned is None:
        return values
    return values.masked_fill(poisoned.view(-1, *[1] * (values.ndim - 1)), 0.0)


Contribution = Factored | Tensor
Rule = Callable[[nn.Module, Tensor, Tensor], Contribution]


def _linear_weight(_: nn.Module, inputs: Tensor, gradient: Tensor) -> Contribution:
    return Factors(gradient, inputs)


def _conv1d_weight(_: nn.Module, inputs: Tensor, gradient: Tensor) -> Contribution:
    return Factors(inputs, gradient)


def _bias(_: nn.Module, inputs: Tensor, gradient: Tensor) -> Contribution:
    return gradient.sum(1)


def _embedding_weight(module: nn.Module, inputs: Tensor, gradient: Tensor) -> Contribution:
    assert isinstance(module, nn.Embedding)
    if module.padding_idx is not None:
        # As torch does: the row of the padding token gets no gradient from this use.
        gradient = gradient.masked_fill((inputs == module.padding_idx)[:, :, None], 0.0)
    return Factors(inputs, gradient)


def _layer_norm_weight(module: nn.Module, inputs: Tensor, gradient: Tensor) -> Contribution:
    assert isinstance(module, nn.LayerNorm)
    normalised = nn.functional.layer_norm(inputs, module.normalized_shape, None, None, module.eps)
    return (gradient * normalised).sum(1)


def _rms_norm_weight(module: nn.Module, inputs: Tensor, gradient: Tensor) -> Contribution:
    epsilon = float(module.variance_epsilon)  # type: ignore[arg-type]
    scale = torch.rsqrt(inputs.square().mean(-1, keepdim=True) + epsilon)
    return (gradient * (inputs * scale)).sum(1)


def check_rows_apart(model: nn.Module) -> None:
    """Refuse a model in which one example meets others; before anything is charged.

    In a mixture of experts each multiplies the tokens that it is sent together, whosever they are. That moves their
    last bits, and in the next layer such bits may decide which expert a token is sent to: one example would move the
    gradients of others.

    Raises:
        InputError: the model is a mixture of experts.
    """
    for module in model.modules():
        config = getattr(module, "config", None)
        counts = [count for name in _EXPERTS if isinstance(count := getattr(config, name, None), int)]
        if max(counts, default=0) > 1:
            raise InputError(
                f"expected a model in which every example is computed by itself, found a mixture of {max(counts)} "
                f"experts ({type(module).__name__}); choose a model without experts"
            )


def check_layers(model: nn.Module, trained: Collection[str] | None = None) -> None:
    """Refuse a model that gives no example a gradient of its own; before anything is charged.

    Args:
        model: what is trained.
        trained: names of the layers that are; None for those with a parameter that requires a gradient.

    Raises:
        InputError: a trained layer cannot give per-example gradients (it is named), or the model is a mixture of
            experts.
    """
    check_rows_apart(model)
    for name, module in model.named_modules():
        own = module.parameters(recurse=False)
        if name in trained if trained is not None else any(parameter.requires_grad for parameter in own):
            rules_of(name, module)


def rules_of(name: str, module: nn.Module) -> dict[str, Rule]:
    """How the gradients of a module's own parameters follow from its input and its output gradient.

    Inputs and gradients arrive as (batch, positions, features); the input of an embedding as (batch,
    positions).

    Raises:
        InputError: naming the layer, when it cannot give per-example gradients.
    """
    if isinstance(module, nn.Linear):
        return {"weight": _linear_weight, "bias": _bias}
    if f"{type(module).__module__}.{type(module).__qualname__}" == _CONV1D:
        return {"weight": _conv1d_weight, "bias": _bias}
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        return {"weight": _layer_norm_weight, "bias": _bias}
    if type(module).__name__ in RMS_NORMS:
        return {"weight": _rms_norm_weight}
    if isinstance(module, nn.Embedding) and _is_plain(module):
        return {"weight": _embedding_weight}
    raise InputError(
        f"layer {name!r} ({type(module).__name__}) cannot give per-example gradients; expected Linear, "
        f"Conv1D, Embedding, LayerNorm over the last dimension or one of {', '.join(RMS_NORMS)}: freeze its "
        "parameters or train with LoRA"
    )


def _is_plain(module: nn.Embedding) -> bool:
    return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
