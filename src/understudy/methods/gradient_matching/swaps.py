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
from understudy.generation.sampling import backbone, next_logits
from understudy.methods.gradient_matching.projection import top_tokens

Objective = Callable[[Tensor], Tensor]  # (batch, length, d) -> (batch,), row b of row b only
Propose = Callable[[Tensor], Tensor]  # (batch, length) tokens -> (batch, length, vocab) bool: what may stand there


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
        promising = _first_order_changes(objective, table, tokens)
        promising = promising.masked_fill(tried | ~propose(tokens), torch.inf)
        swaps = _most_promising(promising, tokens, width=min(width, tokens.shape[1]))
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
    ids, mask = prompts

    def propose(tokens: Tensor) -> Tensor:
        whole, seen = torch.cat([ids, tokens], dim=1), torch.cat([mask, torch.ones_like(tokens)], dim=1)
        with torch.no_grad():
            states = backbone(model)(
                input_ids=whole, attention_mask=seen, position_ids=position_ids(seen), use_cache=False
            ).last_hidden_state[:, ids.shape[1] - 1 : -1]
            likely = top_tokens(next_logits(model, states).flatten(0, 1), allowed=allowed, k=k).view(*tokens.shape, k)
        width = model.get_input_embeddings().num_embeddings
        return torch.zeros(*tokens.shape, width, dtype=torch.bool, device=tokens.device).scatter_(2, likely, True)

    return propose


def any_token(allowed: Tensor, vocabulary: int) -> Propose:
    """Every allowed token everywhere, as the L2 projection has it."""
    whole = torch.zeros(vocabulary, dtype=torch.bool, device=allowed.device)
    count = min(vocabulary, len(allowed))
    whole[:count] = allowed[:count]
    return lambda tokens: whole.expand(*tokens.shape, -1)


@dataclass(frozen=True)
class _Swaps:
    """`(batch, width)` each: one swap per position; one that is no swap puts in the token that is there."""

    positions: Tensor
    token_ids: Tensor


def _losses(objective: Objective, table: Tensor, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return objective(table[tokens]).detach()


def _first_order_changes(objective: Objective, table: Tensor, tokens: Tensor) -> Tensor:
    """`(batch, length, vocab)` change of f, to first order, by each single swap; infinite for no swap."""
    x = table[tokens].requires_grad_()
    (gradient,) = torch.autograd.grad(objective(x).sum(), x)
    changes = gradient @ table.T - (gradient * x.detach()).sum(-1, keepdim=True)
    return changes.scatter_(2, tokens[..., None], torch.inf)


def _most_promising(changes: Tensor, tokens: Tensor, *, width: int) -> _Swaps:
    """The best swap of each of the `width` best positions."""
    change, token = changes.min(dim=2)
    value, positions = change.topk(width, dim=1, largest=False)
    wanted, present = token.gather(1, positions), tokens.gather(1, positions)
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
