"""A preallocated key/value cache for rows that begin and end at different times.

All rows write their next token to the same column; a row that begins later has its prompt copied to the columns just
before that one, and attends to nothing on their left. Positions are counted per row, so a column means nothing else.
What a row does not attend to is 0 in the cache: it has no norm and gets no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

KeyValues = list[tuple[Tensor, Tensor]]  # per layer keys and values, each (batch, heads, columns, head_dim)
Grow = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # new keys and values -> all that attention reads


class _Layer(DynamicLayer):  # type: ignore[misc]
    """A layer of transformers' cache whose growth is given."""

    def __init__(self, past: tuple[Tensor, Tensor], grow: Grow) -> None:
        super().__init__()
        self.lazy_initialization(*past)
        self.keys, self.values = past
        self._grow = grow

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        self.keys, self.values = self._grow(key_states, value_states)
        return self.keys, self.values


def grown(past: KeyValues, grow: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]) -> DynamicCache:
    """A cache of transformers that holds `past` and grows by `grow` (layer, new keys, new values)."""
    cache = DynamicCache()
    for number, pair in enumerate(past):
        cache.layers.append(_Layer(pair, partial(grow, number)))
    return cache


def held(key_values: KeyValues) -> DynamicCache:
    """A cache that holds these tensors themselves; its constructor would copy them."""
    return grown(
        key_values,
        lambda layer, keys, values: (
            torch.cat([key_values[layer][0], keys], dim=2),
            torch.cat([key_values[layer][1], values], dim=2),
        ),
    )


class RowCache:
    """Keys and values of the rows in flight, one slot each.

    Attributes:
        layers: Per layer `(slots, heads, columns, head_dim)` keys and values; empty before the first row.
        mask: `(slots, columns)` int64, 1 where the slot's row attends.
        stop: Column that the next token is written to.
    """

    def __init__(self, slots: int, *, columns: int, device: torch.device) -> None:
        self.layers: KeyValues = []
        self.mask = torch.zeros(slots, columns, dtype=torch.long, device=device)
        self.stop = 0
        self._starts: list[int] = []  # of the active slots: the first column that may be attended to

    def place(self, slots: Sequence[int], prompts: KeyValues, mask: Tensor) -> None:
        """Give slots to new rows whose prompts end right before the next column.

        Args:
            slots: Taken over from rows that ended, or the next behind the active ones, in rising order.
            prompts: Per layer `(len(slots), heads, width, head_dim)` keys and values, zero where masked.
            mask: `(len(slots), width)`.
        """
        width = mask.shape[1]
        self.stop = max(self.stop, width)
        index = torch.tensor(slots, device=mask.device)
        if not self.layers:
            shapes = [(len(self.mask), keys.shape[1], self.mask.shape[1], keys.shape[3]) for keys, _ in prompts]
            self.layers = [
                (keys.new_zeros(shape), values.new_zeros(shape))
                for (keys, values), shape in zip(prompts, shapes, strict=True)
            ]
        for pair, new in zip(self.layers, prompts, strict=True):
            for buffer, tensor in zip(pair, new, strict=True):
                buffer[index] = 0
                buffer[index, :, self.stop - width : self.stop] = tensor
        self.mask[index] = 0
        self.mask[index, self.stop - width : self.stop] = mask
        for slot in slots:
            self._starts[slot : slot + 1] = [self.stop - width]

    def compact(self, ended: Sequence[int]) -> tuple[list[int], list[int]]:
        """Close the gaps of rows that ended with the last rows, and drop the slots behind.

        Args:
            ended: Slots without a row.

        Returns:
            Which slots were moved, and where to.
        """
        count = len(self._starts) - len(ended)
        gone = set(ended)
        sources = [slot for slot in range(count, len(self._starts)) if slot not in gone]
        targets = [slot for slot in sorted(gone) if slot < count]
        if sources:
            for buffer in (self.mask, *(buffer for pair in self.layers for buffer in pair)):
                buffer[targets] = buffer[sources]
            for source, target in zip(sources, targets, strict=True):
                self._starts[target] = self._starts[source]
        del self._starts[count:]
        return sources, targets

    def begin_token(self) -> None:
        """Make the next column one that every active row attends to; where there is none left, move all to the left."""
        if self.stop == self.mask.shape[1]:
            self._move_left()
        self.mask[: len(self._starts), self.stop] = 1

    def end_token(self) -> None:
        """Go on to the next column."""
        self.stop += 1

    def seen(self) -> Tensor:
        """Attention mask `(active, seen + 1)` of the token that is read."""
        return self.mask[: len(self._starts), min(self._starts) : self.stop + 1]

    def past(self, *, new: int = 0) -> KeyValues:
        """Views of all keys and values before the token that is read, or with it (`new=1`)."""
        rows, columns = slice(len(self._starts)), slice(min(self._starts), self.stop + new)
        # Detached: a plain view would forbid that its base is written to while it is part of a graph.
        return [(keys[rows, :, columns].detach(), values[rows, :, columns].detach()) for keys, values in self.layers]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store the token that is read, `(active, heads, 1, head_dim)` each."""
        for buffer, new in zip(self.layers[layer], (keys, values), strict=True):
            buffer[: len(self._starts), :, self.stop : self.stop + 1] = new.detach()

    def _move_left(self) -> None:
        by = min(self._starts)
        width = self.stop - by
        for buffer in (self.mask[:, None, :, None], *(buffer for pair in self.layers for buffer in pair)):
            buffer[:, :, :width] = buffer[:, :, by : self.stop].clone()
        self.mask[:, width:] = 0
        self._starts = [start - by for start in self._starts]
        self.stop = width
