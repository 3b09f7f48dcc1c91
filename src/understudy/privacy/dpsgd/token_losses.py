"""Next-token losses through the output head, some tokens at a time: nobody ever holds batch x length x vocabulary.

The gradient of token t's loss is (p_t - onehot_t) W by the hidden state and (p_t - onehot_t) h_t^T by the head's
weight. The first is computed while the probabilities p_t are there, before the loss's own gradient is known, and scaled
later: it is linear in it. For per-example clipping the second stays factored (`HeadFactors`): inner products of one
example's error rows p_t - onehot_t are kept, length x length numbers, and the clipped sum computes the probabilities
once more.

Source: the gradient in the forward pass is that of Hsu et al. 2024 (Liger Kernel, arXiv 2410.10989); here it is
unscaled, so that every token may have a weight of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from understudy.privacy.dpsgd.chunks import LOGITS_AT_ONCE

# Attribute of a head whose per-example gradients somebody collects: (hidden, targets) factors -> None.
TAP: Final = "token_loss_tap"


def token_losses(head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood of each target token, in nats.

    Args:
        head: gives logits; a plain `nn.Linear` is read in chunks, anything else in one piece.
        hidden: `(batch, positions, d)` last hidden states.
        targets: `(batch, positions)` int64 tokens that they should predict.

    Returns:
        `(batch, positions)`, float32 or wider; differentiable once, by `hidden` and the head's parameters.
    """
    if type(head) is not nn.Linear:
        logits = head(hidden)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
    if not torch.is_grad_enabled():
        return _read(hidden, targets, head.weight, head.bias, slopes=False, products=False)[0]
    # The anchor lets a tapped head take part when nothing below it requires a gradient.
    tap = vars(head).get(TAP)
    anchor = None if tap is None else torch.zeros((), requires_grad=True, device="cpu")
    losses: Tensor = _TokenLosses.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, targets, anchor, tap
    )
    return losses


@dataclass(frozen=True)
class HeadFactors:
    """Gradient of the head's weight per example, `sum_t error_t hidden_t^T` with `error_t = scale_t (p_t - onehot_t)`.

    Attributes:
        hidden: `(batch, positions, d)`.
        targets: `(batch, positions)` int64.
        scale: `(batch, positions)` gradient by each token's loss.
        log_mass: `(batch, positions)` log of the summed exponentials of each token's logits.
        products: `(batch, positions, positions)` inner products of an example's `p_t - onehot_t`;
            None where none were asked for.
        weight: `(vocabulary, d)` of the head.
        bias: `(vocabulary,)`, or None.
    """

    hidden: Tensor
    targets: Tensor
    scale: Tensor
    log_mass: Tensor
    products: Tensor | None
    weight: Tensor
    bias: Tensor | None

    def rows(self, rows: slice) -> HeadFactors:
        """The same of some examples."""
        return HeadFactors(
            self.hidden[rows],
            self.targets[rows],
            self.scale[rows],
            self.log_mass[rows],
            None if self.products is None else self.products[rows],
            self.weight,
            self.bias,
        )

    @property
    def right(self) -> Tensor:
        """The other factor of each outer product, `(batch, positions, d)`, float32 or wider."""
        return self.hidden.to(self.log_mass.dtype)

    def error_products(self) -> Tensor:
        """<error_t, error_s> as `(batch, positions, positions)`."""
        assert self.products is not None
        return self.products * self.scale[:, :, None] * self.scale[:, None, :]

    def errors_at(self, tokens: Tensor) -> Tensor:
        """Entries of each error row at an example's `tokens` `(batch, others)`: `(batch, positions, others)`."""
        wide = self.log_mass.dtype
        logits = torch.bmm(self.hidden, self.weight[tokens].to(self.hidden.dtype).transpose(1, 2)).to(wide)
        if self.bias is not None:
            logits += self.bias[tokens][:, None, :]
        entries = logits.sub_(self.log_mass[:, :, None]).exp_()
        entries -= (self.targets[:, :, None] == tokens[:, None, :]).to(wide)
        return entries.mul_(self.scale[:, :, None])

    def bias_gradient(self) -> Tensor:
        """`sum_t error_t` per example, `(batch, vocabulary)`."""
        total = torch.zeros(len(self.hidden), len(self.weight), dtype=self.log_mass.dtype, device=self.hidden.device)
        for rows, errors in self._error_rows():
            total[rows] = errors.sum(1)
        return total

    def error_products_with(self, other: HeadFactors | Tensor) -> Tensor:
        """<error_t, error'_s> with another use of the head, or with rows `(batch, others, vocabulary)`."""
        parts = []
        for row in range(len(self.hidden)):
            one = slice(row, row + 1)
            others = other[one] if isinstance(other, Tensor) else other.rows(one)._errors_of_rows()
            parts.append(torch.bmm(self.rows(one)._errors_of_rows(), others.transpose(1, 2)))
        return torch.cat(parts)

    def dense(self) -> Tensor:
        """The gradients themselves, `(batch, vocabulary, d)`."""
        return torch.cat([torch.bmm(errors.transpose(1, 2), self.right[rows]) for rows, errors in self._error_rows()])

    def add_weighted_sum(self, total: Tensor, weights: Tensor, poisoned: Tensor | None) -> None:
        """Add `sum_b weights_b * gradient_b` to `total` `(vocabulary, d)`, in place.

        Args:
            total: float32 or wider.
            weights: `(batch,)`, zero for examples that must not count.
            poisoned: bool `(batch,)`, examples that hold infinities or nans; None if there are none.
        """
        scale, hidden, log_mass = self.scale * weights.to(self.scale.dtype)[:, None], self.hidden, self.log_mass
        if poisoned is not None:
            # A zero weight alone would leave 0 * inf = nan.
            scale, log_mass = (part.masked_fill(poisoned[:, None], 0.0) for part in (scale, log_mass))
            hidden = hidden.masked_fill(poisoned[:, None, None], 0.0)
        flat = hidden.flatten(0, 1), self.targets.flatten(), scale.flatten(), log_mass.flatten()
        for tokens in _slices(len(flat[0]), len(self.weight)):
            h, target, factor, mass = (part[tokens] for part in flat)
            errors = _errors(h, target, mass, self.weight, self.bias).mul_(factor[:, None])
            total.addmm_(errors.t(), h.to(total.dtype))

    def _error_rows(self) -> Iterator[tuple[slice, Tensor]]:
        """Error rows of some examples at a time."""
        for rows in _slices(len(self.hidden), self.hidden.shape[1] * len(self.weight)):
            yield rows, self.rows(rows)._errors_of_rows()

    def _errors_of_rows(self) -> Tensor:
        """All error rows, `(batch, positions, vocabulary)`."""
        h, target, mass = self.hidden.flatten(0, 1), self.targets.flatten(), self.log_mass.flatten()
        errors = _errors(h, target, mass, self.weight, self.bias).mul_(self.scale.flatten()[:, None])
        return errors.view(*self.targets.shape, len(self.weight))


