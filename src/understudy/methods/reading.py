"""What a method's own functions are given for an audit: rows, and what a run released."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from understudy.frozen import MethodSettings, of_kind
from understudy.privacy.queries import Queries

if TYPE_CHECKING:
    import pyarrow as pa

    from understudy.compute import Compute

C = TypeVar("C", bound=MethodSettings)


@dataclass(frozen=True)
class RowsToRead:
    """Rows whose losses are wanted.

    Attributes:
        rows: as a checked table of the run's kind, labels by index.
        label_names: every label; empty for rows without.
        config: the run's settings.
        model: folder of what the run released; None reads the rows by the public model that the run began with.
        compute: device and precision.
    """

    rows: pa.Table = field(repr=False)
    label_names: tuple[str, ...]
    config: BaseModel
    model: Path | None
    compute: Compute

    def settings(self, kind: type[C]) -> C:
        """The settings, of the method's own type.

        Raises:
            UnderstudyError: the run is another method's.
        """
        return of_kind(self.config, kind)


@dataclass(frozen=True)
class Made:
    """What a task of a run made, and of what.

    Attributes:
        kind: of the artifact.
        folder: where its files are.
        parents: what it was made of, in the task's order; what came from private rows alone has none.
    """

    kind: str
    folder: Path
    parents: tuple[Made, ...] = field(default=(), repr=False)

    def behind(self, kind: str) -> list[Made]:
        """What of a kind this was made of, over all generations, itself included; each once, the oldest first."""
        seen: dict[Path, Made] = {}

        def visit(made: Made) -> None:
            # A round has several ways back to the one before, so the ways are many more than the artifacts.
            if made.folder not in seen:
                for parent in made.parents:
                    visit(parent)
                seen[made.folder] = made

        visit(self)
        return [made for made in seen.values() if made.kind == kind]


@dataclass(frozen=True)
class SumsToRead:
    """Released sums of which an attacker knows everything but the coins of canaries.

    Attributes:
        canaries: as a checked table of the run's kind, labels by index.
        others: every other unit that the run met, the same; null records, and no canary.
        label_names: every label; empty for rows without.
        config: the settings that private rows met.
        queries: what they were asked, with the noise.
        released: by the run, with what it was made of.
        compute: device and precision of the run.
    """

    canaries: pa.Table = field(repr=False)
    others: pa.Table = field(repr=False)
    label_names: tuple[str, ...]
    config: BaseModel
    queries: Queries
    released: Made
    compute: Compute

    def settings(self, kind: type[C]) -> C:
        """The settings, of the method's own type.

        Raises:
            UnderstudyError: the run is another method's.
        """
        return of_kind(self.config, kind)
