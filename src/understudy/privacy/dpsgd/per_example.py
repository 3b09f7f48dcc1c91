"""Sums of clipped per-example gradients with one backward pass through the activations only.

Book-keeping (Bu et al. 2022, arXiv 2210.00038, Algorithm 1): every layer with a trainable parameter is
tapped; its inputs and output gradients give each example's gradient norm and then, with the clip factors as
weights, the clipped sum. The ordinary gradient of no weight is ever computed: parameters are frozen for the
time of the pass, and the graph begins at the lowest tapped layer.

Deviations from the paper: small gradients (LoRA factors, biases, norms) are materialised per example
instead of their larger factors; of a larger matrix each example's gradient is made by itself before it is
weighted and added, some rows of the matrix at a time, so that its rounding has a bound (`layers`); all uses of
one parameter, tied or repeated, enter the norm with their exact cross terms; clipping is min(1, C / norm), not
automatic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from understudy.errors import InputError
from understudy.privacy.dpsgd.chunks import ROWS_IN_FLOATS
from understudy.privacy.dpsgd.layers import (
    Contribution,
    Factored,
    Rule,
    add_weighted_sum,
    inner_product,
    lie_on_their_side,
    rounding_of_sums,
    rules_of,
    some_examples,
    weighted_dense,
)
from understudy.privacy.dpsgd.token_losses import TAP, HeadFactors

Batch = Mapping[str, Tensor]
LossFunction = Callable[[nn.Module, Batch], Tensor]

# Squares added up in float32. A running sum loses what is below half of its last bit: over a whole matrix more than
# `grid.ALLOWANCE`, over so few under a sixteenth of it however they are added up.
_SQUARES_AT_ONCE = 1 << 12
# The smallest normal float32: what a square may lose that is below it.
_LEAST = 2.0**-126


def clipped_gradient_sum(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
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
        parameters: what to differentiate by, name -> parameter of a supported layer of `model`.
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
    uses = _backward(model, parameters, loss_fn, batch, valid, passes)
    norms = _norms(uses, examples).to(valid.device)
    finite = norms.isfinite()
    weights = torch.where(valid & finite, (l2_clip_norm / norms).clamp(max=1.0), 0.0)
    # Below the normal floats a factor would be rounded by more than its last bit, maybe upwards.
    weights = weights.where(weights >= _LEAST, 0.0)
    poisoned = None if bool(finite.all()) else ~finite
    before = added_to or {}
    return {
        name: uses.pop(name).weighted_sum(parameters[name], weights, poisoned, before.get(name)) for name in parameters
    }


@dataclass
class _Uses:
    """What the backward pass left for one parameter: materialised gradients or factors, never both."""

    embedded: bool
    dense: Tensor | None = None
    factors: list[Factored] = field(default_factory=list)

    def add(self, contribution: Contribution) -> None:
        if isinstance(contribution, Factored):
            if self._keep_factored(contribution):
                self.factors.append(contribution)
                return
            contribution = contribution.dense()
        self.dense = contribution if self.dense is None else self.dense.add_(contribution)

    def _keep_factored(self, factors: Factored) -> bool:
        """The first use decides for all, because cross terms are taken between equal forms."""
        if self.embedded or self.factors:
            return True
        if self.dense is not None:
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
        """As many examples at a time as may be added up in the parameter's type, and those sums in float64."""
        if self.dense is not None:
            found = weighted_dense(self.dense, weights, poisoned)
            return found if before is None else before.add_(found)
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


def _norms_of_blocks(rows: Tensor) -> list[Tensor]:
    """Norms of a few numbers each, (batch, blocks): together they are of all of (batch, numbers)."""
    whole = rows.shape[1] // _SQUARES_AT_ONCE * _SQUARES_AT_ONCE
    found = []
    if whole:
        blocks = rows[:, :whole].reshape(len(rows), -1, _SQUARES_AT_ONCE)
        found.append(torch.linalg.vector_norm(blocks, dim=2))
    if whole < rows.shape[1]:
        found.append(torch.linalg.vector_norm(rows[:, whole:], dim=1)[:, None])
    return found


def _squares(dense: Sequence[Tensor]) -> Tensor:
    """(batch,) float64 squared norms of gradients that are there, over all of them, never underestimated."""
    rows = [(one.transpose(1, 2) if lie_on_their_side(one) else one).flatten(1) for one in dense]
    norms = torch.cat([block for one in rows for block in _norms_of_blocks(one)], dim=1)
    return norms.double().square().sum(1) + sum(one.shape[1] for one in rows) * _LEAST


def _norms(uses: Mapping[str, _Uses], examples: int) -> Tensor:
    squares = [square for use in uses.values() if (square := use.squared_norms()) is not None]
    if dense := [use.dense for use in uses.values() if use.dense is not None]:
        squares.append(_squares(dense))
    if not squares:
        raise InputError("the loss reaches none of the trainable parameters: nothing would be trained")
    assert squares[0].shape == (examples,)
    return torch.stack(squares).sum(0).sqrt()


