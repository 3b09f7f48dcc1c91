"""Swap single tokens of a matched text for ones that bring it nearer to the target (beyond the paper, ADR 0011).

ADMM leaves a text in the set E, but far from the X that it was projected from: a projection moves X by several times
the distance between two tokens, and a few short rounds do not close that gap. From there on each sweep

    g <- gradient of f by the embeddings of the tokens Z
    at every position i, the proposal v of least g_i . (e_v - e_{z_i})           (first-order change of f)
    for the `width` most promising of these swaps, the most promising first:
        Z <- Z with the swap, if its f is less than that of Z

The first-order choice of a swap is that of HotFlip (Ebrahimi et al. 2018, section 3). Proposals are the projection's:
the k likeliest tokens after the tokens before them, so every token is one of them when it is put in. Those behind it
are not looked at again: a later swap before a token may change what was likely there. A swap that was tried for a text
is not tried again. Every text is searched on its own, and f never rises. Each swap is judged beside those that were
kept before it, so no further value of f is needed for what they do together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from understudy.generation.prompts import position_ids
from understudy.generation.sampling import advance, next_logits
from understudy.methods.gradient_matching.projection import read_prompts, top_tokens

Objective = Callable[[Tensor], Tensor]  # (batch, length, d) -> (batch,), row b of row b only
# (batch, length) tokens -> ids in ascending order that may stand there: (batch, length, k), or (k,) the same everywhere
Propose = Callable[[Tensor], Tensor]

_LOGITS = 1 << 22  # logits that are held at once, 16 MiB of float32


@dataclass(frozen=True)
class Swapped:
    """Texts after the last sweep.

    Attributes:
        token_ids: `(batch, length)` int64.
        losses: `(batch, sweeps + 1)` f before the first sweep and after each.
    """

    token_ids: Tensor
    losses: Tensor


def swap_tokens(
    objective: Objective, propose: Propose, tokens: Tensor, *, table: Tensor, sweeps: int, width: int
) -> Swapped:
    """Lower f by swapping tokens.

    Args:
        objective: f, differentiable.
        propose: what may stand where.
        tokens: `(batch, length)` int64 to begin with.
        table: `(vocab, d)` embeddings.
        sweeps: at least 0.
        width: positions at which a swap is tried per sweep, at least 1; no more than there are.

    Returns:
        The texts; without sweeps the given ones.
    """
    table = table.detach()
    current = _losses(objective, table, tokens)
    history = [current]
    tried = torch.zeros(*tokens.shape, len(table), dtype=torch.bool, device=tokens.device)
    for _ in range(sweeps):
        proposals = propose(tokens)
        changes = _first_order_changes(objective, table, tokens, proposals)
        changes = changes.masked_fill(_at(tried, proposals), torch.inf)
        swaps = _most_promising(changes, proposals, tokens, width=min(width, tokens.shape[1]))
        tried.view(-1, len(table))[_rows_of(swaps, tokens.shape), swaps.token_ids.flatten()] = True
        tokens, current = _one_by_one(objective, table, tokens, current, swaps)
        history.append(current)
    return Swapped(tokens, torch.stack(history, dim=1))


def likely_tokens(model: Any, prompts: tuple[Tensor, Tensor], *, allowed: Tensor, k: int) -> Propose:
    """Proposals as the top-k projection makes them, for given texts.

    Args:
        model: Causal language model.
        prompts: Token ids and attention mask `(batch, width)` of each text's instruction, padded on the left.
        allowed: `(vocab,)` bool.
        k: How many of the likeliest allowed tokens.
    """
    mask = prompts[1]
    first = position_ids(mask)[:, -1:] + 1
    with torch.no_grad():
        before, cache = read_prompts(model, *prompts)

    def propose(tokens: Tensor) -> Tensor:
        read = tokens[:, :-1]  # no token comes after the last one
        states = before[:, None]
        with torch.no_grad():
            if read.shape[1] > 0:
                positions = first + torch.arange(read.shape[1], device=tokens.device)
                seen = torch.cat([mask, torch.ones_like(read)], dim=1)
                after, _ = advance(model, cache, attention_mask=seen, position=positions, input_ids=read)
                states = torch.cat([states, after], dim=1)
            parts = torch.split(states.flatten(0, 1), max(1, _LOGITS // model.get_input_embeddings().num_embeddings))
            likely = [top_tokens(next_logits(model, part), allowed=allowed, k=k) for part in parts]
        return torch.cat(likely).view(*tokens.shape, k)

    return propose


def any_token(allowed: Tensor, vocabulary: int) -> Propose:
    """Every allowed token everywhere, as the L2 projection has it."""
    ids = allowed[:vocabulary].nonzero()[:, 0]
    return lambda _: ids


@dataclass(frozen=True)
class _Swaps:
    """`(batch, width)` each: one swap per position; one that is no swap puts in the token that is there."""

    positions: Tensor
    token_ids: Tensor


def _losses(objective: Objective, table: Tensor, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return objective(table[tokens]).detach()


def _first_order_changes(objective: Objective, table: Tensor, tokens: Tensor, proposals: Tensor) -> Tensor:
    """`(batch, length, k)` change of f, to first order, by each single swap; infinite for no swap."""
    x = table[tokens].requires_grad_()
    (gradient,) = torch.autograd.grad(objective(x).sum(), x)
    changes = _products(gradient, table, proposals) - (gradient * x.detach()).sum(-1, keepdim=True)
    return changes.masked_fill(proposals == tokens[..., None], torch.inf)


def _products(gradient: Tensor, table: Tensor, proposals: Tensor) -> Tensor:
    """Inner products `(batch, length, k)` of each position's gradient with the embeddings of its proposals."""
    if proposals.dim() == 1:
        return gradient @ table[proposals].T
    # Of one text at a time: the embeddings of its proposals are k times as large as its own.
    return torch.stack([(table[ids] @ row[..., None])[..., 0] for row, ids in zip(gradient, proposals, strict=True)])


