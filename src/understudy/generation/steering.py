"""PPLM: steer a frozen language model towards a label, batched and on the key/value cache.

Dathathri et al. 2019 (arXiv 1912.02164), section 3. Per token the cached keys and values (`key_value`) or the last
hidden state (`hidden`) are shifted by a few normalised gradient steps on

    log p(label | hidden) - kl_weight * KL(modified || unmodified)

and the next token comes from p_modified^gm_scale * p_unmodified^(1 - gm_scale), renormalised.

Deviations from the PPLM paper:
- the shift starts from the unmodified cache at every token instead of being carried on, so that one cache serves both
  distributions and errors do not pile up;
- steering strength is a budget, not a step length: each row goes as far along its shift as KL(modified || unmodified)
  of its next token stays within `kl_budget`, so that one constant fits every model. The paper has an absolute length;
- the gradient steps themselves are short (`_TRIAL`, relative to the norm of what is shifted, per sample and layer) and
  give a direction of the last hidden state; along it the head is affine, so one product with the head gives the logits
  at every length;
- by default the discriminator sees the state at the current token, where it was trained; `lookahead` adds the
  paper's expected next token;
- by default only the upper quarter of the layers is shifted, so that the layers below are read once for each token
  (docs/decisions/0035); `layers=1` shifts all, as the paper does.

Sums run over the batch and every norm over one sample only: a row's result does not depend on its batch mates. Shifts,
their norms and what the discriminator sees are float32 or wider, whatever the model computes in.

The unmodified pass over a token is recorded, so the first step's gradient costs a backward pass and no forward one. At
that point both distributions are equal, hence the gradient of their KL divergence is 0 and is not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from understudy.compute import widened
from understudy.generation.config import SteeringConfig
from understudy.generation.sampling import Step, StepHook, advance, head, next_logits
from understudy.generation.steering_length import length_within
from understudy.models.lower_layers import replayed

__all__ = ["Attribute", "SteeringConfig", "steer_towards"]

Attribute = Callable[[Tensor], Tensor]  # (batch, d) -> (batch, labels) logits

_SMALLEST = torch.finfo(torch.float32).tiny
_CERTAIN = -1e-6  # above this log-probability the float32 gradient is rounding noise
_TRIAL = 0.01  # length of a step before it is scaled to the budget, relative to the norm of what is shifted
_FARTHEST = 1.0  # length of the shift of the last hidden state, relative to its norm


@dataclass
class _Prefix:
    """What the discriminator has seen of each row: nothing but the last state, or the sum of its text's states."""

    kind: Literal["last", "mean"]
    total: Tensor | None = None

    def view(self, hidden: Tensor, step: Step, *, ahead: Tensor | None = None) -> Tensor:
        """The discriminator's input when the current state is `hidden` and the next one would be `ahead`."""
        if self.kind == "last":
            return hidden if ahead is None else ahead
        before = 0 if self.total is None else self.total[step.rows]
        earlier = (step.index - 1).clamp(min=0)[:, None]
        if ahead is None:
            return (before + hidden) / (earlier + 1)
        own = _is_text(step)
        return (before + own * hidden + ahead) / (earlier + own + 1)

    def remember(self, step: Step, batch: int) -> None:
        """Add the unmodified state of the current text token."""
        if self.kind == "last":
            return
        if self.total is None:
            self.total = widened(step.hidden).new_zeros(batch, step.hidden.shape[-1])
        self.total.index_add_(0, step.rows, widened(step.hidden) * _is_text(step))


def _is_text(step: Step) -> Tensor:
    """`(active, 1)` bool, False where the last token is the prompt's."""
    return step.index[:, None] > 0


def steer_towards(
    targets: Tensor,
    *,
    config: SteeringConfig,
    attribute: Attribute,
    representation: Literal["last", "mean"] = "last",
) -> StepHook | None:
    """Make the step hook that steers each row of one batch towards its label; a fresh one for every batch.

    Args:
        targets: `(batch,)` int64 wanted label of each row.
        config: PPLM constants.
        attribute: Discriminator on hidden states `(active, d)`, giving label logits `(active, labels)`.
        representation: What the discriminator was trained on: the state at one position, or the mean of the text's
            states up to it.

    Returns:
        The hook, or None when the constants turn steering off: the unsteered sample, exactly.
    """
    if not config.active:
        return None
    prefix = _Prefix(representation)

    def hook(model: Any, step: Step) -> Tensor:
        objective = _objective(
            model, step, config=config, attribute=attribute, targets=targets[step.rows], prefix=prefix
        )
        shift = _shift_hidden if config.steer == "hidden" else _shift_key_values
        modified = shift(step, config, objective)
        prefix.remember(step, targets.shape[0])
        shifted = widened(modified) - widened(step.hidden)
        slope = _logit_slope(model, shifted)
        farthest = _FARTHEST * _norm((widened(step.hidden),)) / _norm((shifted,)).clamp(min=_SMALLEST)
        length = length_within(step.logits, slope, budget=config.kl_budget, farthest=farthest)
        # The head is affine: the fusion's logits lie on the same line.
        return step.logits + config.gm_scale * length[:, None] * slope

    return hook


