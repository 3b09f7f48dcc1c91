"""PPLM: steer a frozen language model towards a label, batched and on the key/value cache.

Dathathri et al. 2019 (arXiv 1912.02164), section 3. Per token the cached keys and values (`key_value`) or the last
hidden state (`hidden`) are shifted by a few normalised gradient steps on

    log p(label | hidden) - kl_weight * KL(modified || unmodified)

and the next token comes from p_modified^gm_scale * p_unmodified^(1 - gm_scale), renormalised.

Deviations from the PPLM paper:
- the shift starts from the unmodified cache at every token instead of being carried on, so that one cache serves both
  distributions and errors do not pile up;
- a step's length is relative to the norm of what is shifted, per sample and layer, so that one constant fits models
  of different scale; the paper normalises over the whole batch by an absolute length;
- by default the discriminator sees the state at the current token, where it was trained; `lookahead` adds the
  paper's expected next token.

Sums run over the batch and every norm over one sample only: a row's result does not depend on its batch mates. Shifts,
their norms and what the discriminator sees are float32 or wider, whatever the model computes in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from understudy.compute import widened
from understudy.generation.config import SteeringConfig
from understudy.generation.sampling import KeyValues, Step, StepHook, advance, next_logits

__all__ = ["Attribute", "SteeringConfig", "steer_towards"]

Attribute = Callable[[Tensor], Tensor]  # (batch, d) -> (batch, labels) logits

_CERTAIN = -1e-6  # above this log-probability the float32 gradient is rounding noise


@dataclass
class _Prefix:
    """What the discriminator has seen of each row: nothing but the last state, or the sum of its text's states."""

    kind: Literal["last", "mean"]
    total: Tensor | None = None

    def view(self, hidden: Tensor, step: Step, *, ahead: Tensor | None = None) -> Tensor:
        """The discriminator's input when the current state is `hidden` and the next one would be `ahead`."""
        last = hidden if ahead is None else ahead
        if self.kind == "last":
            return last
        states = [hidden] if step.index > 0 or ahead is None else []  # the prompt's state is no text
        states += [] if ahead is None else [ahead]
        before = 0 if self.total is None else self.total[step.rows]
        count = max(step.index - 1, 0) + len(states)
        return (before + torch.stack(states).sum(0)) / count

    def remember(self, step: Step, batch: int) -> None:
        """Add the unmodified state of the current text token."""
        if self.kind == "last" or step.index == 0:
            return
        if self.total is None:
            self.total = widened(step.hidden).new_zeros(batch, step.hidden.shape[-1])
        self.total = self.total.index_add(0, step.rows, widened(step.hidden))


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
        modified = next_logits(model, shift(model, step, config, objective))
        prefix.remember(step, targets.shape[0])
        fused = config.gm_scale * modified.log_softmax(-1) + (1 - config.gm_scale) * step.logits.log_softmax(-1)
        logits: Tensor = fused.log_softmax(-1)
        return logits

    return hook


Objective = Callable[[Tensor], Tensor]  # modified hidden states (active, d) -> (active,), to be raised


def _objective(
    model: Any, step: Step, *, config: SteeringConfig, attribute: Attribute, targets: Tensor, prefix: _Prefix
) -> Objective:
    unmodified = step.logits.log_softmax(-1)

    def objective(hidden: Tensor) -> Tensor:
        needs_logits = config.kl_weight > 0 or config.lookahead
        logp = next_logits(model, hidden).log_softmax(-1) if needs_logits else None
        ahead = _expected_next(model, step, logp) if config.lookahead and logp is not None else None
        seen = prefix.view(hidden, step, ahead=ahead)
        label = attribute(seen).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
        gain = torch.where(label < _CERTAIN, label, torch.zeros_like(label))
        if config.kl_weight > 0 and logp is not None:
            gain = gain - config.kl_weight * (logp.exp() * (logp - unmodified)).sum(-1)
        return gain

    return objective


def _expected_next(model: Any, step: Step, logp: Tensor) -> Tensor:
    """Hidden state after the expected embedding of the next token (PPLM's horizon), on the unmodified cache."""
    embeddings = model.get_input_embeddings().weight
    mask = torch.cat([step.attention_mask, torch.ones_like(step.attention_mask[:, :1])], dim=1)
    expected = (logp.exp().to(embeddings.dtype) @ embeddings)[:, None]
    hidden, _ = advance(model, step.key_values, attention_mask=mask, position=step.position + 1, inputs_embeds=expected)
    return hidden[:, -1]


def _ascend(
    groups: list[list[Tensor]], config: SteeringConfig, value: Callable[[list[list[Tensor]]], Tensor]
) -> list[list[Tensor]]:
    """Normalised gradient ascent on shifts of `groups`; a group shares one norm per sample.

    Args:
        groups: Tensors `(active, ...)` to be shifted, zeroed where nothing may move.
        config: Number and length of the steps.
        value: Objective per row `(active,)` as a function of the shifts.

    Returns:
        The shifts, grouped as given.
    """
    lengths = [config.step_size * _norm(group) for group in groups]
    shifts = [[torch.zeros_like(tensor) for tensor in group] for group in groups]
    for _ in range(config.steps):
        leaves = [[shift.detach().requires_grad_() for shift in group] for group in shifts]
        flat = [leaf for group in leaves for leaf in group]
        with torch.enable_grad():
            gradients = iter(torch.autograd.grad(value(leaves).sum(), flat))
        shifts = []
        for group, length in zip(leaves, lengths, strict=True):
            slopes = [next(gradients) for _ in group]
            scale = length / _norm(slopes).clamp(min=torch.finfo(length.dtype).tiny)
            shifts.append(
                [leaf.detach() + slope * _like(scale, slope) for leaf, slope in zip(group, slopes, strict=True)]
            )
    return shifts


def _norm(group: list[Tensor]) -> Tensor:
    return torch.stack([tensor.flatten(1).square().sum(-1) for tensor in group]).sum(0).sqrt()


def _like(per_row: Tensor, tensor: Tensor) -> Tensor:
    return per_row.view(-1, *[1] * (tensor.dim() - 1))


def _shift_hidden(model: Any, step: Step, config: SteeringConfig, objective: Objective) -> Tensor:
    """Shift the last hidden state; the transformer's backward pass is not needed unless looking ahead."""
    hidden = widened(step.hidden)
    shifts = _ascend([[hidden]], config, lambda shift: objective(hidden + shift[0][0]))
    return hidden + shifts[0][0]


def _shift_key_values(model: Any, step: Step, config: SteeringConfig, objective: Objective) -> Tensor:
    """Shift the cache before the last token and run that token again on it."""
    past = [(keys[:, :, :-1], values[:, :, :-1]) for keys, values in step.key_values]
    movable = step.attention_mask[:, :-1].clone()
    if config.window > 0:
        movable[:, : -config.window] = 0
    moved = widened(movable[:, None, :, None].to(step.hidden.dtype))

    def rerun(shifts: list[list[Tensor]]) -> Tensor:
        cache: KeyValues = [
            ((keys + moved * shift[0]).to(keys.dtype), (values + moved * shift[1]).to(values.dtype))
            for (keys, values), shift in zip(past, shifts, strict=True)
        ]
        hidden, _ = advance(
            model, cache, attention_mask=step.attention_mask, position=step.position, input_ids=step.tokens
        )
        return hidden[:, -1]

    groups = [[keys * moved, values * moved] for keys, values in past]
    return rerun(_ascend(groups, config, lambda shifts: objective(rerun(shifts))))