def _at(marks: Tensor, proposals: Tensor) -> Tensor:
    """`(batch, length, k)` of `(batch, length, vocab)`: those of the proposals."""
    return marks[..., proposals] if proposals.dim() == 1 else marks.gather(2, proposals)


def _most_promising(changes: Tensor, proposals: Tensor, tokens: Tensor, *, width: int) -> _Swaps:
    """The best swap of each of the `width` best positions."""
    change, which = changes.min(dim=2)
    value, positions = change.topk(width, dim=1, largest=False)
    best = proposals[which] if proposals.dim() == 1 else proposals.gather(2, which[..., None])[..., 0]
    wanted, present = best.gather(1, positions), tokens.gather(1, positions)
    return _Swaps(positions, torch.where(value < torch.inf, wanted, present))


def _rows_of(swaps: _Swaps, shape: torch.Size) -> Tensor:
    """Index of each swap's position among all positions of the batch."""
    first = torch.arange(shape[0], device=swaps.positions.device)[:, None] * shape[1]
    return (first + swaps.positions).flatten()


def _one_by_one(
    objective: Objective, table: Tensor, tokens: Tensor, current: Tensor, swaps: _Swaps
) -> tuple[Tensor, Tensor]:
    """Tokens and losses after every swap that lowered f when its turn came."""
    for column in range(swaps.positions.shape[1]):
        place, token = swaps.positions[:, column, None], swaps.token_ids[:, column, None]
        swapped = tokens.scatter(1, place, token)
        tokens, current = _better(tokens, current, swapped, _losses(objective, table, swapped))
    return tokens, current


def _better(tokens: Tensor, loss: Tensor, others: Tensor, other_loss: Tensor) -> tuple[Tensor, Tensor]:
    """Per text whichever has the lower loss; the first of equals."""
    lower = other_loss < loss
    return torch.where(lower[:, None], others, tokens), torch.where(lower, other_loss, loss)
