"""Prompts that ask for a text of a label, one width for all labels.

For a base model they read `BOS <label name> SEP` (Keskar et al. 2019, CTRL), with public words about the texts before
the label if there are any. An instruct model is asked through its own chat template: it is told what it writes, and the
label is the user's message. With topics, a label's name is followed by the words of one: `<label name> about ferry,
ticket, price`.

Names of different token length are padded on the left to one public width, so that text always begins in the same
column; masked columns carry position 0 and nothing attends to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jinja2 import TemplateError
from torch import Tensor

from understudy.errors import InputError
from understudy.generation.config import PromptFormat

__all__ = ["PromptFormat", "PromptTable", "build_prompts", "encode_prompts", "position_ids", "row_seeds"]

_PLACE = "<<the message>>"  # where the label goes in a rendered chat
_ANSWER = "<<the text>>"


@dataclass(frozen=True)
class PromptTable:
    """The prompts of all labels, padded to one width; all of it public.

    Attributes:
        input_ids: `(labels * topics, width)` int64, padded on the left; all topics of the first label come first.
        attention_mask: `(labels * topics, width)` int64, 0 on padding.
        label_span: First column of the widest label, its topic's words included, and the column after its last.
        neutral_ids: `(width,)` int64, the prompt whose label columns hold padding: to be filled with random tokens.
        ordinary_ids: `(ordinary,)` int64, every token id but the special ones.
        end: Token that ends a text: of the text, or of the turn in a chat.
        lead: What stands between prompt and text: a space, or nothing after a chat's last line break.
        topics: Prompts of each label: one for each topic.
    """

    input_ids: Tensor
    attention_mask: Tensor
    label_span: tuple[int, int]
    neutral_ids: Tensor
    ordinary_ids: Tensor
    end: int
    lead: str = " "
    topics: int = 1

    @property
    def width(self) -> int:
        """Columns of a prompt: the text begins in this column."""
        return self.input_ids.shape[1]


def padded_left(
    rows: Sequence[Sequence[int]], *, pad: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Ids and attention mask `(n, longest)` int64 of prompts that end together, where their continuations begin."""
    width = max(map(len, rows), default=0)
    ids = [[pad] * (width - len(row)) + list(row) for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids, dtype=torch.int64, device=device), torch.tensor(mask, dtype=torch.int64, device=device)


def special_ids(tokenizer: Any) -> tuple[int, int, int]:
    """Ids of BOS, EOS and padding; BOS falls back to EOS (GPT-2) and padding to EOS.

    Raises:
        InputError: The tokenizer has no end-of-text token.
    """
    eos = tokenizer.eos_token_id
    if eos is None:
        raise InputError(
            "tokenizer.eos_token_id=None: expected a tokenizer with an end-of-text token; choose another model"
        )
    bos = eos if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    pad = eos if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return int(bos), int(eos), int(pad)


def special_token_ids(tokenizer: Any) -> tuple[int, ...]:
    """Ids of every special token, those that are only added to the vocabulary as special included.

    `all_special_ids` holds bos, eos, padding and the like. A token that ends a turn need not be among them (Phi-3's
    `<|end|>`).
    """
    added = (number for number, token in tokenizer.added_tokens_decoder.items() if token.special)
    return tuple(sorted({*tokenizer.all_special_ids, *added}))


def end_token(tokenizer: Any, *, in_chat: bool) -> int:
    """What ends a text: what the chat template writes behind an answer if that is special, else the end of text."""
    eos = special_ids(tokenizer)[1]
    if not in_chat:
        return eos
    turns = [{"role": "user", "content": _PLACE}, {"role": "assistant", "content": _ANSWER}]
    chat = str(tokenizer.apply_chat_template(turns, tokenize=False))
    return first_special(tokenizer, chat.partition(_ANSWER)[2], otherwise=eos)


def first_special(tokenizer: Any, text: str, *, otherwise: int) -> int:
    """The special token that a piece of a template begins with."""
    tokens = _encode(tokenizer, text)
    return tokens[0] if tokens and tokens[0] in special_token_ids(tokenizer) else otherwise


def renders(chat: str, *pieces: str) -> bool:
    """Whether a rendered chat shows every piece as it was given, and once."""
    return all(chat.count(piece) == 1 for piece in pieces)


def encode_prompts(
    tokenizer: Any, label_name: str, prompt: PromptFormat | None = None, *, about: str = ""
) -> list[int]:
    """Token ids of the prompt of one label, unpadded."""
    frame = _frame(tokenizer, prompt or PromptFormat(), about)
    return [*frame.before, *frame.label(tokenizer, label_name), *frame.after]


@dataclass(frozen=True)
class Instruction:
    """How a model is asked for a text of a label; public.

    Attributes:
        text: Plain text in which `{label}` stands for the label's name, written after BOS; empty asks as
            `encode_prompts` does.
        about: Words that say what the texts are, used without `text`.
    """

    text: str = ""
    about: str = ""


def instruction_ids(tokenizer: Any, label_name: str, instruction: Instruction) -> list[int]:
    """Token ids of an instruction to write a text of a label, unpadded."""
    if not instruction.text:
        return encode_prompts(tokenizer, label_name, about=instruction.about)
    return [special_ids(tokenizer)[0], *_encode(tokenizer, instruction.text.replace("{label}", label_name))]


def encode_text(tokenizer: Any, text: str, *, lead: str = " ") -> list[int]:
    """Token ids of a text as it stands behind a prompt that ends before `lead`."""
    # Not verbose: the tokenizer would log the length of the first text beyond its model's limit.
    return list(tokenizer.encode(lead + text.strip(), add_special_tokens=False, verbose=False))


