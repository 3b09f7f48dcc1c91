"""Whether a model's logits are its output head's at its last hidden states, as every method here takes them to be.

Generation, losses and gradients multiply the transformer's last states with the head. Some models do more than that:
Granite and Cohere scale what the head gives, Gemma 2 caps it, BERT's decoder has layers between the two. What would be
read of such a model is another distribution than its own: of Granite, whose logits are the head's divided by 8, one of
an eighth of the temperature.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_TOKENS: Final = 4
# A cap is hardly seen on logits as small as an untrained model's, so the head is made to give large ones.
_LARGE: Final = 1e4
_ROUNDING: Final = 1e-5


def logits_are_the_heads(model: Any) -> bool:
    """Whether nothing is done to the head's output, and nothing to the last states before the head.

    Args:
        model: causal language model of transformers, with an output head.
    """
    layer = model.get_output_embeddings()
    ids = torch.arange(_TOKENS, device=layer.weight.device)[None] % layer.weight.shape[0]
    read, made = [], torch.linspace(-_LARGE, _LARGE, layer.weight.shape[0], dtype=layer.weight.dtype, device=ids.device)

    def large(_module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        read.append(inputs[0])
        return made.expand_as(output)

    hook = layer.register_forward_hook(large)
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits
            states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    finally:
        hook.remove()
    as_made = logits.shape[-1:] == made.shape and bool((logits == made.to(logits.dtype)).all())
    # The same products twice: anything beyond rounding is a function of its own between last layer and head.
    same = len(read) == 1 and read[0].shape == states.shape
    return as_made and same and float((read[0] - states).abs().max()) <= _ROUNDING * float(states.abs().max())


def alters_logits(model: Any) -> bool:
    """Whether logits are known to be others than the head's; False where that cannot be told, of a model that raises.

    Such a model generates nothing, or cannot be trained, and is refused for that.
    """
    try:
        return not logits_are_the_heads(model)
    except Exception:  # whatever a foreign architecture raises
        return False
