"""Rows of a labelled source as the methods take them: a slot each, private."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from understudy.errors import RowError


@dataclass(frozen=True)
class PrivateRows:
    """Texts with their labels; a slot without a text or without a label is the null row.

    Attributes:
        texts: one per slot, private; None is the null row.
        labels: index into `label_names` of each slot, private; None is the null row.
        label_names: every label, public.

    Raises:
        RowError: texts and labels are not as many, or a label is out of range; names the row.
    """

    texts: Sequence[str | None] = field(repr=False)
    labels: Sequence[int | None] = field(repr=False)
    label_names: Sequence[str]

    def __post_init__(self) -> None:
        """Check the labels."""
        count = len(self.label_names)
        if len(self.texts) != len(self.labels):
            raise RowError(f"expected a label for each text, found {len(self.labels)} for {len(self.texts)} texts")
        for row, label in enumerate(self.labels):
            if label is not None and not 0 <= label < count:
                raise RowError(
                    f"row {row}: expected a label index from 0 to {count - 1}; declare every label of the data"
                )

    def __len__(self) -> int:
        """Slots, null ones included."""
        return len(self.texts)

    @property
    def valid(self) -> list[bool]:
        """False for null rows."""
        return [text is not None and label is not None for text, label in zip(self.texts, self.labels, strict=True)]

    @property
    def valid_texts(self) -> list[str | None]:
        """The texts, None for null rows."""
        return [text if keep else None for text, keep in zip(self.texts, self.valid, strict=True)]

    @property
    def label_indices(self) -> list[int]:
        """The labels, 0 for null rows."""
        return [label if keep and label is not None else 0 for label, keep in zip(self.labels, self.valid, strict=True)]


def private_rows(table: pa.Table, label_names: Sequence[str]) -> PrivateRows:
    """Columns `text` and `label` of a checked table."""
    return PrivateRows(table["text"].to_pylist(), table["label"].to_pylist(), label_names)
