"""Texts that the public model writes itself, label by label: a public twin of private rows that nobody has to supply.

What is chosen before a charge (words for labels, clip norm, learning rate) is chosen on such texts. They are a function
of the model's files, the label names, the public words about the rows and a public seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from understudy.errors import InputError
from understudy.generation.config import PromptFormat, SamplingConfig
from understudy.generation.prompts import build_prompts, row_seeds, special_token_ids
from understudy.generation.rows import rows_in_flight
from understudy.generation.sampling import sample
from understudy.models.loading import LoadedModel

_BATCH = 128


def write_own_texts(
    base: LoadedModel,
    label_names: Sequence[str],
    *,
    about: str,
    per_label: int,
    tokens: int,
    public_seed: int = 0,
    prompt: PromptFormat | None = None,
) -> tuple[list[str], list[int]]:
    """Draw texts for every label from the untrained model, as the prompt-only control is drawn.

    Args:
        base: public model, in evaluation mode.
        label_names: every label, public; at least two.
        about: public words that say what the texts are.
        per_label: texts of each label.
        tokens: longest text.
        public_seed: a text is a function of it, its label and its number.
        prompt: format of the prompts.

    Returns:
        Texts and their label indices, label by label; a text may be empty.

    Raises:
        InputError: prompts and texts do not fit the model's context, or labels cannot be told apart.
    """
    prompts = build_prompts(base.tokenizer, label_names, prompt, about=about)
    context = getattr(base.model.config, "max_position_embeddings", None)
    if context is not None and prompts.width + tokens > context:
        raise InputError(
            f"model={base.name!r}: prompts of {prompts.width} tokens and a text of {tokens} do not fit its context of "
            f"{context}; shorten --about or the label names, or choose a model with a longer context"
        )
    labels = [label for label in range(len(label_names)) for _ in range(per_label)]
    device = next(base.model.parameters()).device
    targets = torch.tensor(labels, device=device)
    rows = sample(
        base.model,
        (prompts.input_ids.to(device)[targets], prompts.attention_mask.to(device)[targets]),
        config=SamplingConfig(max_new_tokens=tokens),
        seeds=row_seeds(public_seed, range(len(labels)), purpose="own-text"),
        eos=prompts.end,
        forbidden=special_token_ids(base.tokenizer),
        batch_size=rows_in_flight(base.model, "auto", on_cpu=_BATCH, prompt=prompts.width, new=tokens),
    )
    decode = base.tokenizer.decode
    return [decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False).strip() for row in rows], labels
