"""The pairs of a round of Direct Preference Optimization: as tokens, and how many go through the model at once.

That number changes memory and rounding, never what a step learns from. It follows from public shapes and released
texts; the machine has no say, for a round that goes on elsewhere must end in the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from understudy.errors import InputError
from understudy.generation.prompts import encode_text, end_token
from understudy.methods.preference_optimization.config import PreferenceConfig
from understudy.methods.preference_optimization.prompts import prompt_tokens
from understudy.models.loading import LoadedModel
from understudy.models.shape import ModelShape

# Beside the model. More pairs at once are not faster on a CPU.
AMPLE: Final = 5 << 29
_FLOAT: Final = 4
# Resident over kept bytes: freed pieces lie between kept ones.
_WASTE: Final = 1.9
# Of the scores of all tokens, where trl goes back through the output head on a CPU.
_COPIES: Final = 8


class NothingLearnt(InputError):
    """A round's pairs teach nothing, or ruin the adapter; which pairs there are follows from the scores."""


@dataclass(frozen=True)
class Pairs:
    """What a round learns from: public prompts, synthetic texts, and a released order; three lists of one length.

    Attributes:
        prompts: as the policy was given them.
        chosen: continuation that scored best.
        rejected: continuation of the rejected rank.
        in_chat: whether the texts are answers in a chat: they follow without a space, and the end token ends them.
    """

    prompts: Sequence[str] = field(repr=False)
    chosen: Sequence[str] = field(repr=False)
    rejected: Sequence[str] = field(repr=False)
    in_chat: bool = False


def encode_pairs(base: LoadedModel, pairs: Pairs) -> dict[str, list[list[int]]]:
    """Token ids of prompts and texts, exactly as in generation; nothing is cut.

    A pair of equal texts has no gradient but that of rounding, which AdamW would scale up: it is left out. So is one
    that is longer than the context: a text may be of more tokens when it is read than when it was drawn, which is
    known after the charge only. No log tells of it: without noise it is as private as the scores.

    Returns:
        Columns `prompt_ids`, `chosen_ids`, `rejected_ids`.

    Raises:
        InputError: lists of different length.
        NothingLearnt: no pair of two texts, or none that fits the model's context.
    """
    sizes = (len(pairs.prompts), len(pairs.chosen), len(pairs.rejected))
    if len(set(sizes)) != 1 or sizes[0] == 0:
        raise InputError(f"pairs: expected as many chosen and rejected texts as prompts, at least 1, found {sizes}")
    rows: dict[str, list[list[int]]] = {"prompt_ids": [], "chosen_ids": [], "rejected_ids": []}
    context, longer = getattr(base.model.config, "max_position_embeddings", None), 0
    write = text_writer(base, in_chat=pairs.in_chat)
    for asked, *texts in zip(pairs.prompts, pairs.chosen, pairs.rejected, strict=True):
        prompt, answers = prompt_tokens(base, asked), [write(text) for text in texts]
        if context is not None and len(prompt) + max(map(len, answers)) > context:
            longer += 1
        elif answers[0] != answers[1]:
            for column, ids in zip(rows.values(), (prompt, *answers), strict=True):
                column.append(ids)
    if longer == sizes[0]:
        raise NothingLearnt(
            f"pairs: expected some that fit {base.name}'s context of {context} tokens, found none; lower "
            "candidates.seeds_per_prompt, seed_tokens or max_new_tokens"
        )
    if not rows["prompt_ids"]:
        raise NothingLearnt(
            "pairs: expected some with texts that differ, found none; raise candidates.sampling.temperature, prompts "
            "or per_prompt"
        )
    return rows


def text_writer(base: LoadedModel, *, in_chat: bool) -> Callable[[str], list[int]]:
    """Gives a text's tokens as it is drawn: behind a list's prompt it begins with a space and a line break ends it."""
    tokenizer: Any = base.tokenizer
    lead = "" if in_chat else " "
    ended = [end_token(tokenizer, in_chat=True)] if in_chat else tokenizer.encode("\n", add_special_tokens=False)
    return lambda text: [*(encode_text(tokenizer, text, lead=lead) if text.strip() else []), *ended]


def pairs_in_a_pass(base: LoadedModel, rows: Mapping[str, list[list[int]]], config: PreferenceConfig) -> int:
    """Pairs that go through the model at once, of the rows of `encode_pairs`."""
    texts = zip(rows["prompt_ids"], rows["chosen_ids"], rows["rejected_ids"], strict=True)
    return pairs_at_once(
        base.shape,
        longest=max(len(prompt) + max(len(chosen), len(rejected)) for prompt, chosen, rejected in texts),
        pairs=len(rows["prompt_ids"]),
        batch_size=config.batch_size,
    )


def pass_of(
    base: LoadedModel,
    prompts: Sequence[str],
    chosen: Sequence[str],
    rejected: Sequence[str],
    *,
    config: PreferenceConfig,
    in_chat: bool = False,
) -> Pairs:
    """Pairs over and over, until they are as many as go through the model at once: what a dry run trains on."""
    again = max(1, config.batch_size // len(prompts))
    many = Pairs([*prompts] * again, [*chosen] * again, [*rejected] * again, in_chat)
    size = pairs_in_a_pass(base, encode_pairs(base, many), config)
    return Pairs(many.prompts[:size], many.chosen[:size], many.rejected[:size], in_chat)


def pairs_at_once(shape: ModelShape | None, *, longest: int, pairs: int, batch_size: int) -> int:
    """The pairs of a micro-batch, so that all micro-batches of a step are of one size.

    The mean over a step is then the mean of its micro-batches, in the last step of a pass too.

    Args:
        shape: of the base model; without one, memory is not looked at.
        longest: tokens of the longest prompt with a text.
        pairs: of the round.
        batch_size: pairs per step.

    Returns:
        The whole step where it has room, or else the largest common divisor of step and round that has, at least 1.
    """
    if shape is None or step_bytes(shape, longest=longest, pairs=min(pairs, batch_size)) <= AMPLE:
        return batch_size
    common = math.gcd(pairs, batch_size)
    fitting = [
        size
        for size in range(1, common + 1)
        if common % size == 0 and step_bytes(shape, longest=longest, pairs=size) <= AMPLE
    ]
    return max(fitting, default=1)


def step_bytes(shape: ModelShape, *, longest: int, pairs: int) -> int:
    """Predicted peak of a forward and backward pass over so many pairs, above the loaded model."""
    tokens = 2 * pairs * longest
    return round(_FLOAT * tokens * (_WASTE * shape.layers * shape.kept_per_token + _COPIES * shape.vocabulary))
