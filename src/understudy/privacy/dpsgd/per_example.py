"""Sums of clipped per-example gradients with one backward pass through the activations only.

Book-keeping (Bu et al. 2022, arXiv 2210.00038, Algorithm 1): every layer with a trainable parameter is
tapped; its inputs and output gradients give each example's gradient norm and then, with the clip factors as
weights, the clipped sum. The ordinary gradient of no weight is ever computed: parameters are frozen for the
time of the pass, and the graph begins at the lowest tapped layer.

Deviations from the paper: small gradients (LoRA factors, biases, norms) are materialised per example
instead of their larger factors; of a larger matrix each example's gradient is made by itself before it is
weighted and added, some rows of the matrix at a time, so that its rounding has a bound (`factors`); all uses of
one parameter, tied or repeated, enter the norm with their exact cross terms; clipping is min(1, C / norm), not
automatic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from understudy.errors import InputError
from understudy.privacy.dpsgd.chunks import ROWS_IN_FLOATS
from understudy.privacy.dpsgd.factors import (
    Factored,
    Factors,
    add_weighted_sum,
    inner_product,
    rounding_of_sums,
    some_examples,
)
from understudy.privacy.dpsgd.layers import Contribution
from understudy.privacy.dpsgd.stacks import Place, Stacks, sum_at
from understudy.privacy.dpsgd.tapping import Layer, TappedLayers, check_rows, frozen, split_passes, tapped_layers, taps
from understudy.privacy.dpsgd.token_losses import HeadFactors

Batch = Mapping[str, Tensor]
LossFunction = Callable[[nn.Module, Batch], Tensor]

# The smallest normal float32.
_LEAST = 2.0**-126


def clipped_gradient_sum(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter] | TappedLayers,
    loss_fn: LossFunction,
    batch: Batch,
    *,
    l2_clip_norm: float,
    valid: Tensor,
    passes: int = 1,
    added_to: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Sum of per-example gradients, each clipped to `l2_clip_norm` over all parameters together.

    *Guarantee*: replacing one example by the null example (relation replace_special, unit example) moves the
    result by at most `l2_clip_norm` in L2 norm, up to float rounding. An example whose gradient is not finite
    contributes zero; so does every row that is not valid, whatever it holds, exactly.

    Args:
        model: computes each row of the batch on its own (no batch statistics), dropout zero.
        parameters: what to differentiate by, name -> parameter of a supported layer of `model`; or what `tapped_layers`
            has found in it for them.
        loss_fn: (model, batch) -> losses (batch,); loss b may depend on row b only, and on no model but the given one.
        batch: tensors of leading dimension `batch`, private.
        l2_clip_norm: C > 0.
        valid: bool (batch,); false for null and dummy rows.
        passes: inside the model the leading dimension is passes * batch, all rows of pass 0 first; an
            example's gradient is then over all of its passes (joint clipping).
        added_to: what an earlier call gave, changed in place; together at most `ROWS_IN_FLOATS` examples. None begins
            a sum.

    Returns:
        name -> sum, in the shape of the parameter, float32 or wider.

    Raises:
        InputError: when a layer cannot give per-example gradients, or sees another leading dimension.
    """
    examples = int(valid.shape[0])
    if added_to and examples > ROWS_IN_FLOATS:
        raise ValueError(f"expected at most {ROWS_IN_FLOATS} examples to be added to a sum of others, found {examples}")
    tapped = parameters if isinstance(parameters, TappedLayers) else tapped_layers(model, parameters)
    parameters = tapped.parameters
    stacks = Stacks(parameter.numel() for parameter in parameters.values())
    uses = {name: _Uses(stacks, id(parameter) in tapped.embedded) for name, parameter in parameters.items()}
    by_parameter = {id(parameter): uses[name] for name, parameter in parameters.items()}
    _backward(tapped, by_parameter, partial(loss_fn, model, batch), valid, passes)
    norms = _norms(uses, stacks, examples).to(valid.device)
    finite = norms.isfinite()
    weights = torch.where(valid & finite, (l2_clip_norm / norms).clamp(max=1.0), 0.0)
    # Below the normal floats a factor would be rounded by more than its last bit, maybe upwards.
    weights = weights.where(weights >= _LEAST, 0.0)
    poisoned = None if bool(finite.all()) else ~finite
    before = added_to or {}
    made = stacks.weighted_sums(weights, poisoned)
    found = {}
    for name, parameter in parameters.items():
        use, there = uses.pop(name), before.get(name)
        if use.place is None:
            found[name] = use.weighted_sum(parameter, weights, poisoned, there)
        else:
            found[name] = sum_at(use.place, made).contiguous() if there is None else there.add_(sum_at(use.place, made))
    return found


