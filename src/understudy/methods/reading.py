"""Rows that are read by what a run released: what it makes of them is what an attacker of a model looks at."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from understudy.errors import UnderstudyError
from understudy.frozen import MethodSettings

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
        if not isinstance(self.config, kind):
            raise UnderstudyError(f"expected settings of type {kind.__name__}, found {type(self.config).__name__}")
        return self.config
