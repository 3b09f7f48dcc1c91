"""Batched sampling on a key/value cache with one random stream per row, and rows that take the place of ended ones.

A row's text is a function of its prompt and its seed: batch mates, the batch size and rows that begin or finish beside
it change nothing but the last bits of float arithmetic. Uniform numbers are drawn per row. Equal prompts are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch import Tensor

from understudy.compute import copied_to
from understudy.errors import InputError
from understudy.generation.batching import Flight
from understudy.generation.cache import KeyValues
from understudy.generation.config import SamplingConfig
from understudy.generation.nucleus import draw_tokens
from understudy.generation.step import Step, advance, backbone, head, next_logits
from understudy.models.packed import packed
from understudy.progress import Progress

__all__ = [
    "KeyValues",
    "Step",
    "StepHook",
    "advance",
    "backbone",
    "head",
    "next_logits",
    "sample",
]

StepHook = Callable[[Any, Step], Tensor]

# Packing the weights takes as long as it saves in about eight steps.
_WORTH_PACKING: Final = 16


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
        forbidden: Ids that are never drawn (padding and other special tokens); `eos` may be among them, and so may ids
            beyond the model's vocabulary.
        step_hook: Gives the next-token logits `(active, vocab)` from a `Step`, which are changed in place: a hook that
            reads them later keeps a copy. None takes the model's own.
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
    vocabulary = getattr(model.config, "vocab_size", None) or max(forbidden, default=0) + 1
    banned = torch.tensor([i for i in forbidden if i != eos and i < vocabulary], dtype=torch.long, device=ids.device)
    drawn: list[list[int]] = [[] for _ in seeds]
    with torch.no_grad(), packed(model) if config.max_new_tokens >= _WORTH_PACKING else nullcontext():
        flight = Flight(model, ids, mask, slots=min(batch_size or len(seeds), len(seeds)), tokens=config.max_new_tokens)
        while flight.active:
            step = flight.step()
            logits = step.logits if step_hook is None else step_hook(model, step)
            logits.index_fill_(-1, banned, -torch.inf)
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
