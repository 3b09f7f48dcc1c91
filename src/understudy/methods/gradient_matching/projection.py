"""From embeddings to tokens (GRADMM, section 4.2, eqs. 13 and 14).

`top_k_projection` goes left to right: the language model, prompted with a public instruction and the tokens chosen so
far, proposes its k likeliest allowed tokens, and the one whose embedding is nearest to the row is taken. One cached
forward pass per position serves the whole batch. `l2_projection` takes the nearest allowed token, without the model.

Deviations from the paper: an instruction stands before the text, for the first token has no prefix otherwise; tokens
that are not allowed (special, unprintable) are never proposed; the cosine is offered beside the Euclidean distance.

Projecting twice changes nothing. The first row sees the same prefix, so the same k proposals; the chosen token is one
of them at distance exactly 0, and by induction every later prefix is the same too. Another proposal at distance 0
has the same embedding (the same direction, for the cosine), hence was equally near the first time as well, when the
lowest token id won, as it does now. So of tokens with equal embeddings only the lowest of the proposed ids is ever
chosen: a text of such twins is a fixed point in its embeddings, not in its ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from understudy.compute import widened
from understudy.errors import InputError
from understudy.generation.prompts import position_ids, special_token_ids
from understudy.generation.sampling import KeyValues, advance, next_logits

Metric = Literal["cosine", "l2"]

_ROWS_AT_A_TIME = 256  # rows whose distances to the whole vocabulary are held at once


@dataclass(frozen=True)
class Projected:
    """Tokens and what they look like to the model.

    Attributes:
        token_ids: `(batch, length)` int64.
        embeddings: `(batch, length, d)` input embeddings of these tokens, in float32 or wider.
    """

    token_ids: Tensor = field(repr=False)
    embeddings: Tensor = field(repr=False)


def allowed_tokens(tokenizer: Any, kind: Literal["printable", "all"]) -> Tensor:
    """Which tokens a synthetic text may hold; special tokens never.

    Args:
        tokenizer: Of the model, public.
        kind: `all`, or `printable`: by itself the token decodes to printable characters, so no line breaks, no control
            characters and no parts of a character (U+FFFD).

    Returns:
        `(vocab,)` bool, one entry per id of the tokenizer.
    """
    count = len(tokenizer)
    special = set(special_token_ids(tokenizer))
    mask = torch.tensor([token not in special for token in range(count)], device="cpu")
    if kind == "printable":
        texts = tokenizer.batch_decode([[token] for token in range(count)], clean_up_tokenization_spaces=False)
        mask &= torch.tensor([_printable(text) for text in texts], device="cpu")
    return mask


def _printable(text: str) -> bool:
    return text != "" and text.isprintable() and "\N{REPLACEMENT CHARACTER}" not in text


def check_projection(
    model: Any, *, prompt_width: int, length: int, allowed: Tensor, k: int, kind: Literal["top_k", "l2"] = "top_k"
) -> None:
    """Refuse before anything is charged what could not be projected.

    Args:
        model: Causal language model.
        prompt_width: Tokens of the longest instruction.
        length: Tokens of a synthetic text.
        allowed: `(vocab,)` bool.
        k: Tokens to choose from.
        kind: `l2` reads no prompt and has no k.

    Raises:
        InputError: k exceeds the allowed tokens, no token is allowed, or prompt and text do not fit the context.
    """
    count = int(_as_wide_as(allowed, model.get_input_embeddings().num_embeddings, allowed.device).sum())
    if count == 0 or (kind == "top_k" and not 1 <= k <= count):
        raise InputError(
            f"projection.k={k}: expected 1 to the number of allowed tokens, found {count} of them; "
            "lower projection.k or set projection.allowed=all"
        )
    context = getattr(model.config, "max_position_embeddings", None)
    if kind == "top_k" and context is not None and prompt_width + length > context:
        raise InputError(
            f"instruction and text take {prompt_width + length} tokens, the model's context holds {context}: "
            f"lower length={length} or shorten projection.instruction"
        )


def top_k_projection(
    model: Any,
    embeddings: Tensor,
    *,
    prompts: tuple[Tensor, Tensor],
    allowed: Tensor,
    k: int,
    metric: Metric = "l2",
) -> Projected:
    """P_topk of the paper's eq. 14, for a batch.

    Args:
        model: Causal language model in evaluation mode.
        embeddings: `(batch, length, d)` rows to project.
        prompts: Token ids and attention mask `(batch, width)` of each example's public instruction, padded on the
            left; at least one token each.
        allowed: `(vocab,)` bool.
        k: How many of the likeliest allowed tokens are looked at; equal logits: the lower id first.
        metric: Distance between a row and a token's embedding; equal distances: the lower id wins.

    Returns:
        The tokens, every one allowed.

    Raises:
        InputError: k exceeds the allowed tokens, or prompt and text do not fit the context.
    """
    batch, length, _ = embeddings.shape
    check_projection(model, prompt_width=prompts[0].shape[1], length=length, allowed=allowed, k=k)
    table = model.get_input_embeddings()
    rows = _comparable(embeddings.detach(), metric)
    chosen = prompts[0].new_empty(batch, length)
    mask, position = prompts[1], position_ids(prompts[1])[:, -1:]
    with torch.no_grad():
        state, cache = read_prompts(model, *prompts)
        for column in range(length):
            proposals = top_tokens(next_logits(model, state), allowed=allowed, k=k)
            candidates = _comparable(widened(table(proposals)), metric)
            nearest = _distances(rows[:, column, None], candidates)[:, 0].argmin(1, keepdim=True)
            chosen[:, column, None] = proposals.gather(1, nearest)
            if column + 1 < length:
                mask, position = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1), position + 1
                ids = chosen[:, column, None]
                hidden, cache = advance(model, cache, attention_mask=mask, position=position, input_ids=ids)
                state = hidden[:, -1]
        return Projected(chosen, widened(table(chosen)))


def read_prompts(model: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, KeyValues]:
    """Hidden state `(batch, d)` at each prompt's last token, and the cache; equal prompts are read once."""
    unique, which = torch.unique(torch.stack([ids, mask], dim=1), dim=0, return_inverse=True)
    hidden, cache = advance(
        model, [], attention_mask=unique[:, 1], position=position_ids(unique[:, 1]), input_ids=unique[:, 0]
    )
    return hidden[which, -1], [(keys[which], values[which]) for keys, values in cache]