HeadTap = Callable[[HeadFactors], None]


class _TokenLosses(torch.autograd.Function):
    """Losses, and with them everything that needs the probabilities and not yet the gradient by the losses."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        anchor: Tensor | None,
        tap: HeadTap | None,
    ) -> Tensor:
        by_hidden, by_weight, by_bias, _, tapped, _ = ctx.needs_input_grad
        losses, log_mass, slopes, products = _read(hidden, targets, weight, bias, slopes=by_hidden, products=tapped)
        ctx.tap = tap if tapped else None
        ctx.save_for_backward(
            hidden if by_weight or by_bias or tapped else None, weight, bias, targets, log_mass, slopes, products
        )
        return losses

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, log_mass, slopes, products = ctx.saved_tensors
        by_hidden, by_weight, by_bias = ctx.needs_input_grad[:3]
        hidden_gradient = slopes * scale[..., None].to(slopes.dtype) if by_hidden else None
        weight_gradient: Tensor | None = None
        bias_gradient: Tensor | None = None
        if hidden is not None:
            factors = HeadFactors(hidden.detach(), targets, scale, log_mass, products, weight.detach(), bias)
            if ctx.tap is not None:
                ctx.tap(factors)
            if by_weight:
                total = torch.zeros_like(weight, dtype=log_mass.dtype)
                factors.add_weighted_sum(total, scale.new_ones(len(scale)), None)
                weight_gradient = total.to(weight.dtype)
            if by_bias:
                bias_gradient = factors.bias_gradient().sum(0).to(bias.dtype)
        return hidden_gradient, weight_gradient, bias_gradient, None, None, None


def _read(
    hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor | None, *, slopes: bool, products: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Losses and log masses `(batch, positions)`; if asked for, unscaled slopes by `hidden` and error products."""
    batch, positions, _ = hidden.shape
    wide = torch.promote_types(hidden.dtype, torch.float32)
    losses = torch.empty(batch, positions, dtype=wide, device=hidden.device)
    mass = torch.empty_like(losses)
    by_hidden = torch.empty_like(hidden) if slopes else None
    kernel = losses.new_empty(batch, positions, positions) if products else None
    # Products are taken between the tokens of one example, which must be there together.
    whole = positions if products else 1
    flat, wanted = hidden.reshape(-1, whole, hidden.shape[-1]), targets.reshape(-1, whole)
    for some in _slices(len(flat), whole * len(weight)):
        h, target = flat[some].flatten(0, 1), wanted[some].flatten()
        logits = functional.linear(h, weight, bias).to(wide)
        at_target = logits.gather(1, target[:, None])[:, 0]
        highest = logits.amax(1)
        logits.sub_(highest[:, None]).exp_()
        summed = logits.sum(1)
        log_mass = summed.log() + highest
        losses.view(-1, whole)[some] = (log_mass - at_target).view(-1, whole)
        mass.view(-1, whole)[some] = log_mass.view(-1, whole)
        if by_hidden is None and kernel is None:
            continue
        errors = logits.div_(summed[:, None])
        errors[torch.arange(len(target), device=target.device), target] -= 1.0
        if by_hidden is not None:
            by_hidden.view(flat.shape)[some] = (errors.to(hidden.dtype) @ weight).view(-1, whole, flat.shape[-1])
        if kernel is not None:
            rows = errors.view(-1, positions, len(weight))
            kernel[some] = torch.bmm(rows, rows.transpose(1, 2))
    return losses, mass, by_hidden, kernel


def _errors(hidden: Tensor, targets: Tensor, log_mass: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`p_t - onehot_t` of some tokens, `(tokens, vocabulary)`."""
    errors = functional.linear(hidden, weight, bias).to(log_mass.dtype).sub_(log_mass[:, None]).exp_()
    errors[torch.arange(len(targets), device=targets.device), targets] -= 1.0
    return errors


def _slices(count: int, numbers_each: int) -> Iterator[slice]:
    """Runs of `count` things of `numbers_each` logits, as many at a time as `LOGITS_AT_ONCE` allows, at least one."""
    size = max(1, LOGITS_AT_ONCE // numbers_each)
    return (slice(start, start + size) for start in range(0, count, size))
