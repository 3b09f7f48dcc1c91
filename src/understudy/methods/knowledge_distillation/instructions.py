"""Raw instructions from the DP model (paper, section 3.3): continued few-shot prompts of public examples.

Self-Instruct (Wang et al. 2022) in our words: a numbered list of public instructions, continued at temperature 0.7. Of
a continuation the first instruction is kept; one of fewer than two words is dropped.
*Deviation*: where the context is short, a prompt shows fewer examples.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from understudy.data.columns import strings
from understudy.data.readers import read_source
from understudy.errors import InputError
from understudy.generation.instructions import PairEncoder
from understudy.generation.prompts import row_seeds, special_ids
from understudy.generation.sampling import sample
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.models.loading import LoadedModel
from understudy.progress import Progress

BUILTIN = (
    "Explain how rain forms.",
    "Give three tips for sleeping well.",
    "What is the difference between a loan and a grant?",
    "Write a short thank-you note to a neighbour.",
    "How do I remove a coffee stain from a shirt?",
    "Describe the taste of a ripe pear.",
    "Is the word in this sentence a noun or a verb: They run every day?",
    "Name two exercises for a stiff back.",
    "Turn this sentence into a question: The shop opens at nine.",
    "What should I ask before renting a flat?",
    "Sum up the plot of a story that you know in one line.",
    "Why do leaves change their colour?",
)
_NUMBERED = re.compile(r"\s*\b\d{1,3}[.)]\s")


@dataclass(frozen=True)
class Drawn:
    """Instructions as they were drawn.

    Attributes:
        texts: those that are long enough, in the order of the draws.
        drawn: how many were drawn.
        short: how many were dropped for being too short.
    """

    texts: tuple[str, ...]
    drawn: int
    short: int


def draw_instructions(
    model: LoadedModel, config: KnowledgeDistillationConfig, *, progress: Progress | None = None
) -> Drawn:
    """Continue few-shot prompts until there are `draws` times as many instructions as pairs are wanted.

    Args:
        model: the DP model, or the base to compare with.
        config: examples, draws, sampling, public seed.
        progress: called with (instructions drawn, instructions).

    Raises:
        InputError: the public examples cannot be read, or none fits the context.
    """
    settings, count = config.instructions, round(config.samples * config.instructions.draws)
    prompts = few_shot_prompts(model, config, count=count)
    _, eos, _ = special_ids(model.tokenizer)
    ids, mask = PairEncoder(model.tokenizer, config.template).padded_left(prompts)
    device = next(model.model.parameters()).device
    drawn = sample(
        model.model,
        (ids.to(device), mask.to(device)),
        config=settings.sampling,
        seeds=row_seeds(config.public_seed, range(count), purpose="distillation/instructions"),
        eos=eos,
        forbidden=tuple(model.tokenizer.all_special_ids),
        batch_size=settings.batch_size,
        progress=progress,
    )
    texts = [first_instruction(str(model.tokenizer.decode(tokens, skip_special_tokens=True))) for tokens in drawn]
    kept = tuple(text for text in texts if len(text.split()) >= settings.least_words)
    return Drawn(kept, count, count - len(kept))


def first_instruction(text: str) -> str:
    """The first entry of a continued list.

    >>> first_instruction(" Why is the sky blue? 5. Name a bird.")
    'Why is the sky blue?'
    """
    return " ".join(_NUMBERED.split(text.strip().partition("\n")[0])[0].split())


def few_shot_prompts(model: LoadedModel, config: KnowledgeDistillationConfig, *, count: int) -> list[list[int]]:
    """Token ids of `count` prompts, each with examples of its own choice that fit beside what is to be drawn.

    Raises:
        InputError: not even one example fits.
    """
    examples = read_examples(config.instructions.examples)
    generator = torch.Generator().manual_seed(row_seeds(config.public_seed, [0], purpose="distillation/examples")[0])
    context = int(getattr(model.model.config, "max_position_embeddings", 0) or 1_000_000)
    room = context - config.instructions.sampling.max_new_tokens
    prompts = []
    for _ in range(count):
        chosen = torch.randperm(len(examples), generator=generator)[: config.instructions.shots].tolist()
        prompts.append(_fitting(model, [examples[place] for place in chosen], about=config.about, room=room))
    return prompts


def list_prompt(examples: Sequence[str], *, about: str) -> str:
    """The list to be continued."""
    subject = f" about {about}" if about.strip() else ""
    lines = [f"{number}. {example}" for number, example in enumerate(examples, 1)]
    return "\n".join([f"Requests of people to an assistant{subject}:", *lines, f"{len(lines) + 1}."])


def read_examples(spec: str) -> list[str]:
    """Public instructions to show.

    Raises:
        InputError: no such table, or no column `instruction` of texts in it.
    """
    if spec == "builtin":
        return list(BUILTIN)
    try:
        found = strings(read_source(spec), "instruction").to_pylist()
    except InputError as error:
        raise InputError(f"instructions.examples={spec}: {error}") from None
    lines = [" ".join(text.split()) for text in found]
    return [line for line in lines if line]


def _fitting(model: LoadedModel, examples: Sequence[str], *, about: str, room: int) -> list[int]:
    bos, _, _ = special_ids(model.tokenizer)
    for count in range(len(examples), 0, -1):
        text = list_prompt(examples[:count], about=about)
        ids = [bos, *model.tokenizer.encode(text, add_special_tokens=False, verbose=False)]
        if len(ids) <= room:
            return ids
    raise InputError(
        f"instructions: the context of {model.name} has no room for one example beside the "
        f"instructions.sampling.max_new_tokens to be drawn; lower that, or shorten about and the examples"
    )
