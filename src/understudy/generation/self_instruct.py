"""Instructions, or whole pairs, by continuing a list of examples (Self-Instruct, Wang et al. 2022, in our words).

Two steps write instructions first, as entries of a numbered list, and have them answered later; one step writes request
and answer together. What the examples are, public or private, is the caller's affair, and so is the label of what comes
out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from understudy.errors import InputError
from understudy.generation.config import SamplingConfig
from understudy.generation.instructions import Pair, PairEncoder
from understudy.generation.prompts import row_seeds, special_ids, special_token_ids
from understudy.generation.rows import rows_in_flight
from understudy.generation.sampling import sample
from understudy.models.loading import LoadedModel
from understudy.models.passes import Rows
from understudy.progress import Progress

_REQUEST, _ANSWER = "Request:", "Answer:"
_ROWS = 32  # in flight on a CPU


@dataclass(frozen=True)
class FewShot:
    """A prompt and how many examples it shows.

    Attributes:
        ids: its token ids.
        shown: examples in it.
    """

    ids: list[int] = field(repr=False)
    shown: int


def first_entry(text: str, *, shown: int) -> str:
    """The first entry of a continued list: what stands before the list's next number, or before a line break.

    Numbers of the entry's own stay in it.

    Args:
        text: what a model wrote behind the number of the entry.
        shown: entries that the prompt showed, so that this one is `shown + 1`.

    >>> first_entry(" The patient is 67. Why does she cough? 5. Name a bird.", shown=3)
    'The patient is 67. Why does she cough?'
    """
    line = text.strip().partition("\n")[0]
    return " ".join(re.split(rf"(?:^|\s+){shown + 2}[.)]\s", line, maxsplit=1)[0].split())


def first_pair(text: str) -> Pair | None:
    """The first request with its answer in a continued list of pairs; None where one of them is missing.

    >>> first_pair(" Name a bird. Answer: A wren. Request: Name a fish.")
    Pair(instruction='Name a bird.', response='A wren.', system='')
    """
    request, _, rest = text.partition(_ANSWER)
    answer = rest.partition(_REQUEST)[0]
    pair = Pair(" ".join(request.split()), " ".join(answer.split()))
    return pair if pair.instruction and pair.response else None


def list_prompt(examples: Sequence[str], *, about: str) -> str:
    """A list of instructions to be continued."""
    lines = [f"{number}. {example}" for number, example in enumerate(examples, 1)]
    return "\n".join([f"Requests of people to an assistant{_subject(about)}:", *lines, f"{len(lines) + 1}."])


def pair_prompt(examples: Sequence[Pair], *, about: str) -> str:
    """A list of pairs to be continued."""
    lines = [f"{_REQUEST} {pair.instruction}\n{_ANSWER} {pair.response}\n" for pair in examples]
    return "\n".join([f"Requests of people to an assistant{_subject(about)}, with answers.\n", *lines, _REQUEST])


def few_shots(
    model: LoadedModel,
    write: Callable[[Sequence[int]], str],
    *,
    examples: int,
    shots: int,
    count: int,
    room: int,
    seed: int,
) -> list[FewShot]:
    """`count` prompts, each with examples of its own choice, as many as fit.

    Args:
        model: gives the tokenizer.
        write: numbers of examples -> the prompt's text.
        examples: how many there are to choose from.
        shots: most examples in one prompt.
        count: prompts wanted.
        room: most tokens of a prompt.
        seed: of the choice; public.

    Raises:
        InputError: not even one example fits.
    """
    generator = torch.Generator().manual_seed(seed)
    bos, _, _ = special_ids(model.tokenizer)
    prompts = []
    for _ in range(count):
        chosen = torch.randperm(examples, generator=generator)[:shots].tolist()
        fitting = None
        for shown in range(len(chosen), 0, -1):
            text = write(chosen[:shown])
            ids = [bos, *model.tokenizer.encode(text, add_special_tokens=False, verbose=False)]
            if len(ids) <= room:
                fitting = FewShot(ids, shown)
                break
        if fitting is None:
            raise InputError(
                f"instructions: the context of {model.name} has no room for one example beside the "
                "instructions.sampling.max_new_tokens to be drawn; lower that, or shorten about and the examples"
            )
        prompts.append(fitting)
    return prompts


def continue_prompts(
    model: LoadedModel,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: SamplingConfig,
    public_seed: int,
    purpose: str,
    batch_size: Rows,
    first: int = 0,
    progress: Progress | None = None,
) -> list[str]:
    """One continuation per prompt.

    Args:
        model: draws.
        prompts: token ids.
        sampling: how.
        public_seed: a continuation is a function of it, the purpose, its prompt and its number.
        purpose: names the stream of seeds.
        batch_size: rows in flight; speed only. auto: 32, and more on a GPU.
        first: number of the first prompt.
        progress: called with (continuations, prompts).
    """
    encoder = PairEncoder(model.tokenizer, "plain")
    seeds = row_seeds(public_seed, range(first, first + len(prompts)), purpose=purpose)
    end = special_ids(model.tokenizer)[1]
    drawn = _draw(model, encoder.padded_left(prompts), sampling, seeds, end, batch_size, progress)
    return [str(model.tokenizer.decode(tokens, skip_special_tokens=True)) for tokens in drawn]


def write_answers(
    model: LoadedModel,
    encoder: PairEncoder,
    prompts: tuple[Tensor, Tensor],
    *,
    sampling: SamplingConfig,
    seeds: Sequence[int],
    batch_size: Rows,
    progress: Progress | None = None,
) -> list[str]:
    """One answer per instruction; an empty one is an answer.

    Args:
        model: answers.
        encoder: of its template.
        prompts: ids and mask that the encoder made of the instructions.
        sampling: how.
        seeds: public, one for each instruction.
        batch_size: rows in flight; speed only. auto: 32, and more on a GPU.
        progress: called with (answers, instructions).
    """
    if not seeds:
        return []
    drawn = _draw(model, prompts, sampling, seeds, encoder.end, batch_size, progress)
    return [encoder.decode(tokens) for tokens in drawn]


def _draw(
    model: LoadedModel,
    prompts: tuple[Tensor, Tensor],
    sampling: SamplingConfig,
    seeds: Sequence[int],
    end: int,
    batch_size: Rows,
    progress: Progress | None,
) -> list[list[int]]:
    ids, mask = (part.to(model.model.device) for part in prompts)
    return sample(
        model.model,
        (ids, mask),
        config=sampling,
        seeds=seeds,
        eos=end,
        forbidden=special_token_ids(model.tokenizer),
        batch_size=rows_in_flight(
            model.model, batch_size, on_cpu=_ROWS, prompt=ids.shape[1], new=sampling.max_new_tokens
        ),
        progress=progress,
    )


def context_of(model: LoadedModel) -> int:
    """Tokens that the model's context holds; a large number where it names none."""
    return int(getattr(model.model.config, "max_position_embeddings", 0) or 1_000_000)


def _subject(about: str) -> str:
    return f" about {about}" if about.strip() else ""
