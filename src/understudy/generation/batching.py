"""Continuous batching: a row that ended makes room for the next one, and equal prompts are read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from understudy.generation.cache import KeyValues, RowCache
from understudy.generation.prompts import position_ids
from understudy.generation.step import Step, advance


class Flight:
    """The rows that grow, those that wait, and their cache; called without a graph."""

    def __init__(self, model: Any, ids: Tensor, mask: Tensor, *, slots: int, tokens: int) -> None:
        self._model, self._prompts = model, _Prompts(model, ids, mask, together=slots)
        spare = tokens if slots < len(ids) else 0  # columns to go on in before all is moved to the left
        self._cache = RowCache(slots, columns=self._prompts.width + tokens + spare, device=ids.device)
        self._rows = torch.empty(0, dtype=torch.long, device=ids.device)
        self._index, self._position, self._tokens = (self._rows.clone() for _ in range(3))
        self._total, self._begun = len(ids), 0
        self._admit(range(slots))

    @property
    def active(self) -> int:
        """How many rows grow."""
        return len(self._rows)

    @property
    def done(self) -> int:
        """How many rows ended."""
        return self._begun - self.active

    def step(self) -> Step:
        """The state before the next token."""
        self._cache.begin_token()
        return Step(
            self._model,
            self._cache,
            index=self._index,
            rows=self._rows,
            tokens=self._tokens[:, None],
            position=self._position[:, None],
        )

    def go_on(self, tokens: Tensor, *, ended: Tensor) -> int:
        """Append a token to every row, then replace the rows that ended; returns how many did."""
        self._cache.end_token()
        self._tokens, self._index, self._position = tokens, self._index + 1, self._position + 1
        free = [slot for slot, over in enumerate(ended.tolist()) if over]
        new = free[: self._total - self._begun]
        if new:
            self._admit(new)
        if len(new) < len(free):
            sources, targets = self._cache.compact(free[len(new) :])
            for name in ("_rows", "_tokens", "_index", "_position"):
                state = getattr(self, name).clone()
                state[targets] = state[sources]
                setattr(self, name, state[: len(state) - len(free) + len(new)])
        return len(free)

    def _admit(self, slots: Sequence[int]) -> None:
        """Let the next rows begin: their prompts go into the cache, but for the last token, which is read next."""
        rows = range(self._begun, self._begun + len(slots))
        for some, key_values, mask in self._prompts.take(rows):
            self._cache.place([slots[row - self._begun] for row in some], key_values, mask)
        self._begun += len(slots)
        begun = torch.tensor(rows, device=self._rows.device)
        tokens, position = self._prompts.last(begun)
        fresh = {"_rows": begun, "_tokens": tokens, "_index": torch.zeros_like(begun), "_position": position}
        for name, values in fresh.items():
            state = getattr(self, name)
            room = state.new_empty(max(slots[-1] + 1, len(state)))
            room[: len(state)] = state
            room[torch.tensor(slots, device=room.device)] = values
            setattr(self, name, room)


class _Prompts:
    """Keys and values of the prompts without their last tokens: equal prompts are read once, when first needed."""

    def __init__(self, model: Any, ids: Tensor, mask: Tensor, *, together: int) -> None:
        if ids.shape[1] == 1:  # there is always a column to read
            ids, mask = (functional.pad(tensor, (1, 0)) for tensor in (ids, mask))
        self.width = ids.shape[1] - 1
        self._model, self._ids, self._mask, self._together = model, ids, mask, together
        unique, which = torch.unique(torch.stack([ids, mask], dim=1), dim=0, return_inverse=True)
        self._unique, self._which = unique, which.tolist()
        self._waiting = Counter(self._which)
        self._read: dict[int, tuple[KeyValues, int]] = {}  # prompt -> what was read together, and its place in it

    def last(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Last token and its position, `(len(rows),)` each."""
        return self._ids[rows, -1], position_ids(self._mask[rows])[:, -1]

    def take(self, rows: range) -> list[tuple[list[int], KeyValues, Tensor]]:
        """Keys and values of rows in rising order, in groups (rows, per layer keys and values, mask)."""
        groups: list[tuple[list[int], KeyValues, Tensor]] = []
        while rows:
            read = self._reading(rows[0])
            some = list(takewhile(lambda row, read=read: self._is_in(read, row), rows))  # type: ignore[misc]
            places = torch.tensor([self._read[self._which[row]][1] for row in some], device=self._ids.device)
            mask = self._mask[some[0] : some[-1] + 1, :-1]
            groups.append((some, [(keys[places], values[places]) for keys, values in read], mask))
            self._forget(some)
            rows = rows[len(some) :]
        return groups

    def _is_in(self, read: KeyValues, row: int) -> bool:
        prompt = self._which[row]
        return prompt in self._read and self._read[prompt][0] is read

    def _reading(self, row: int) -> KeyValues:
        """What was read with a row's prompt; read now if it was not, with the prompts that are needed next."""
        if self._which[row] not in self._read:
            missing = dict.fromkeys(prompt for prompt in self._which[row:] if prompt not in self._read)
            prompts = list(missing)[: self._together]
            ids, mask = self._unique[prompts, :, :-1].unbind(1)
            _, key_values = advance(self._model, [], attention_mask=mask, position=position_ids(mask), input_ids=ids)
            hidden = (mask == 0)[:, None, :, None]
            key_values = [(keys.masked_fill(hidden, 0), values.masked_fill(hidden, 0)) for keys, values in key_values]
            self._read |= {prompt: (key_values, place) for place, prompt in enumerate(prompts)}
        return self._read[self._which[row]][0]

    def _forget(self, rows: Sequence[int]) -> None:
        for row in rows:
            prompt = self._which[row]
            self._waiting[prompt] -= 1
            if not self._waiting[prompt]:
                del self._read[prompt]
