"""Instructions and responses as tokens: one template, and a mask over the response and its end token.

A model that was tuned to follow instructions brings a chat template, which is used; a base model gets a plain template
in the manner of Alpaca (Taori et al. 2023), in our words. The template's text, the instruction and the response are
encoded each on its own, so that their tokens never merge and nothing a row says can end its turn: what looks like a
special token inside of a row is written as plain text.

Everything has one public width. A pair that is too long is cut by its own length alone: the system text keeps at most a
quarter of the room, the instruction at least half of what is left, the response the rest; a response that was cut has
no end token. How many were cut is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jinja2
import torch
from torch import Tensor

from understudy.errors import InputError
from understudy.generation.prompts import first_special, padded_left, renders, special_ids

Template = Literal["auto", "plain", "chat"]

PREFACE = "Below is a request. Write an answer that carries it out."
# Fewer columns than this beside the template hold no pair.
LEAST_ROOM = 8
_BEFORE, _AFTER = "\n\n### Request:\n", "\n\n### Answer:\n"
_SYSTEM, _INSTRUCTION, _RESPONSE = "<<system>>", "<<instruction>>", "<<response>>"


@dataclass(frozen=True)
class Pair:
    """One instruction with its response.

    Attributes:
        instruction: what is asked.
        response: the answer; empty where one is to be written.
        system: a text that stands before the request; empty without one.
    """

    instruction: str = field(repr=False)
    response: str = field(default="", repr=False)
    system: str = field(default="", repr=False)


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs as tensors of one width, padded on the right.

    Attributes:
        input_ids: `(n, width)` int64.
        attention_mask: `(n, width)` int64, 1 on template, instruction, response and end token.
        loss_mask: `(n, width)` bool, response and end token only.
        valid: `(n,)` bool, False for null rows, which hold the template alone.
        cut_instructions: how many instructions or system texts were cut; of private pairs private.
        cut_responses: how many responses were cut, likewise.
    """

    input_ids: Tensor = field(repr=False)
    attention_mask: Tensor = field(repr=False)
    loss_mask: Tensor = field(repr=False)
    valid: Tensor = field(repr=False)
    cut_instructions: int = field(repr=False)
    cut_responses: int = field(repr=False)


@dataclass(frozen=True)
class _Frame:
    """The template's own tokens: before the system text, between it and the instruction, and after."""

    before: list[int]
    between: list[int]
    after: list[int]

    def __len__(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)


@dataclass(frozen=True)
class _Fitted:
    """One pair as it fits its width, and whether instruction (or system text) and response were cut."""

    prompt: list[int] = field(repr=False)
    response: list[int] = field(repr=False)
    cut_prompt: bool = field(repr=False)
    cut_response: bool = field(repr=False)