def _backward(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    loss_fn: LossFunction,
    batch: Batch,
    valid: Tensor,
    passes: int,
) -> dict[str, _Uses]:
    """One forward and one backward pass with every layer that holds a parameter tapped."""
    layers = _layers(model, parameters)
    embedded = {id(p) for layer in layers if isinstance(layer.module, nn.Embedding) for p in layer.owned}
    uses = {name: _Uses(embedded=id(parameter) in embedded) for name, parameter in parameters.items()}
    by_parameter = {id(parameter): uses[name] for name, parameter in parameters.items()}
    examples, caller = int(valid.shape[0]), threading.get_ident()

    def receive(layer: _Layer, inputs: Tensor, gradient: Tensor) -> None:
        _check_thread(layer, gradient.device, caller)
        for x, g in _split_passes(layer, inputs, gradient, examples=examples, passes=passes):
            for parameter, rule in layer.rules:
                by_parameter[id(parameter)].add(rule(layer.module, x, g))

    def receive_head(layer: _Layer, factors: HeadFactors) -> None:
        _check_thread(layer, factors.hidden.device, caller)
        _check_rows(layer, factors.hidden, factors.targets, examples=examples, passes=passes)
        for start in range(0, passes * examples, examples):
            part = factors.rows(slice(start, start + examples))
            for parameter, _ in layer.rules:
                one = part if parameter is layer.module.weight else part.bias_gradient()
                by_parameter[id(parameter)].add(one)

    with frozen(model), _tapped(layers, receive, receive_head), torch.enable_grad():
        losses = loss_fn(model, batch)
        if losses.shape != (examples,):
            raise ValueError(f"expected one loss per example, shape {(examples,)}, found {tuple(losses.shape)}")
        if losses.requires_grad:
            torch.where(valid, losses, 0.0).sum().backward()  # type: ignore[no-untyped-call]
    return uses


def _check_thread(layer: _Layer, device: torch.device, caller: int) -> None:
    """Refuse the gradient of another thread's examples, which their loss has led here through this copy's layers."""
    # On a GPU autograd has threads of its own, and nothing is computed side by side.
    if device.type == "cpu" and threading.get_ident() != caller:
        raise InputError(
            f"layer {layer.name!r} of another copy of the model was used: a loss may compute with no model but the one "
            "that it is given"
        )


@dataclass(frozen=True)
class _Layer:
    """A module that holds at least one of the parameters itself."""

    name: str
    module: nn.Module
    rules: tuple[tuple[nn.Parameter, Rule], ...]

    @property
    def owned(self) -> list[nn.Parameter]:
        return [parameter for parameter, _ in self.rules]


def _layers(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> list[_Layer]:
    wanted = {id(parameter): name for name, parameter in parameters.items()}
    if len(wanted) != len(parameters):
        raise ValueError("a parameter is listed under two names; list tied parameters once")
    layers = []
    for name, module in model.named_modules():
        own = {key: p for key, p in module.named_parameters(recurse=False) if id(p) in wanted}
        if own:
            rules = rules_of(name, module)
            layers.append(_Layer(name, module, tuple((p, rules[key]) for key, p in own.items())))
    found = {id(p) for layer in layers for p in layer.owned}
    missing = sorted(name for key, name in wanted.items() if key not in found)
    if missing:
        raise ValueError(f"parameters that the model does not hold: {missing}")
    return layers


def _split_passes(
    layer: _Layer, inputs: Tensor, gradient: Tensor, *, examples: int, passes: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The layer's input and output gradient, pass by pass, as (batch, positions, features)."""
    rows = examples if examples == 1 else passes * examples
    if examples > 1:
        _check_rows(layer, inputs, gradient, examples=examples, passes=passes)
    wide = torch.promote_types(gradient.dtype, torch.float32)
    g = gradient.to(wide).reshape(rows, -1, gradient.shape[-1])
    x = inputs.to(wide).reshape(rows, -1, inputs.shape[-1]) if inputs.is_floating_point() else inputs.reshape(rows, -1)
    for start in range(0, rows, examples):
        yield x[start : start + examples], g[start : start + examples]


def _check_rows(layer: _Layer, inputs: Tensor, outputs: Tensor, *, examples: int, passes: int) -> None:
    rows = passes * examples
    if outputs.shape[0] != rows or inputs.shape[0] != rows:
        raise InputError(
            f"layer {layer.name!r} saw a leading dimension of {outputs.shape[0]} for {examples} examples in "
            f"{passes} pass(es), expected {rows}: keep the batch first and unflattened, and give models with "
            "position embeddings explicit position_ids of the full batch size"
        )


class _Tap(torch.autograd.Function):
    """The identity on a layer's output; its backward hands the layer's input and output gradient over.

    The anchor requires a gradient and gets none: it makes the graph begin here when everything below is
    frozen. The input is saved through autograd, so that recomputed activations work too.
    """

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, anchor: Tensor, inputs: Tensor, receive: Callable[[Tensor, Tensor], None]
    ) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.receive = receive
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        (inputs,) = ctx.saved_tensors
        ctx.receive(inputs, gradients[0])
        return gradients[0] if ctx.needs_input_grad[0] else None, None, None, None


@contextmanager
def _tapped(
    layers: list[_Layer],
    receive: Callable[[_Layer, Tensor, Tensor], None],
    receive_head: Callable[[_Layer, HeadFactors], None],
) -> Iterator[None]:
    anchor = torch.zeros((), requires_grad=True, device="cpu")

    def tap(layer: _Layer) -> Callable[[Tensor], Tensor]:
        plain = layer.module.forward

        def forward(inputs: Tensor) -> Tensor:
            output: Tensor = plain(inputs)
            if not torch.is_grad_enabled():
                return output
            # detach: the saved input must not hold on to the graph of what made it
            saved = inputs.detach()
            tapped: Tensor = _Tap.apply(  # type: ignore[no-untyped-call]
                output, anchor, saved, partial(receive, layer)
            )
            return tapped

        return forward

    # A module may carry a forward of its own instead of its class's; that one comes back.
    before = [vars(layer.module).get("forward") for layer in layers]
    try:
        for layer in layers:
            layer.module.forward = tap(layer)
            vars(layer.module)[TAP] = partial(receive_head, layer)
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            vars(layer.module).pop("forward", None)
            vars(layer.module).pop(TAP, None)
            if own is not None:
                layer.module.forward = own


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No parameter requires a gradient, so that autograd computes those of activations only; not again inside."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in trainable:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
