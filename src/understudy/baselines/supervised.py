"""Texts by fine-tuning the generator on the survivors of Private Evolution (PE + SFT), or by not tuning it at all.

Paper: POPri, section 3 ("supervised fine-tuning") and Table 1: next-token loss on the texts
with the highest scores, as if each were a perfect answer to its prompt.
*Deviations*: the paper gives no constants for it; here they are those of POPri's own DPO step, the rank of the adapter
included. Prompts carry no loss.

All of it is post-processing of what Private Evolution released. With an untuned generator `draw_texts` is the epsilon 0
end of generation: public seeds and a public model only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from understudy.errors import InputError
from understudy.evaluation.texts.language_model import pad
from understudy.evaluation.utility.next_token import descend
from understudy.frozen import Profile, Profiled, Profiles
from understudy.generation.config import SamplingConfig
from understudy.generation.prompts import padded_left, row_seeds, special_ids, special_token_ids
from understudy.generation.rows import rows_in_flight
from understudy.generation.sampling import sample
from understudy.models.loading import LoadedModel
from understudy.models.lora import attach, trainable_parameters
from understudy.progress import Progress
from understudy.quantities import Count, LearningRate, Positive, Size, setting

_BATCH = 32
_PROFILES: Profiles = {
    "paper": {"lora_rank": 4, "lora_alpha": 8, "learning_rate": 8e-7, "batch_size": 24},
}


class SupervisedConfig(Profiled):
    """How the generator is fine-tuned; public values only."""

    profiles: ClassVar[Profiles] = _PROFILES

    profile: Profile = "tiny"
    lora_rank: Size = setting(16, "Rank of the adapter. tiny 16, paper 4.")
    lora_alpha: Positive = setting(32, "LoRA alpha. tiny 32, paper 8.")
    learning_rate: LearningRate = setting(5e-4, "AdamW. tiny 5e-4, paper 8e-7.")
    epochs: Count = setting(2, "Passes over the examples; paper 2.")
    batch_size: Size = setting(16, "Examples per step. tiny 16, paper 24.")
    max_text_tokens: Count = setting(64, "A text is cut to so many tokens, without an end; paper 64.")


def fine_tune(
    base: LoadedModel,
    examples: Sequence[tuple[str, str]],
    *,
    config: SupervisedConfig,
    public_seed: int,
    progress: Progress | None = None,
) -> LoadedModel:
    """Train an adapter on texts after their prompts by next-token loss.

    Args:
        base: Generator; its model is changed in place and belongs to the result, on the device that it is on.
        examples: (prompt, text) pairs, for example survivors after the prompts that texts will be drawn with; an
            empty prompt for none. Released.
        config: Adapter and steps.
        public_seed: Of the adapter's start values and the order of examples.
        progress: Called with (steps done, steps).

    Returns:
        The generator with its adapter on, in eval mode.

    Raises:
        InputError: There is no example, or one does not fit the model's context.
    """
    if not examples:
        raise InputError("expected examples to fine-tune on, found none; did no text survive?")
    encoded = [_encode(base, prompt, text, config.max_text_tokens) for prompt, text in examples]
    _check_context(base, max(len(ids) for ids, _ in encoded), "prompt and text")
    generator = torch.Generator().manual_seed(row_seeds(public_seed, [0], purpose="supervised")[0])
    model: Any = attach(base.model, rank=config.lora_rank, alpha=config.lora_alpha, generator=generator)
    parameters = list(trainable_parameters(model).values())
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate)
    batches = [
        batch.tolist()
        for _ in range(config.epochs)
        for batch in torch.split(torch.randperm(len(encoded), generator=generator), config.batch_size)
    ]
    model.eval()  # dropout is zero either way
    descend(
        model,
        optimizer,
        batches,
        batch_of=lambda rows: _batch(base, [encoded[row] for row in rows], base.model.device),
        taken=None if progress is None else lambda steps: progress(steps, len(batches)),
    )
    return replace(base, model=model)


def draw_texts(
    loaded: LoadedModel,
    prompts: Sequence[str],
    *,
    per_prompt: int,
    sampling: SamplingConfig,
    public_seed: int,
    stop: str | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """Continue each prompt `per_prompt` times.

    Args:
        loaded: Generator, tuned or as it is.
        prompts: (k,) public or released; empty ones are fine.
        per_prompt: J.
        sampling: How tokens are drawn.
        public_seed: A text is a function of it, its prompt and its number, whatever is drawn beside it.
        stop: A text ends before the first occurrence of this; None: at the end token only.
        progress: Called with (texts drawn, texts).

    Returns:
        (k * J,) texts, prompt by prompt, stripped; a text may be empty.

    Raises:
        InputError: Prompt and text do not fit the model's context.
    """
    bos, eos, filler = special_ids(loaded.tokenizer)
    encoded = [[bos, *_tokens(loaded, prompt)] for prompt in prompts]
    if encoded:
        _check_context(loaded, max(map(len, encoded)) + sampling.max_new_tokens, "prompt and text")
    device, wanted = next(loaded.model.parameters()).device, len(prompts) * per_prompt
    texts: list[str] = []
    longest = max(map(len, encoded), default=1)
    together = rows_in_flight(loaded.model, "auto", on_cpu=_BATCH, prompt=longest, new=sampling.max_new_tokens)
    for start in range(0, wanted, together):
        rows = range(start, min(start + together, wanted))
        own = [encoded[row // per_prompt] for row in rows]
        drawn = sample(
            loaded.model,
            padded_left(own, pad=filler, device=device),
            config=sampling,
            seeds=row_seeds(public_seed, rows, purpose="continuation"),
            eos=eos,
            forbidden=special_token_ids(loaded.tokenizer),
        )
        texts += [_readable(loaded, tokens, stop) for tokens in drawn]
        if progress is not None:
            progress(len(texts), wanted)
    return texts


def _tokens(loaded: LoadedModel, text: str) -> list[int]:
    tokenizer: Any = loaded.tokenizer
    return list(tokenizer.encode(text, add_special_tokens=False, verbose=False)) if text else []


def _encode(base: LoadedModel, prompt: str, text: str, longest: int) -> tuple[list[int], list[int]]:
    """Ids of begin token, prompt, text and end token, and which of them count: the text and its end."""
    bos, eos, _ = special_ids(base.tokenizer)
    before, after = [bos, *_tokens(base, prompt)], _tokens(base, text)
    after = after[:longest] if len(after) > longest else [*after, eos]
    return [*before, *after], [0] * len(before) + [1] * len(after)


def _batch(
    base: LoadedModel, encoded: Sequence[tuple[list[int], list[int]]], device: torch.device
) -> tuple[Tensor, Tensor]:
    ids, _ = pad([ids for ids, _ in encoded], pad_id=special_ids(base.tokenizer)[2], device=device)
    counted, _ = pad([counted for _, counted in encoded], pad_id=0, device=device)
    return ids, counted


def _readable(loaded: LoadedModel, tokens: list[int], stop: str | None) -> str:
    text = str(loaded.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))
    return (text if stop is None else text.split(stop, 1)[0]).strip()


def _check_context(loaded: LoadedModel, longest: int, what: str) -> None:
    context = getattr(loaded.model.config, "max_position_embeddings", None)
    if context is not None and longest > context:
        raise InputError(
            f"{what} take up to {longest} tokens, the context of {loaded.name!r} holds {context}; shorten the prompts "
            "or the texts"
        )