class PairEncoder:
    """Writes pairs for one tokenizer in one template."""

    def __init__(self, tokenizer: Any, template: Template = "auto") -> None:
        """Choose the template: `auto` takes the tokenizer's chat template, or the plain one where it has none.

        Raises:
            InputError: a chat template is asked for and the tokenizer has none, or it cannot be used.
        """
        has_chat = bool(getattr(tokenizer, "chat_template", None))
        if template == "chat" and not has_chat:
            raise InputError(
                "template=chat: expected a tokenizer with a chat template, found none; use template=plain, or a "
                "model that was tuned on conversations"
            )
        self._tokenizer, self._chat = tokenizer, has_chat and template != "plain"
        self._bos, self._eos, self._pad = special_ids(tokenizer)
        frame = self._chat_frame if self._chat else self._plain_frame
        self._frames = {with_system: frame(with_system) for with_system in (False, True)}
        self.end = self._end_of_response()

    @property
    def opening_length(self) -> int:
        """Tokens of the template before the instruction of a pair without a system text."""
        frame = self._frames[False]
        return len(frame.before) + len(frame.between)

    def check_width(self, max_length: int, *, setting: str = "max_length", reserved: int = 0) -> None:
        """Refuse a width that the template fills; whatever the pairs are.

        Args:
            max_length: the width, as the user gave it.
            setting: by which it was given.
            reserved: tokens of the width that are kept for an answer, which is written later.

        Raises:
            InputError: naming the setting and the least width.
        """
        least = max(map(len, self._frames.values())) + LEAST_ROOM + reserved
        if max_length < least:
            answer = f", {reserved} tokens of it kept for an answer," if reserved else ""
            raise InputError(
                f"{setting}={max_length}: the template and a pair{answer} take at least {least} tokens; raise it"
            )

    def encode(self, pairs: Sequence[Pair | None], *, max_length: int) -> EncodedPairs:
        """Prompt, response and end token of each pair; None is the null row.

        Args:
            pairs: of one table.
            max_length: width of the tensors, public.

        Raises:
            InputError: the template leaves no room for a pair.
        """
        self.check_width(max_length)
        fitted = [self._fitted(pair, max_length) for pair in pairs]
        valid = torch.tensor([pair is not None for pair in pairs], dtype=torch.bool, device="cpu")
        return self._tensors(fitted, [one.prompt for one in fitted], max_length, valid)

    def alone(self, pairs: Sequence[Pair], *, max_length: int) -> EncodedPairs:
        """Responses with their end tokens behind the begin token alone: what a conditional score is compared with.

        They are cut as they are cut behind their instructions, so that both scores are of the same tokens.
        """
        self.check_width(max_length)
        fitted = [self._fitted(pair, max_length) for pair in pairs]
        return self._tensors(
            fitted, [[self._bos]] * len(pairs), max_length, torch.ones(len(pairs), dtype=torch.bool, device="cpu")
        )

    def prompts(self, pairs: Sequence[Pair], *, max_length: int) -> tuple[Tensor, Tensor, int]:
        """Prompts to be continued, padded on the left to the longest.

        Returns:
            Ids and attention mask `(n, width)` int64, width at most `max_length`, and how many prompts were cut.

        Raises:
            InputError: the template leaves no room for an instruction.
        """
        self.check_width(max_length)
        rows, cut = [], 0
        for pair in pairs:
            frame, system = self._opening(pair, max_length)
            instruction = self._text(pair.instruction)
            kept = instruction[: max_length - len(frame) - len(system)]
            rows.append([*frame.before, *system, *frame.between, *kept, *frame.after])
            cut += len(kept) < len(instruction) or len(system) < len(self._text(pair.system))
        return *self.padded_left(rows), cut

    def fits(self, instruction: str, *, max_length: int) -> bool:
        """Whether `prompts` leaves an instruction without a system text whole."""
        return len(self._frames[False]) + len(self._text(instruction)) <= max_length

    def count_cut(self, pairs: Sequence[Pair], *, max_length: int) -> tuple[int, int]:
        """How many instructions (or system texts) and how many responses `encode` cuts; of private pairs private."""
        fitted = [self._fitted(pair, max_length) for pair in pairs]
        return sum(one.cut_prompt for one in fitted), sum(one.cut_response for one in fitted)

    def padded_left(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Ids and attention mask `(n, longest)` of prompts of several lengths."""
        return padded_left(rows, pad=self._pad)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a drawn response."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True)).strip()

    def _tensors(
        self, fitted: Sequence[_Fitted], prompts: Sequence[Sequence[int]], max_length: int, valid: Tensor
    ) -> EncodedPairs:
        """Each response behind its prompt, padded on the right."""
        ids = torch.full((len(fitted), max_length), self._pad, dtype=torch.long, device="cpu")
        attention, loss = torch.zeros_like(ids), torch.zeros(ids.shape, dtype=torch.bool, device="cpu")
        for row, (prompt, one) in enumerate(zip(prompts, fitted, strict=True)):
            tokens = [*prompt, *one.response]
            ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.long, device="cpu")
            attention[row, : len(tokens)] = 1
            loss[row, len(prompt) : len(tokens)] = True
        cut_prompts, cut_responses = (sum(one.cut_prompt for one in fitted), sum(one.cut_response for one in fitted))
        return EncodedPairs(ids, attention, loss, valid, cut_prompts, cut_responses)

    def _fitted(self, pair: Pair | None, max_length: int) -> _Fitted:
        if pair is None:
            frame = self._frames[False]
            return _Fitted([*frame.before, *frame.between, *frame.after], [], False, False)
        frame, system = self._opening(pair, max_length)
        room = max_length - len(frame) - len(system)
        instruction, response = self._text(pair.instruction), [*self._text(pair.response), self.end]
        kept = instruction[: max(room // 2, room - len(response))]
        fitting = response[: room - len(kept)]
        return _Fitted(
            prompt=[*frame.before, *system, *frame.between, *kept, *frame.after],
            response=fitting,
            cut_prompt=len(kept) < len(instruction) or len(system) < len(self._text(pair.system)),
            cut_response=len(fitting) < len(response),
        )

    def _opening(self, pair: Pair, max_length: int) -> tuple[_Frame, list[int]]:
        """The template around a pair, and its system text: a quarter of the room at most."""
        frame = self._frames[bool(pair.system.strip())]
        return frame, self._text(pair.system)[: (max_length - len(frame)) // 4]

    def _text(self, text: str) -> list[int]:
        """Tokens of a row's text; none of them is special, whatever the text looks like."""
        # Not verbose: the tokenizer would log the length of the first text beyond its model's limit.
        found = self._tokenizer.encode(text.strip(), add_special_tokens=False, split_special_tokens=True, verbose=False)
        return list(found)

    def _own(self, text: str) -> list[int]:
        """Tokens of the template's text, special ones included."""
        return list(self._tokenizer.encode(text, add_special_tokens=False, verbose=False)) if text else []

    def _plain_frame(self, with_system: bool) -> _Frame:
        preface = [] if with_system else self._own(PREFACE)
        return _Frame([self._bos, *preface], self._own(_BEFORE), self._own(_AFTER))

    def _chat_frame(self, with_system: bool) -> _Frame:
        before, _, after = self._rendered(with_system).partition(_INSTRUCTION)
        head, _, rest = before.partition(_SYSTEM)
        return _Frame(self._own(head), self._own(rest), self._own(after))

    def _rendered(self, with_system: bool, *, answered: bool = False) -> str:
        """The chat template around marks that stand for the texts."""
        last = [{"role": "assistant", "content": _RESPONSE}] if answered else []
        ways = [[{"role": "user", "content": _INSTRUCTION}, *last]]
        if with_system:  # some templates know no system text: it stands before the instruction then
            joined = {"role": "user", "content": f"{_SYSTEM}\n\n{_INSTRUCTION}"}
            ways = [[{"role": "system", "content": _SYSTEM}, *ways[0]], [joined, *last]]
        marks = [_INSTRUCTION, *([_SYSTEM] if with_system else []), *([_RESPONSE] if answered else [])]
        for messages in ways:
            try:
                text = str(
                    self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=not answered)
                )
            except jinja2.TemplateError:
                continue
            if renders(text, *marks):
                return text
        raise InputError(
            "template: expected a chat template that shows a request and its answer as they are, found one that does "
            "not; use template=plain"
        )

    def _end_of_response(self) -> int:
        """The token that ends an answer: what the chat template writes behind one if special, else end of text."""
        if not self._chat:
            return self._eos
        behind = self._rendered(False, answered=True).partition(_RESPONSE)[2]
        return first_special(self._tokenizer, behind, otherwise=self._eos)


def plain_text(instruction: str) -> str:
    """The plain template around an instruction, as a text: what a served model is sent."""
    return f"{PREFACE}{_BEFORE}{instruction.strip()}{_AFTER}"


def pairs_of(table: Any) -> list[Pair | None]:
    """The rows of a checked table of instructions as pairs; None for null records."""
    columns = {name: table[name].to_pylist() for name in table.column_names}
    system = columns.get("system") or [""] * table.num_rows
    return [
        None if instruction is None else Pair(instruction, response or "", before or "")
        for instruction, response, before in zip(columns["instruction"], columns["response"], system, strict=True)
    ]