@dataclass(frozen=True)
class _Frame:
    """What stands before and after a label, as token ids, and before its text."""

    before: list[int]
    after: list[int]
    lead: str

    def label(self, tokenizer: Any, name: str) -> list[int]:
        return _encode(tokenizer, self.lead + name.strip())


def uses_chat(tokenizer: Any, prompt: PromptFormat) -> bool:
    """Whether prompts go through the tokenizer's chat template.

    Raises:
        InputError: A chat is asked for, and the tokenizer has no template.
    """
    if prompt.style == "chat" and not tokenizer.chat_template:
        raise InputError("prompt.style=chat: the model has no chat template; set prompt.style=plain or choose another")
    return prompt.in_chat(has_template=bool(tokenizer.chat_template))


def _frame(tokenizer: Any, prompt: PromptFormat, about: str) -> _Frame:
    if uses_chat(tokenizer, prompt):
        before, after = chat_around(tokenizer, system=f"You write {about.strip() or 'texts'}.")
        return _Frame(_encode(tokenizer, before), _encode(tokenizer, after), "")
    bos, words = special_ids(tokenizer)[0], about.strip()
    before = prompt.before or (f" {words}," if words else "")
    return _Frame([bos, *_encode(tokenizer, before)], _encode(tokenizer, prompt.separator), " ")


def chat_around(tokenizer: Any, *, system: str) -> tuple[str, str]:
    """What a chat template puts before and after the user's only message, the opening of the answer included.

    A template that refuses a system message, or leaves it out, gets its words in front of the user's.

    Raises:
        InputError: The template shows the words and the message in neither way.
    """
    apart = [{"role": "system", "content": system}, {"role": "user", "content": _PLACE}]
    joined = [{"role": "user", "content": f"{system}\n\n{_PLACE}"}]
    for turns in (apart, joined):
        try:
            chat = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
        except TemplateError:
            continue
        if renders(chat, system, _PLACE):
            before, _, after = chat.partition(_PLACE)
            return before, after
    raise InputError(
        f"prompt.style: expected a chat template that shows {system!r} and the user's message as they are, found one "
        "that does not; set prompt.style=plain or choose another model"
    )


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False, verbose=False)) if text else []


def build_prompts(
    tokenizer: Any,
    label_names: Sequence[str],
    prompt: PromptFormat | None = None,
    *,
    about: str = "",
    topics: Sequence[Sequence[str]] = (),
) -> PromptTable:
    """Encode the prompts of all labels, with every topic if there are any, to one public width.

    Args:
        tokenizer: Of the base model.
        label_names: Every label, public.
        prompt: The public text around a label.
        about: Public words that say what the texts are, such as "one-sentence film reviews"; may be empty.
        topics: The words of each topic, public; empty where prompts name none.

    Raises:
        InputError: Fewer than two labels, a label without tokens, or two labels with the same tokens.
    """
    if len(label_names) < 2:
        raise InputError(
            f"label_names={list(label_names)}: expected at least two labels; declare every label of the data"
        )
    frame = _frame(tokenizer, prompt or PromptFormat(), about)
    _check_labels(label_names, [frame.label(tokenizer, name) for name in label_names])
    named = [about_topic(name, words) for name in label_names for words in topics] or list(label_names)
    labels = [frame.label(tokenizer, name) for name in named]
    _check_labels(named, labels)
    _, _, pad = special_ids(tokenizer)
    widest, start = max(map(len, labels)), len(frame.before)
    ids, mask = padded_left([[*frame.before, *label, *frame.after] for label in labels], pad=pad)
    neutral = torch.tensor([*frame.before, *[pad] * widest, *frame.after], device="cpu")
    special = set(special_token_ids(tokenizer))
    ordinary = torch.tensor([token for token in range(len(tokenizer)) if token not in special], device="cpu")
    end = end_token(tokenizer, in_chat=uses_chat(tokenizer, prompt or PromptFormat()))
    return PromptTable(
        ids, mask, (start, start + widest), neutral, ordinary, end, frame.lead, topics=max(len(topics), 1)
    )


def about_topic(label_name: str, words: Sequence[str]) -> str:
    """A label's name with the words of a topic.

    >>> about_topic("complaint", ["ferry", "ticket"])
    'complaint about ferry, ticket'
    """
    return f"{label_name.strip()} about {', '.join(words)}"


def _check_labels(names: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
    seen: dict[tuple[int, ...], str] = {}
    for name, ids in zip(names, tokens, strict=True):
        if not ids:
            raise InputError(
                f"label name {name!r} has no tokens: expected a name that the tokenizer can write; rename it"
            )
        if tuple(ids) in seen:
            raise InputError(
                f"label names {seen[tuple(ids)]!r} and {name!r} have the same tokens {list(ids)}: expected names "
                "that differ; rename one"
            )
        seen[tuple(ids)] = name


def position_ids(attention_mask: Tensor) -> Tensor:
    """Positions that count from each row's first real token; padding gets 0.

    Args:
        attention_mask: `(batch, length)`, 1 on real tokens.

    Returns:
        `(batch, length)` int64.
    """
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def row_seeds(public_seed: int, rows: Sequence[int], *, purpose: str) -> list[int]:
    """One public 63-bit seed per row: a function of seed, purpose and row alone, whatever else is drawn beside it."""
    digests = (hashlib.sha256(f"{public_seed}/{purpose}/{row}".encode()).digest() for row in rows)
    return [int.from_bytes(digest[:8], "big") >> 1 for digest in digests]
