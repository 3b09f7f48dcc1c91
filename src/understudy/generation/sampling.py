"""Batched sampling with a key/value cache and one random stream per row.

A row's text is a function of its prompt and its seed: batch mates, the batch size and rows that finish early change
nothing but the last bits of float arithmetic. Uniform numbers are drawn per row, and the next token is found by
inverting the distribution in vocabulary order, so that rounding cannot reorder it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from understudy.compute import copied_to, running_sum, widened
from understudy.errors import InputError
from understudy.generation.config import SamplingConfig
from understudy.generation.prompts import position_ids

KeyValues = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Step:
    """The state before one token is drawn, for the rows that still grow.

    Attributes:
        index: How many tokens have been drawn before this one.
        rows: `(active,)` positions of these rows in the caller's batch.
        tokens: `(active, 1)` last token of each row.
        attention_mask: `(active, seen)`, the last token included.
        position: `(active, 1)` position of the last token.
        hidden: `(active, d)` last hidden state at the last token.
        logits: `(active, vocab)` unmodified next-token logits, float32 or wider.
        key_values: Per layer `(active, heads, seen, head_dim)` keys and values, the last token included.
    """

    index: int
    rows: Tensor
    tokens: Tensor
    attention_mask: Tensor
    position: Tensor
    hidden: Tensor
    logits: Tensor
    key_values: KeyValues


StepHook = Callable[[Any, Step], Tensor]


def backbone(model: Any) -> Any:
    """The transformer below the language-modelling head, through a peft wrapper too."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.base_model


def head(model: Any) -> Any:
    """The language-modelling head."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.get_output_embeddings()


def next_logits(model: Any, hidden: Tensor) -> Tensor:
    """Next-token logits `(..., vocab)` of last hidden states `(..., d)`, in float32 or wider."""
    layer = head(model)
    hidden = hidden.to(next(layer.parameters()).dtype)
    # Of a slice torch would multiply row by row, with a copy of the whole head for each: 17 times slower in bfloat16.
    # (In float32 it stays as it was, for the last bits' sake.)
    return widened(layer(hidden.contiguous() if hidden.element_size() < 4 else hidden))


def advance(
    model: Any, key_values: KeyValues, *, attention_mask: Tensor, position: Tensor, **inputs: Tensor
) -> tuple[Tensor, KeyValues]:
    """Run the transformer over new tokens on top of a cache.

    Args:
        model: Causal language model.
        key_values: Cache of the tokens before; empty at the start.
        attention_mask: `(batch, seen + new)`.
        position: `(batch, new)`.
        **inputs: `input_ids` `(batch, new)` or `inputs_embeds` `(batch, new, d)`.

    Returns:
        Last hidden states `(batch, new, d)` and the grown cache.
    """
    cache = _cache(key_values)
    outputs = backbone(model)(
        attention_mask=attention_mask, position_ids=position, past_key_values=cache, use_cache=True, **inputs
    )
    return outputs.last_hidden_state, [(layer.keys, layer.values) for layer in cache.layers]


def _cache(key_values: KeyValues) -> DynamicCache:
    """A cache that holds these tensors themselves; its constructor would copy them."""
    cache = DynamicCache()
    for keys, values in key_values:
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def keep_nucleus(probabilities: Tensor, *, top_p: float) -> Tensor:
    """Mask of the smallest set of most likely tokens whose mass reaches `top_p` (Holtzman et al. 2019, eq. 2).

    Ties at the border go to the lower token id.

    Args:
        probabilities: `(batch, vocab)`, each row sums to 1.
        top_p: Nucleus mass in (0, 1].

    Returns:
        `(batch, vocab)` bool.
    """
    if top_p >= 1:
        return probabilities > 0
    values = _descending(probabilities)
    needed = ((running_sum(values.double()) < top_p).sum(-1, keepdim=True) + 1).clamp(max=values.shape[-1])
    threshold = values.gather(-1, needed - 1)
    above = probabilities > threshold
    ties = probabilities == threshold
    return above | (ties & (ties.cumsum(-1) <= needed - above.sum(-1, keepdim=True)))


def _descending(values: Tensor) -> Tensor:
    """Each row from large to small, without the order's indices: numpy's vector sort is far faster than torch's."""
    if values.device.type != "cpu":
        return values.sort(dim=-1, descending=True).values
    return torch.from_numpy(np.sort(widened(values).numpy(), axis=-1)).to(values.dtype).flip(-1)


