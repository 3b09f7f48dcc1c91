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
    tune_steps: int = 100
    epochs: int = 4
    only_epochs: int = 10


@dataclass(frozen=True)
class Cell:
    """One arm on one data set."""

    data: str
    arm: str
    epsilon: float
    seed: int

    @property
    def name(self) -> str:
        """A file name."""
        return f"distillation-{self.data}-{self.arm}-{self.epsilon:g}-{self.seed}"


def table_of(settings: Settings, data: str, part: str) -> pa.Table:
    """Pairs of a data set that are short enough; phrases become questions."""
    found = pq.read_table(settings.data / data / f"{part}.parquet")
    if "response" not in found.column_names:
        asked = [QUESTION.format(text=text) for text in found["text"].to_pylist()]
        found = pa.table({"instruction": asked, "response": found["label_name"]})
    names = ("instruction", "response")
    lengths = (map(len, found[name].to_pylist()) for name in names)
    short = [sum(both) <= settings.characters for both in zip(*lengths, strict=True)]
    return found.select(list(names)).filter(pa.array(short))


def halves(settings: Settings, cell: Cell) -> tuple[list[Any], list[Any], list[Any]]:
    """Public, private and test pairs.

    Raises:
        SystemExit: there are fewer private pairs than are asked for.
    """
    from understudy.generation.instructions import pairs_of

    train, test = (table_of(settings, cell.data, part) for part in ("train", "test"))
    half = train.num_rows // 2
    if half < settings.pairs:
        raise SystemExit(f"--pairs {settings.pairs}: expected as many in a half of {cell.data}, found {half}")
    private = train.slice(half + (cell.seed * settings.pairs) % max(half - settings.pairs, 1), settings.pairs)
    public = train.slice(0, min(half, settings.public))
    return pairs_of(public), pairs_of(private), pairs_of(test.slice(0, settings.tested))
