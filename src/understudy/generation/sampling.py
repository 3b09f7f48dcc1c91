"""Batched sampling on a key/value cache with one random stream per row, and rows that take the place of ended ones.

A row's text is a function of its prompt and its seed: batch mates, the batch size and rows that begin or finish beside
it change nothing but the last bits of float arithmetic. Uniform numbers are drawn per row, and the next token is found
by inverting the distribution in vocabulary order, so that rounding cannot reorder it. Equal prompts are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy.compute import copied_to, running_sum, widened
from understudy.errors import InputError
from understudy.generation.batching import Flight
from understudy.generation.cache import KeyValues
from understudy.generation.config import SamplingConfig
from understudy.generation.step import Step, advance, backbone, head, next_logits
from understudy.progress import Progress

__all__ = [
    "KeyValues",
    "Step",
    "StepHook",
    "advance",
    "backbone",
    "draw_tokens",
    "head",
    "keep_nucleus",
    "next_logits",
    "sample",
]

StepHook = Callable[[Any, Step], Tensor]


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
    mass = running_sum(values.double())
    needed = (torch.searchsorted(mass, mass.new_full((len(mass), 1), top_p)) + 1).clamp(max=values.shape[-1])
    threshold = values.gather(-1, needed - 1)
    kept = probabilities >= threshold
    extra = kept.sum(-1, keepdim=True) - needed
    # Ties at the border are rare, and counting them takes longer than all else; to ask costs nothing on the CPU only.
    if probabilities.device.type == "cpu" and not bool(extra.any()):
        return kept
    ties = probabilities == threshold
    return kept & ~(ties & (ties.cumsum(-1) > ties.sum(-1, keepdim=True) - extra))


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
    last = torch.searchsorted(cumulative, total.contiguous())  # rounding may carry the product up to the total
    return torch.minimum(drawn, last)[:, 0]


def sample(  # noqa: PLR0913 - what is drawn, how, and what a caller may bring along
    model: Any,
    prompts: tuple[Tensor, Tensor],
    *,
    config: SamplingConfig,
    seeds: Sequence[int],
    eos: int,
    forbidden: Sequence[int] = (),
    step_hook: StepHook | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
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
        batch_size: Rows in flight at a time, at least 1; a row that ends makes room for the next. None: all at once.
        progress: Called with (rows done, rows in all).

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
        flight = Flight(model, ids, mask, slots=min(batch_size or len(seeds), len(seeds)), tokens=config.max_new_tokens)
        while flight.active:
            step = flight.step()
            logits = step.logits if step_hook is None else step_hook(model, step)
            logits = logits.index_fill(-1, banned, -torch.inf)
            tokens = draw_tokens(
                logits, uniforms[step.rows, step.index], temperature=config.temperature, top_p=config.top_p
            )
            for row, token in zip(step.rows.tolist(), tokens.tolist(), strict=True):
                if token != eos:
                    drawn[row].append(token)
            ended = flight.go_on(tokens, ended=(tokens == eos) | (step.index + 1 == config.max_new_tokens))
            if progress is not None and ended:
                progress(flight.done, len(seeds))
    return drawn


def _check_request(model: Any, ids: Tensor, *, config: SamplingConfig, seeds: Sequence[int]) -> None:
    context = getattr(model.config, "max_position_embeddings", None)
    wanted = ids.shape[1] + config.max_new_tokens
    if context is not None and wanted > context:
        raise InputError(
            f"prompt and continuation take {wanted} tokens, the model's context holds {context}: "
            f"lower max_new_tokens={config.max_new_tokens}"
        )
    if not 0 < len(seeds) == ids.shape[0]:
        raise InputError(f"len(seeds)={len(seeds)}: expected one seed for each of {ids.shape[0]} prompts, at least one")


def _uniforms(seeds: Sequence[int], count: int) -> Tensor:
    rows = [torch.rand(count, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in seeds]
    return torch.stack(rows)
