"""What the benchmark of knowledge distillation is measured on: its settings, its cells, and pairs of two data sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

LABELS = ("negative", "neutral", "positive")
QUESTION = "Is this news negative, neutral or positive? {text}"
ABOUT = {"financial_phrasebank": "the sentiment of business news", "medical_dialogue": "health problems"}
ANSWER_TOKENS = {"financial_phrasebank": 8, "medical_dialogue": 64}


@dataclass(frozen=True)
class Settings:
    """What all cells share."""

    data: Path
    cache: Path
    model: str = "tiny-llama"
    public: int = 400
    pairs: int = 1000
    samples: int = 200
    tested: int = 200
    characters: int = 400
    length: int = 128
    professional_steps: int = 300
    professional_rate: float = 5e-4
    tune_steps: int = 100
    epochs: int = 4
    only_epochs: int = 10


@dataclass(frozen=True)
class Cell:
    """One condition on one data set."""

    data: str
    condition: str
    epsilon: float
    seed: int

    @property
    def name(self) -> str:
        """A file name."""
        return f"distillation-{self.data}-{self.condition}-{self.epsilon:g}-{self.seed}"


def table_of(settings: Settings, data: str, part: str, *, characters: int | None) -> pa.Table:
    """Pairs of a data set that are short enough, or all of them; phrases become questions."""
    found = pq.read_table(settings.data / data / f"{part}.parquet")
    if "response" not in found.column_names:
        asked = [QUESTION.format(text=text) for text in found["text"].to_pylist()]
        found = pa.table({"instruction": asked, "response": found["label_name"]})
    names = ("instruction", "response")
    found = found.select(list(names))
    if characters is None:
        return found
    lengths = (map(len, found[name].to_pylist()) for name in names)
    return found.filter(pa.array([sum(both) <= characters for both in zip(*lengths, strict=True)]))


def unseen_public(settings: Settings, data: str, *, most: int = 120) -> list[Any]:
    """Public pairs that the professional model was not tuned on, the shorter first: what its settings are chosen on.

    Where the public half has few of them left, pairs of more than `--characters` that stand between its rows follow.
    """
    from understudy.generation.instructions import pairs_of

    whole = table_of(settings, data, "train", characters=None)
    lengths = [sum(map(len, row.values())) for row in whole.to_pylist()]
    short = [place for place, length in enumerate(lengths) if length <= settings.characters]
    half = len(short) // 2
    seen = set(short[: min(half, settings.public)])
    unseen = [place for place in range(short[half - 1] + 1) if place not in seen]
    return pairs_of(whole.take(sorted(unseen, key=lambda place: lengths[place])[:most]))


def halves(settings: Settings, cell: Cell) -> tuple[list[Any], list[Any], list[Any]]:
    """Public, private and test pairs.

    Raises:
        SystemExit: there are fewer private pairs than are asked for.
    """
    from understudy.generation.instructions import pairs_of

    train, test = (table_of(settings, cell.data, part, characters=settings.characters) for part in ("train", "test"))
    half = train.num_rows // 2
    if half < settings.pairs:
        raise SystemExit(f"--pairs {settings.pairs}: expected as many in a half of {cell.data}, found {half}")
    private = train.slice(half + (cell.seed * settings.pairs) % max(half - settings.pairs, 1), settings.pairs)
    public = train.slice(0, min(half, settings.public))
    return pairs_of(public), pairs_of(private), pairs_of(test.slice(0, settings.tested))


def unread(settings: Settings, cell: Cell) -> list[Any]:
    """Short enough pairs of the private half and of the test set that nothing of this cell was trained on."""
    from understudy.generation.instructions import pairs_of

    train, test = (table_of(settings, cell.data, part, characters=settings.characters) for part in ("train", "test"))
    half = train.num_rows // 2
    _, private, _ = halves(settings, cell)
    read = set(private)
    return [pair for pair in pairs_of(pa.concat_tables([train.slice(half), test])) if pair not in read]