def draw_tokens(logits: Tensor, uniforms: Tensor, *, temperature: float, top_p: float) -> Tensor:
    """Draw one token per row by inverting the nucleus distribution in vocabulary order.

    Args:
        logits: `(batch, vocab)`; a token with -inf is never drawn.
        uniforms: `(batch,)` float64 in [0, 1).
        temperature: Divides the logits.
        top_p: Nucleus mass.

    Returns:
        `(batch,)` int64 token ids.
    """
    probabilities = torch.softmax(widened(logits) / temperature, dim=-1)
    kept = torch.where(keep_nucleus(probabilities, top_p=top_p), probabilities, 0.0)
    cumulative = running_sum(kept.double())
    total = cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, uniforms[:, None] * total, right=True)
    last = (cumulative < total).sum(-1, keepdim=True)  # rounding may carry the product up to the total
    return torch.minimum(drawn, last)[:, 0]


def sample(
    model: Any,
    prompts: tuple[Tensor, Tensor],
    *,
    config: SamplingConfig,
    seeds: Sequence[int],
    eos: int,
    forbidden: Sequence[int] = (),
    step_hook: StepHook | None = None,
) -> list[list[int]]:
    """Draw one continuation per prompt.

    Args:
        model: Causal language model (GPT-2, Llama, plain or with LoRA) in evaluation mode.
        prompts: Token ids and attention mask `(batch, width)`, padded on the left.
        config: Temperature, nucleus mass and longest continuation.
        seeds: One public seed per row.
        eos: Id that ends a row; it is not returned.
        forbidden: Ids that are never drawn (padding and other special tokens).
        step_hook: Gives the next-token logits `(active, vocab)` from a `Step`; None takes the model's own.

    Returns:
        Token ids of each row's continuation, without special tokens.

    Raises:
        InputError: Prompt and continuation do not fit the model's context, or seeds and prompts differ in number.
    """
    ids, mask = prompts
    _check_request(model, ids, config=config, seeds=seeds)
    uniforms = copied_to(_uniforms(seeds, config.max_new_tokens), ids.device)
    banned = torch.tensor([i for i in forbidden if i != eos], dtype=torch.long, device=ids.device)
    drawn: list[list[int]] = [[] for _ in seeds]
    with torch.no_grad():
        step = _first_step(model, ids, mask)
        while True:
            logits = step.logits if step_hook is None else step_hook(model, step)
            logits = logits.index_fill(-1, banned, -torch.inf)
            tokens = draw_tokens(
                logits, uniforms[step.rows, step.index], temperature=config.temperature, top_p=config.top_p
            )
            alive = tokens != eos
            for row, token in zip(step.rows[alive].tolist(), tokens[alive].tolist(), strict=True):
                drawn[row].append(token)
            if step.index + 1 == config.max_new_tokens or not bool(alive.any()):
                return drawn
            step = _next_step(model, _keep(step, alive), tokens[alive])


def _check_request(model: Any, ids: Tensor, *, config: SamplingConfig, seeds: Sequence[int]) -> None:
    context = getattr(model.config, "max_position_embeddings", None)
    wanted = ids.shape[1] + config.max_new_tokens
    if context is not None and wanted > context:
        raise InputError(
            f"prompt and continuation take {wanted} tokens, the model's context holds {context}: "
            f"lower max_new_tokens={config.max_new_tokens}"
        )
    if len(seeds) != ids.shape[0]:
        raise InputError(f"len(seeds)={len(seeds)}: expected one seed for each of {ids.shape[0]} prompts")


def _uniforms(seeds: Sequence[int], count: int) -> Tensor:
    rows = [torch.rand(count, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in seeds]
    return torch.stack(rows)


def _first_step(model: Any, ids: Tensor, mask: Tensor) -> Step:
    positions = position_ids(mask)
    hidden, cache = advance(model, [], attention_mask=mask, position=positions, input_ids=ids)
    return Step(
        index=0,
        rows=torch.arange(ids.shape[0], device=ids.device),
        tokens=ids[:, -1:],
        attention_mask=mask,
        position=positions[:, -1:],
        hidden=hidden[:, -1],
        logits=next_logits(model, hidden[:, -1]),
        key_values=cache,
    )


def _keep(step: Step, alive: Tensor) -> Step:
    if bool(alive.all()):
        return step
    return replace(
        step,
        rows=step.rows[alive],
        attention_mask=step.attention_mask[alive],
        position=step.position[alive],
        key_values=[(keys[alive], values[alive]) for keys, values in step.key_values],
    )


def _next_step(model: Any, step: Step, tokens: Tensor) -> Step:
    mask = torch.cat([step.attention_mask, torch.ones_like(step.attention_mask[:, :1])], dim=1)
    hidden, cache = advance(
        model, step.key_values, attention_mask=mask, position=step.position + 1, input_ids=tokens[:, None]
    )
    return Step(
        index=step.index + 1,
        rows=step.rows,
        tokens=tokens[:, None],
        attention_mask=mask,
        position=step.position + 1,
        hidden=hidden[:, -1],
        logits=next_logits(model, hidden[:, -1]),
        key_values=cache,
    )