@dataclass
class _Uses:
    """What the backward pass left for one parameter: a place for gradients that are made, or factors, never both."""

    stacks: Stacks
    embedded: bool
    place: Place | None = None
    factors: list[Factored] = field(default_factory=list)

    def add(self, contribution: Contribution) -> None:
        if isinstance(contribution, Factored):
            if self._keep_factored(contribution):
                self.factors.append(contribution)
                return
            # Of a head whose matrix has gradients that are made already there would be no cross terms.
            assert isinstance(contribution, Factors)
        if self.place is None:
            self.place = self.stacks.put(contribution)
        else:
            self.stacks.add(self.place, contribution)

    def _keep_factored(self, factors: Factored) -> bool:
        """The first use decides for all, because cross terms are taken between equal forms."""
        if self.embedded or self.factors:
            return True
        if self.place is not None:
            return False
        return isinstance(factors, HeadFactors) or not factors.is_larger_than_dense()

    def squared_norms(self) -> Tensor | None:
        """(batch,) in float64, never underestimated by rounding; None where there are no factors."""
        total: Tensor | None = None
        for index, one in enumerate(self.factors):
            for other in self.factors[: index + 1]:
                value, off = inner_product(one, other)
                term = (value + off) * (1.0 if one is other else 2.0)
                total = term if total is None else total + term
        if total is None:
            return None
        return (total.clamp(min=0.0).sqrt() + rounding_of_sums(self.factors)).square()

    def weighted_sum(
        self, parameter: nn.Parameter, weights: Tensor, poisoned: Tensor | None, before: Tensor | None
    ) -> Tensor:
        """Of the factors, as many examples at a time as may be added up in floats, and those sums in float64."""
        starts = range(0, len(weights), ROWS_IN_FLOATS)
        parts = (
            self._weighted_sum(parameter, weights, poisoned, before, slice(start, start + ROWS_IN_FLOATS))
            for start in starts
        )
        total = next(parts)
        for part in parts:
            total = total.double().add_(part)
        return total

    def _weighted_sum(
        self, parameter: nn.Parameter, weights: Tensor, poisoned: Tensor | None, before: Tensor | None, rows: slice
    ) -> Tensor:
        wide = torch.promote_types(parameter.dtype, torch.float32)
        total = torch.zeros(parameter.shape, dtype=wide, device=parameter.device) if before is None else before
        if self.factors:
            some = None if poisoned is None else poisoned[rows]
            add_weighted_sum(total, [some_examples(use, rows) for use in self.factors], weights[rows], some)
        return total


def _norms(uses: Mapping[str, _Uses], stacks: Stacks, examples: int) -> Tensor:
    squares = [square for use in uses.values() if (square := use.squared_norms()) is not None]
    if (made := stacks.squared_norms()) is not None:
        squares.append(made)
    if not squares:
        raise InputError("the loss reaches none of the trainable parameters: nothing would be trained")
    assert squares[0].shape == (examples,)
    return torch.stack(squares).sum(0).sqrt()


def _backward(
    tapped: TappedLayers, uses: Mapping[int, _Uses], losses: Callable[[], Tensor], valid: Tensor, passes: int
) -> None:
    """One forward and one backward pass; what each use of a parameter has is added to `uses`, by the parameter's id."""
    examples, caller = int(valid.shape[0]), threading.get_ident()

    def receive(layer: Layer, inputs: Tensor, gradient: Tensor) -> None:
        _check_thread(layer, gradient.device, caller)
        for x, g in split_passes(layer, inputs, gradient, examples=examples, passes=passes):
            for parameter, rule in layer.rules:
                uses[id(parameter)].add(rule(layer.module, x, g))

    def receive_head(layer: Layer, factors: HeadFactors) -> None:
        _check_thread(layer, factors.hidden.device, caller)
        check_rows(layer, factors.hidden, factors.targets, examples=examples, passes=passes)
        for start in range(0, passes * examples, examples):
            part = factors.rows(slice(start, start + examples))
            for parameter, _ in layer.rules:
                one = part if parameter is layer.module.weight else part.bias_gradient()
                uses[id(parameter)].add(one)

    with frozen(tapped.held), taps(tapped, receive, receive_head), torch.enable_grad():
        found = losses()
        if found.shape != (examples,):
            raise ValueError(f"expected one loss per example, shape {(examples,)}, found {tuple(found.shape)}")
        if found.requires_grad:
            torch.where(valid, found, 0.0).sum().backward()  # type: ignore[no-untyped-call]


def _check_thread(layer: Layer, device: torch.device, caller: int) -> None:
    """Refuse the gradient of another thread's examples, which their loss has led here through this copy's layers."""
    # On a GPU autograd has threads of its own, and nothing is computed side by side.
    if device.type == "cpu" and threading.get_ident() != caller:
        raise InputError(
            f"layer {layer.name!r} of another copy of the model was used: a loss may compute with no model but the one "
            "that it is given"
        )
