"""Synthetic pairs without a professional model: what KnowledgeSG compares itself with, as one parametrised way.

Paper: KnowledgeSG, section 4.1. A way says which model generates, whether request and answer are written in one step or
in two, and whether real pairs are shown as examples. Real pairs in a prompt make the result `private`, whatever the
model: the prompt is read outside of any mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from understudy.frozen import Frozen
from understudy.generation import self_instruct
from understudy.generation.config import SamplingConfig
from understudy.generation.instructions import Pair, PairEncoder
from understudy.generation.prompts import row_seeds
from understudy.models.loading import LoadedModel
from understudy.quantities import Size


@dataclass(frozen=True)
class Way:
    """How pairs are made.

    Attributes:
        generator: the public base model, or the one that was tuned with DP.
        steps: 1: request and answer together; 2: requests first, answers of the same model later.
        shots: whose pairs are shown as examples.
    """

    generator: Literal["base", "dp"]
    steps: Literal[1, 2]
    shots: Literal["public", "private"]


WAYS: Mapping[str, Way] = {
    "icl": Way("base", 1, "private"),
    "self_instruct": Way("base", 2, "public"),
    "self_instruct_icl": Way("base", 2, "private"),
    "dp_gene": Way("dp", 1, "public"),
    "dp_instruct": Way("dp", 2, "public"),
    "dp_instruct_icl": Way("dp", 2, "private"),
}


class Making(Frozen):
    """What all ways have in common; public.

    Attributes:
        count: pairs to be drawn.
        shots: most examples in a prompt.
        about: what the pairs are about, in public words.
        requests: how requests, or whole pairs, are drawn.
        answers: how answers are drawn in the second step.
        public_seed: of all choices and draws.
        batch_size: rows in flight; speed only. auto: 32, and more on a GPU.
    """

    count: int
    shots: int = 3
    about: str = ""
    requests: SamplingConfig = Field(
        default_factory=lambda: SamplingConfig(max_new_tokens=48, temperature=0.7, top_p=1.0)
    )
    answers: SamplingConfig = Field(default_factory=lambda: SamplingConfig(max_new_tokens=64, temperature=0.7))
    public_seed: int = 0
    batch_size: Size | Literal["auto"] = "auto"


def make_pairs(way: Way, model: LoadedModel, examples: Sequence[Pair], making: Making) -> list[Pair]:
    """Pairs made in a way; drawn ones that are no pair are left out, so there may be fewer than `making.count`.

    Args:
        way: steps; the model is the caller's choice.
        model: generates.
        examples: shown in prompts, public or private as the way says.
        making: how many, and how.

    Raises:
        InputError: not even one example fits the model's context.
    """
    prompts = _prompts(way, model, examples, making)
    written = self_instruct.continue_prompts(
        model,
        [prompt.ids for prompt in prompts],
        sampling=making.requests,
        public_seed=making.public_seed,
        purpose="baseline/requests",
        batch_size=making.batch_size,
    )
    if way.steps == 1:
        return [pair for text in written if (pair := self_instruct.first_pair(text)) is not None]
    entries = (self_instruct.first_entry(text, shown=p.shown) for text, p in zip(written, prompts, strict=True))
    requests = [text for text in entries if text]
    answers = _answers(model, requests, making)
    return [Pair(*both) for both in zip(requests, answers, strict=True) if both[1]]


def _prompts(way: Way, model: LoadedModel, examples: Sequence[Pair], making: Making) -> list[self_instruct.FewShot]:
    def write(chosen: Sequence[int]) -> str:
        shown = [examples[place] for place in chosen]
        if way.steps == 1:
            return self_instruct.pair_prompt(shown, about=making.about)
        return self_instruct.list_prompt([pair.instruction for pair in shown], about=making.about)

    return self_instruct.few_shots(
        model,
        write,
        examples=len(examples),
        shots=making.shots,
        count=making.count,
        room=self_instruct.context_of(model) - making.requests.max_new_tokens,
        seed=row_seeds(making.public_seed, [0], purpose="baseline/examples")[0],
    )


def _answers(model: LoadedModel, requests: Sequence[str], making: Making) -> list[str]:
    encoder = PairEncoder(model.tokenizer)
    room = min(self_instruct.context_of(model), 4096) - making.answers.max_new_tokens
    ids, mask, _ = encoder.prompts([Pair(text) for text in requests], max_length=room)
    return self_instruct.write_answers(
        model,
        encoder,
        (ids, mask),
        sampling=making.answers,
        seeds=row_seeds(making.public_seed, range(len(requests)), purpose="baseline/answers"),
        batch_size=making.batch_size,
    )
