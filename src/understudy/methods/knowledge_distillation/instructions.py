"""Raw instructions from the DP model (paper, section 3.3): continued few-shot prompts of public examples.

A numbered list of public instructions is continued at temperature 0.7. Of a continuation the first instruction is kept;
one of fewer than two words is dropped.
*Deviation*: where the context is short, a prompt shows fewer examples.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from understudy.generation import self_instruct
from understudy.generation.prompts import row_seeds
from understudy.generation.self_instruct import FewShot
from understudy.methods.knowledge_distillation.config import InstructionConfig, KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.public_texts import read_instructions
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


@dataclass(frozen=True)
class Drawn:
    """Instructions as they were drawn.

    Attributes:
        texts: those that are long enough, in the order of the draws.
        drawn: how many were drawn.
        short: how many were dropped for being too short.
    """

    texts: tuple[str, ...] = field(repr=False)
    drawn: int
    short: int = field(repr=False)


def first_wave(config: KnowledgeDistillationConfig) -> int:
    """How many instructions are drawn before any is filtered: `draws` times as many as pairs are wanted."""
    return round(config.samples * config.instructions.draws)


def draw_instructions(
    model: LoadedModel,
    config: KnowledgeDistillationConfig,
    *,
    count: int,
    first: int = 0,
    progress: Progress | None = None,
) -> Drawn:
    """Continue few-shot prompts.

    Args:
        model: the DP model, or the base to compare with.
        config: examples, sampling, public seed.
        count: instructions to draw.
        first: number of the first one: instructions of different numbers are independent draws.
        progress: called with (instructions drawn, instructions).

    Raises:
        InputError: the public examples cannot be read, or none fits the context.
    """
    settings = config.instructions
    prompts = few_shot_prompts(model, config, count=first + count)[first:]
    drawn = self_instruct.continue_prompts(
        model,
        [prompt.ids for prompt in prompts],
        sampling=settings.sampling,
        public_seed=config.public_seed,
        purpose="distillation/instructions",
        batch_size=settings.batch_size,
        first=first,
        progress=progress,
    )
    both = zip(drawn, prompts, strict=True)
    texts = [self_instruct.first_entry(text, shown=prompt.shown) for text, prompt in both]
    kept = tuple(text for text in texts if len(text.split()) >= settings.least_words)
    return Drawn(kept, count, count - len(kept))


def few_shot_prompts(model: LoadedModel, config: KnowledgeDistillationConfig, *, count: int) -> list[FewShot]:
    """`count` prompts, each with public examples of its own choice that fit beside what is to be drawn.

    Raises:
        InputError: the public examples cannot be read, or not even one fits.
    """
    examples = read_examples(config.instructions)
    return self_instruct.few_shots(
        model,
        lambda chosen: self_instruct.list_prompt([examples[place] for place in chosen], about=config.about),
        examples=len(examples),
        shots=config.instructions.shots,
        count=count,
        room=self_instruct.context_of(model) - config.instructions.sampling.max_new_tokens,
        seed=row_seeds(config.public_seed, [0], purpose="distillation/examples")[0],
    )


def read_examples(settings: InstructionConfig) -> list[str]:
    """Public instructions to show.

    Raises:
        InputError: as `read_instructions`.
    """
    if settings.examples == "builtin":
        return list(BUILTIN)
    found = read_instructions(settings.examples, setting="instructions.examples", digest=settings.examples_digest)
    lines = [" ".join(text.split()) for text in found]
    return [line for line in lines if line]
