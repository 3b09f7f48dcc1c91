"""What a cell of the conditional-generation benchmark is, and what all cells of one run have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cell:
    """One condition at one epsilon with one seed."""

    condition: str
    epsilon: float
    seed: int

    @property
    def name(self) -> str:
        """A file name."""
        said = f"{self.condition} eps {self.epsilon:g} seed {self.seed}"
        return "".join(c if c.isalnum() else "-" for c in said)


@dataclass(frozen=True)
class Settings:
    """What all cells of one run have in common.

    Attributes:
        data: folder with train.parquet and test.parquet.
        cache: folder of finished cells and of what they share.
        model: base model; None for the tiny profile's.
        samples: synthetic rows.
        rows: training rows, the first ones; None for all.
        about: public words for what the rows are. With them a cell is a user's first command: learning rate and clip
            norm are chosen before the charge. Without, they are fixed.
        transformer: whether seed 0 also fine-tunes the transformer classifier.
    """

    data: Path
    cache: Path
    model: str | None = None
    samples: int = 1000
    rows: int | None = None
    about: str = ""
    transformer: bool = False