def top_tokens(logits: Tensor, *, allowed: Tensor, k: int) -> Tensor:
    """The k likeliest allowed tokens of each row, in ascending id; ties at the border go to the lower id.

    Args:
        logits: `(batch, rows)`; the model may have more rows than the tokenizer has tokens.
        allowed: `(vocab,)` bool with at least k true entries.
        k: Number of tokens.

    Returns:
        `(batch, k)` int64.
    """
    logits = logits.masked_fill(~_as_wide_as(allowed, logits.shape[-1], logits.device), -torch.inf)
    likely = logits.topk(k, dim=-1)
    border = likely.values[:, -1:]
    if int((logits >= border).sum()) == k * len(logits):  # no ties at any border, which is nearly always
        return likely.indices.sort(dim=-1).values
    above, ties = logits > border, logits == border
    kept = above | (ties & (ties.cumsum(-1) <= k - above.sum(-1, keepdim=True)))
    return kept.nonzero()[:, 1].view(-1, k)


def l2_projection(model: Any, embeddings: Tensor, *, allowed: Tensor) -> Projected:
    """P of the paper's eq. 13, the ablation: the nearest allowed token in Euclidean distance, without the model.

    Args:
        model: Whose input embeddings count.
        embeddings: `(batch, length, d)` rows to project.
        allowed: `(vocab,)` bool with at least one true entry.

    Returns:
        The tokens; of equal distances the lowest id.
    """
    module = model.get_input_embeddings()
    with torch.no_grad():
        ids = _as_wide_as(allowed, module.num_embeddings, embeddings.device).nonzero()[:, 0]
        table = widened(module(ids))
        parts = torch.split(embeddings.detach().flatten(0, 1), _ROWS_AT_A_TIME)
        nearest = torch.cat([_distances(part, table).argmin(1) for part in parts])
        chosen = ids[nearest].view(embeddings.shape[:2])
        return Projected(chosen, widened(module(chosen)))


def _comparable(vectors: Tensor, metric: Metric) -> Tensor:
    """Vectors whose Euclidean distance orders as the metric does: |u - v|^2 = 2 - 2 cos for unit vectors."""
    return vectors if metric == "l2" else functional.normalize(vectors, dim=-1)


def _distances(rows: Tensor, candidates: Tensor) -> Tensor:
    """Euclidean distances `(..., n, m)`; `argmin` takes the first of equal ones, the lowest token id.

    From differences, not from the expanded square: the distance of a token to itself must be exactly 0.
    """
    return torch.cdist(rows, candidates, compute_mode="donot_use_mm_for_euclid_dist")


def _as_wide_as(allowed: Tensor, width: int, device: torch.device) -> Tensor:
    """The mask over a model's rows: rows without a token are not allowed."""
    mask = torch.zeros(width, dtype=torch.bool, device=device)
    known = min(width, len(allowed))
    mask[:known] = allowed[:known].to(device)
    return mask