def _logit_slope(model: Any, shift: Tensor) -> Tensor:
    """What a shift of the last hidden state `(active, d)` adds to the logits, `(active, vocab)`."""
    slope, bias = next_logits(model, shift), getattr(head(model), "bias", None)
    return slope if bias is None else slope - widened(bias)


class Objective(Protocol):
    """What is to be raised: modified hidden states `(active, d)` -> `(active,)`."""

    def __call__(self, hidden: Tensor, *, moved: bool) -> Tensor:
        """`moved` says whether the states differ from the unmodified ones."""


def _objective(
    model: Any, step: Step, *, config: SteeringConfig, attribute: Attribute, targets: Tensor, prefix: _Prefix
) -> Objective:
    def objective(hidden: Tensor, *, moved: bool) -> Tensor:
        held_back = moved and config.kl_weight > 0  # at its minimum the divergence and its gradient are 0
        logp = next_logits(model, hidden).log_softmax(-1) if held_back or config.lookahead else None
        ahead = _expected_next(model, step, logp) if config.lookahead and logp is not None else None
        seen = prefix.view(widened(hidden), step, ahead=None if ahead is None else widened(ahead))
        label = attribute(seen).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
        gain = torch.where(label < _CERTAIN, label, torch.zeros_like(label))
        if held_back and logp is not None:
            gain = gain - config.kl_weight * (logp.exp() * (logp - step.logits.log_softmax(-1))).sum(-1)
        return gain

    return objective


def _expected_next(model: Any, step: Step, logp: Tensor) -> Tensor:
    """Hidden state after the expected embedding of the next token (PPLM's horizon), on the unmodified cache."""
    embeddings = model.get_input_embeddings().weight
    mask = torch.cat([step.attention_mask, torch.ones_like(step.attention_mask[:, :1])], dim=1)
    expected = (logp.exp().to(embeddings.dtype) @ embeddings)[:, None]
    hidden, _ = advance(model, step.key_values, attention_mask=mask, position=step.position + 1, inputs_embeds=expected)
    return hidden[:, -1]


Group = tuple[Tensor, ...]  # `(active, ...)` each; they share one norm per row


def _slopes(value: Tensor, groups: Sequence[Group]) -> list[Group]:
    """Gradient of the summed objective `(active,)` by every tensor."""
    slopes = iter(torch.autograd.grad(value.sum(), [tensor for group in groups for tensor in group]))
    return [tuple(next(slopes) for _ in group) for group in groups]


def _ascend(
    groups: Sequence[Group],
    slopes: Sequence[Group],
    *,
    config: SteeringConfig,
    value: Callable[[Sequence[Group]], Tensor],
) -> Sequence[Group]:
    """Normalised gradient ascent on `groups`.

    Args:
        groups: What is shifted, zero where nothing may move.
        slopes: Gradient of the objective there, from the unmodified pass.
        config: Number and length of the steps.
        value: Objective per row `(active,)` as a function of the shifted groups.

    Returns:
        The groups, shifted.
    """
    lengths = [_TRIAL * _norm(group) for group in groups]
    for number in range(config.steps):
        if number > 0:
            groups = [tuple(tensor.requires_grad_() for tensor in group) for group in groups]
            with torch.enable_grad():
                slopes = _slopes(value(groups), groups)
        moved = []
        for group, slope, length in zip(groups, slopes, lengths, strict=True):
            norm = _norm(slope)
            scale = torch.where(norm > 0, length / norm.clamp(min=_SMALLEST), 0)
            moved.append(tuple(_added(tensor, part, scale) for tensor, part in zip(group, slope, strict=True)))
        groups = moved
    return groups


def _norm(group: Group) -> Tensor:
    """`(active,)` norm of a row's part of all tensors together."""
    parts = [torch.linalg.vector_norm(tensor.detach().flatten(1), dim=1) for tensor in group]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    return norm


def _added(tensor: Tensor, slope: Tensor, scale: Tensor) -> Tensor:
    return torch.addcmul(tensor.detach(), slope, scale.view(-1, *[1] * (slope.dim() - 1)))


def _shift_hidden(step: Step, config: SteeringConfig, objective: Objective) -> Tensor:
    """Shift the last hidden state; the transformer's backward pass is not needed unless looking ahead."""
    with torch.enable_grad():
        state = widened(step.hidden).detach().requires_grad_()
        slopes = _slopes(objective(state, moved=False), [(state,)])
    [(shifted,)] = _ascend([(state,)], slopes, config=config, value=lambda groups: objective(groups[0][0], moved=True))
    return shifted


def _shift_key_values(step: Step, config: SteeringConfig, objective: Objective) -> Tensor:
    """Shift the upper layers' cache before the last token and read that token again on it."""
    below = step.below(config.layers)

    def read_again(groups: Sequence[Group]) -> Tensor:
        with replayed(lower):
            return step.read(lambda layer, *new: step.joined(layer, groups[layer - below], new))

    hidden, leaves, lower = step.record(config.window, below=below)
    with torch.enable_grad():
        slopes = _slopes(objective(hidden, moved=False), leaves)
    return read_again(
        _ascend(leaves, slopes, config=config, value=lambda groups: objective(read_again(groups), moved=True))
    )
