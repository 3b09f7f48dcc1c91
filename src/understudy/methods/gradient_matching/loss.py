"""The matching loss f = 1 - cos(gradient of a synthetic text, target of its label) in closed form (GRADMM, Eq. 14).

Only the head's input h and its logits at one position are needed, so one forward and one backward pass through the
model give the loss and its gradient by the text's embeddings: no double backward, no head-sized gradient per text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from understudy.compute import copied_to, widened
from understudy.generation.sampling import backbone, head, next_logits
from understudy.methods.gradient_matching.targets import TargetSpace, factors, gradient_norm, inner
from understudy.methods.gradient_matching.verbalizer import Verbalizer, encode_rows

Objective = Callable[[Tensor], Tensor]

# Below any norm that float32 can tell from 0: a label without rows has target 0, hence cosine 0 and no gradient.
_TINY = 1e-30
_AT_ONCE = 1 << 20  # numbers of a target that are widened at a time


def matching_loss(space: TargetSpace, hidden: Tensor, logits: Tensor, labels: Tensor, target: Tensor) -> Tensor:
    """1 - cosine between each text's gradient and the target of its label.

    Args:
        space: Where gradients live.
        hidden: `(B, d)`, the head's input at the template's last position.
        logits: `(B, V)`, the head's output there.
        labels: `(B,)` int64.
        target: `(K, *space.shape)`.

    Returns:
        `(B,)` in [0, 2]; 1 where a gradient is 0.
    """
    return _loss(space, (hidden, logits), labels, target, target_norms(target))


def target_norms(target: Tensor) -> Tensor:
    """Norm `(K,)` of each label's target, in float64: private unless the target was noised."""
    # In parts: of a head's gradient copies in float64 would take several times what a matching does.
    parts = torch.split(target.flatten(1), _AT_ONCE, dim=1)
    norms = torch.stack([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts], dim=1)
    whole: Tensor = torch.linalg.vector_norm(norms, dim=1)
    return whole


def objective(model: Any, space: TargetSpace, target: Tensor, verbalizer: Verbalizer, labels: Tensor) -> Objective:
    """The loss as a function of the embeddings of B texts; each text's loss depends on its own embeddings only.

    Args:
        model: Causal language model; its parameters are frozen, for nothing here is differentiated by them.
        space: Where gradients live.
        target: `(K, *space.shape)`.
        verbalizer: Prefix before and template after every text.
        labels: `(B,)` int64, on the model's device.

    Returns:
        A function from embeddings `(B, length, d_embedding)` to losses `(B,)`.
    """
    model.requires_grad_(False)
    norms = target_norms(target)

    def losses(embeddings: Tensor) -> Tensor:
        return _loss(space, last_state(model, embeddings, verbalizer), labels, target, norms)

    return losses


def last_state(model: Any, embeddings: Tensor, verbalizer: Verbalizer) -> tuple[Tensor, Tensor]:
    """Put prefix and template around texts and read the model at the template's last position.

    Args:
        model: Causal language model.
        embeddings: `(B, length, d_embedding)` of the texts alone, all of one length.
        verbalizer: Prefix and template, whose embeddings are constants.

    Returns:
        Head input `(B, d)` and logits `(B, V)`, in float32 or wider.
    """
    whole = surround(model, embeddings, verbalizer).to(model.get_input_embeddings().weight.dtype)
    hidden = backbone(model)(inputs_embeds=whole, use_cache=False).last_hidden_state[:, -1]
    return widened(hidden), next_logits(model, hidden)


def surround(model: Any, embeddings: Tensor, verbalizer: Verbalizer) -> Tensor:
    """Embeddings `(B, P + length + T, d_embedding)` of texts with prefix and template around them."""
    before, after = (
        embed(model, ids).expand(len(embeddings), -1, -1) for ids in (verbalizer.prefix_ids, verbalizer.template_ids)
    )
    return torch.cat([before, embeddings, after], dim=1)


def embed(model: Any, ids: Tensor) -> Tensor:
    """Input embeddings `(..., d_embedding)` of token ids, as constants, in float32 or wider."""
    layer = model.get_input_embeddings()
    return widened(layer(copied_to(ids, layer.weight.device)).detach())


def row_states(model: Any, input_ids: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """The same for encoded texts of different lengths (`verbalizer.RowTokens`), without a graph.

    Args:
        model: Causal language model.
        input_ids: `(B, width)` int64.
        last: `(B,)` int64, the column that is read.

    Returns:
        Head input `(B, d)` and logits `(B, V)`, in float32 or wider.
    """
    device = head(model).weight.device
    ids = copied_to(input_ids, device)
    with torch.no_grad():
        # Without a mask some models log a warning when they see padding, which would tell the rows' lengths.
        states = backbone(model)(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).last_hidden_state
        hidden = states[torch.arange(len(last), device=device), last.to(device)]
        return widened(hidden), next_logits(model, hidden)


def text_losses(
    texts: Sequence[str],
    labels: Tensor,
    *,
    model: Any,
    tokenizer: Any,
    space: TargetSpace,
    target: Tensor,
    verbalizer: Verbalizer,
    max_length: int,
) -> Tensor:
    """Matching loss `(B,)` of emitted strings, tokenised again; without a graph.

    Args:
        texts: Synthetic texts; all of them in one batch.
        labels: `(B,)` int64.
        model: Causal language model.
        tokenizer: Its tokenizer.
        space: Where gradients live.
        target: `(K, *space.shape)`.
        verbalizer: Prefix and template.
        max_length: Tokens of a text that are read.
    """
    rows = encode_rows(texts, tokenizer=tokenizer, verbalizer=verbalizer, max_length=max_length)
    hidden, logits = row_states(model, rows.input_ids, rows.last)
    return matching_loss(space, hidden, logits, labels.to(hidden.device), target)


def _loss(space: TargetSpace, state: tuple[Tensor, Tensor], labels: Tensor, target: Tensor, norms: Tensor) -> Tensor:
    left, right = factors(space, *state, labels)
    lengths = gradient_norm(space, left, right) * norms[labels].to(left.dtype)
    return 1 - inner(space, left, right, target, labels) / lengths.clamp(min=_TINY)
