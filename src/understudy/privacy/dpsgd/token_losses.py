"""Next-token losses through the output head, some tokens at a time: nobody ever holds batch x length x vocabulary.

The gradient of token t's loss is (p_t - onehot_t) W by the hidden state and (p_t - onehot_t) h_t^T by the head's
weight. The first is computed while the probabilities p_t are there, before the loss's own gradient is known, and scaled
later: it is linear in it. For per-example clipping the second stays factored (`HeadFactors`): inner products of one
example's error rows p_t - onehot_t are kept, length x length numbers, and the clipped sum computes the probabilities
once more. Both times they are made by the same products of the same shapes, one example at a time, so that what is
added up is what was measured, bit for bit: where logits are large, their last bits decide a probability.

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
# Products of an inner product that are added up in float32 before float64 goes on.
TERMS_AT_ONCE: Final = 1 << 12


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
        scale: `(batch, positions)` gradient by each token's loss, float32 or wider.
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
        return self.hidden.to(self.scale.dtype)

    def error_products(self) -> Tensor:
        """<error_t, error_s> as `(batch, positions, positions)`."""
        assert self.products is not None
        return self.products * self.scale[:, :, None] * self.scale[:, None, :]

    def error_norm(self) -> Tensor:
        """Frobenius norm of an example's error rows, `(batch,)` float64."""
        assert self.products is not None
        squares = self.products.diagonal(dim1=1, dim2=2).double() * self.scale.double().square()
        return squares.sum(1).sqrt()

    def errors(self) -> Tensor:
        """All error rows, `(batch, positions, vocabulary)`."""
        parts = []
        for hidden, targets, scale in zip(self.hidden, self.targets, self.scale, strict=True):
            exponentials, summed, _, _ = _exponentials(hidden, targets, self.weight, self.bias)
            parts.append(_errors(exponentials, summed, targets).mul_(scale[:, None])[None])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def errors_at(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Entries of each error row at an example's `tokens` `(batch, others)`, without all the other logits.

        Returns:
            `(batch, positions, others)`, and a bound on their distance from the entries of `errors`: other products
            may give a logit another rounding error, by which its exponential grows or shrinks.
        """
        wide, columns = self.log_mass.dtype, self.weight[tokens].to(self.hidden.dtype)
        logits = torch.bmm(self.hidden, columns.transpose(1, 2)).to(wide)
        largest = self.hidden.to(wide).norm(dim=2)[:, :, None] * columns.to(wide).norm(dim=2)[:, None, :]
        if self.bias is not None:
            logits += self.bias[tokens][:, None, :]
            largest = largest + self.bias.abs().max().to(wide)
        # A probability is at most 1. Where the last bits of logits decide it, what is found here may be far above.
        entries = logits.sub_(self.log_mass[:, :, None]).exp_().clamp_(max=1.0)
        unit = torch.finfo(self.hidden.dtype).eps
        exponent = unit * ((self.hidden.shape[2] + 32) * largest + 4 * self.log_mass.abs()[:, :, None] + 32)
        off = ((entries + torch.finfo(wide).tiny) * exponent.expm1()).clamp(max=1.0)
        entries -= (self.targets[:, :, None] == tokens[:, None, :]).to(wide)
        scale = self.scale[:, :, None]
        return entries.mul_(scale), off.mul_(scale.abs())

    def bias_gradient(self) -> Tensor:
        """`sum_t error_t` per example, `(batch, vocabulary)`."""
        return torch.cat([errors.sum(1) for _, errors in self.some_errors()])

    def error_products_with(self, other: HeadFactors | Tensor) -> Tensor:
        """<error_t, error'_s> with another use of the head, or with rows `(batch, others, vocabulary)`."""
        parts = []
        for row in range(len(self.hidden)):
            one = slice(row, row + 1)
            others = other[one] if isinstance(other, Tensor) else other.rows(one).errors()
            parts.append(products_of(self.rows(one).errors(), others))
        return torch.cat(parts)

    def dense(self) -> Tensor:
        """The gradients themselves, `(batch, vocabulary, d)`."""
        return torch.cat([torch.bmm(errors.transpose(1, 2), self.right[rows]) for rows, errors in self.some_errors()])

    def add_sum(self, total: Tensor) -> None:
        """Add the gradients of all examples to `total` `(vocabulary, d)`, in place and without clipping."""
        for rows, errors in self.some_errors():
            total.addmm_(errors.flatten(0, 1).t(), self.right[rows].flatten(0, 1))

    def some_errors(self) -> Iterator[tuple[slice, Tensor]]:
        """Error rows of one example at a time."""
        for rows in _runs(len(self.hidden), 1):
            yield rows, self.rows(rows).errors()


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
        # The same memory is read for the norm and for the sum: a product may hang on where its factors lie.
        hidden = hidden.contiguous()
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
                total = torch.zeros_like(weight, dtype=scale.dtype)
                factors.add_sum(total)
                weight_gradient = total.to(weight.dtype)
            if by_bias:
                bias_gradient = factors.bias_gradient().sum(0).to(bias.dtype)
        return hidden_gradient, weight_gradient, bias_gradient, None, None, None


def _read(
    hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor | None, *, slopes: bool, products: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Losses and log masses `(batch, positions)`; if asked for, unscaled slopes by `hidden` and error products."""
    batch, positions, width = hidden.shape
    losses = torch.empty(batch, positions, dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
    mass = torch.empty_like(losses)
    by_hidden = torch.empty_like(hidden) if slopes else None
    kernel = losses.new_empty(batch, positions, positions) if products else None
    flat, wanted = hidden.reshape(-1, width), targets.reshape(-1)
    # Products are taken between the tokens of one example, by its error rows as `HeadFactors.errors` makes them.
    for some in _runs(len(flat), positions) if products else _slices(len(flat), len(weight)):
        exponentials, summed, log_mass, at_target = _exponentials(flat[some], wanted[some], weight, bias)
        losses.view(-1)[some] = log_mass - at_target
        mass.view(-1)[some] = log_mass
        if by_hidden is None and kernel is None:
            continue
        errors = _errors(exponentials, summed, wanted[some])
        if by_hidden is not None:
            by_hidden.view(-1, width)[some] = errors.to(hidden.dtype) @ weight
        if kernel is not None:
            kernel.view(-1, positions)[some] = products_of(errors[None], errors[None])[0]
    return losses, mass, by_hidden, kernel


def _exponentials(
    hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of some tokens: exponentials of logits below the highest, their sums, log masses, and the targets' logits."""
    logits = functional.linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    at_target = logits.gather(1, targets[:, None])[:, 0]
    highest = logits.amax(1)
    exponentials = logits.sub_(highest[:, None]).exp_()
    summed = exponentials.sum(1)
    return exponentials, summed, summed.log() + highest, at_target


def _errors(exponentials: Tensor, summed: Tensor, targets: Tensor) -> Tensor:
    """`p_t - onehot_t` of some tokens, `(tokens, vocabulary)`, in place of their exponentials."""
    errors = exponentials.div_(summed[:, None])
    errors[torch.arange(len(targets), device=targets.device), targets] -= 1.0
    return errors


def _runs(count: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, count, size))


def _slices(count: int, numbers_each: int) -> Iterator[slice]:
    """Runs of `count` things of `numbers_each` logits, as many at a time as `LOGITS_AT_ONCE` allows, at least one."""
    return _runs(count, max(1, LOGITS_AT_ONCE // numbers_each))


def products_of(left: Tensor, right: Tensor) -> Tensor:
    """Inner products of an example's rows, `(batch, rows, n)` and `(batch, others, n)`: `(batch, rows, others)`.

    Sums of more than `TERMS_AT_ONCE` products are made in parts, and the parts added up in float64: so the rounding
    error is below (`TERMS_AT_ONCE` + 1) units in the last place of the norms' product, whatever n is.
    """
    size = left.shape[2]
    if size <= TERMS_AT_ONCE:
        return torch.bmm(left, right.transpose(1, 2))
    total = left.new_zeros(len(left), left.shape[1], right.shape[1], dtype=torch.float64)
    for start in range(0, size, TERMS_AT_ONCE):
        some = slice(start, start + TERMS_AT_ONCE)
        total += torch.bmm(left[:, :, some], right[:, :, some].transpose(1, 2))
    return total.to(left.dtype)
