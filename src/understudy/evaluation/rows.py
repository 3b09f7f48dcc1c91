"""Labelled texts as the evaluation takes them: plain sequences, whatever table they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from understudy.errors import RowError

# An accuracy on so many rows is known to half a point (95 %), and on two cores they are embedded in minutes, not hours.
MOST_ROWS: Final = 50_000


@dataclass(frozen=True)
class LabelledTexts:
    """Texts with their labels.

    Attributes:
        texts: (n,) strings.
        labels: (n,) ints in [0, len(label_names)).
        label_names: the declared labels, public.
    """

    texts: Sequence[str] = field(repr=False)
    labels: Sequence[int] | npt.NDArray[np.int64] = field(repr=False)
    label_names: Sequence[str]


def labelled_texts(table: pa.Table, label_names: Sequence[str]) -> LabelledTexts:
    """Columns `text` and `label` of a table; labels may be indices or, as in what is exported, names.

    Raises:
        InputError: for a label that is not declared; names the row.
    """
    index = {name: position for position, name in enumerate(label_names)}
    labels = np.zeros(table.num_rows, dtype=np.int64)
    for row, label in enumerate(table.column("label").to_pylist()):
        found = index.get(label) if isinstance(label, str) else label
        if found is None or not 0 <= found < len(label_names):
            raise RowError(f"row {row}: expected a label among {tuple(label_names)}, found one that is not")
        labels[row] = found
    return LabelledTexts(table.column("text").to_pylist(), labels, tuple(label_names))


def at_most(rows: LabelledTexts, most: int, *, seed: int) -> LabelledTexts:
    """The rows, or so many of them, drawn without replacement by a public seed, in their order."""
    if len(rows.texts) <= most:
        return rows
    kept = drawn(len(rows.texts), most, seed=seed)
    return LabelledTexts([rows.texts[row] for row in kept], np.asarray(rows.labels)[kept], rows.label_names)


def texts_at_most(texts: Sequence[str], most: int, *, seed: int) -> Sequence[str]:
    """As `at_most`, of texts without labels."""
    return texts if len(texts) <= most else [texts[row] for row in drawn(len(texts), most, seed=seed)]


def drawn(count: int, most: int, *, seed: int) -> npt.NDArray[np.int64]:
    """At most `most` of `count` places, ascending, drawn without replacement by a public seed."""
    chosen = np.random.default_rng(seed).choice(count, size=min(most, count), replace=False)
    return np.sort(chosen)


@dataclass(frozen=True)
class Conditions:
    """The training sets whose usefulness is compared; `None` where there is none."""

    synthetic: LabelledTexts
    real: LabelledTexts
    prompt_only: LabelledTexts | None = None

    def named(self) -> dict[str, LabelledTexts]:
        """Name of the baseline -> rows, in the order of the report; absent ones are left out."""
        found = {"prompt_only": self.prompt_only, "synthetic": self.synthetic, "real": self.real}
        return {name: rows for name, rows in found.items() if rows is not None}
