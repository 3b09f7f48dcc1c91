"""Whether a model predicts each token from those before it alone, as every method here takes for granted.

transformers loads encoders such as BERT as causal language models too: trained so, each token sees the one that it
should predict, and what such a model then writes is nonsense.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_TOKENS: Final = 8
# What later tokens may weigh beside earlier ones. Of 117 families with random weights, decoders gave 0 (ProphetNet
# 1e-6), encoders 0.8 and more.
_ROUNDING: Final = 1e-3


def later_over_earlier(model: Any) -> float:
    """How much later tokens weigh in a position's logits, beside what earlier ones do.

    Measured are gradients by the embeddings of made-up tokens: where attention is masked they are zero, in whatever
    precision and however small the weights are. Logits of a later token that is changed would not do: in a mixture of
    experts last bits follow the number of tokens that an expert gets.

    Args:
        model: of transformers, with input embeddings.

    Returns:
        0 for a causal model, infinity for one that reads backwards, nan where gradients are not numbers.
    """
    embeddings = model.get_input_embeddings()
    vocabulary = embeddings.weight.shape[0]
    ids = (torch.arange(1, _TOKENS + 1, device=embeddings.weight.device) * (vocabulary // (_TOKENS + 2) or 1))[None]
    read: list[Tensor] = []

    def leaf(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
        read.append(output.detach().requires_grad_())
        return read[-1].clone()  # CTRL scales what it gets in place

    position = _TOKENS // 2 - 1
    hook = embeddings.register_forward_hook(leaf)
    try:
        with torch.enable_grad():
            logits = model(input_ids=ids % vocabulary).logits[0, position].double()
            # Their plain sum may not depend on the states.
            weights = torch.arange(1, len(logits) + 1, dtype=logits.dtype, device=logits.device).cos()
            (slopes,) = torch.autograd.grad((logits * weights).sum(), read[:1])
    finally:
        hook.remove()
    sizes = slopes.double().reshape(_TOKENS, -1).norm(dim=1)  # XLNet puts positions before the one row
    earlier, later = float(sizes[:position].max()), float(sizes[position + 1 :].max())
    if later == 0:
        return 0.0
    return later / earlier if earlier else float("inf")


def reads_ahead(model: Any) -> bool:
    """Whether a position's logits depend on later tokens.

    False where that cannot be told: of logits that are not numbers, or a model that raises or gives no gradients. Such
    a model generates nothing, or cannot be trained, and is refused for that.
    """
    try:
        return later_over_earlier(model) > _ROUNDING
    except Exception:  # whatever a foreign architecture raises
        return False
