"""What a run tells its caller when it has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from understudy.runs.folders import EXPORT, INTERNAL, RunRecord, read_record


class Exported(BaseModel):
    """Where a run's results are, and what they cost."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    export: str | None
    report: str
    statement: dict[str, Any]
    released: str
    synthetic: str


_TOLD = ("epsilon", "epsilon_rdp", "delta", "unit", "relation", "verdict")


def exported(folder: Path, record: RunRecord, statement: dict[str, Any]) -> Exported:
    """What is told of a finished run.

    Args:
        folder: the run's folder.
        record: of the run.
        statement: its privacy statement.
    """
    place = folder / EXPORT
    return Exported(
        export=str(place) if record.released.label.kind != "private" else None,
        report=str(folder / INTERNAL / "report.html"),
        statement={key: statement[key] for key in _TOLD},
        released=record.released.id,
        synthetic=record.synthetic.id,
    )


def read_exported(folder: Path) -> Exported:
    """What the run that left this folder told.

    Raises:
        InputError: when the folder holds no finished run.
    """
    report = json.loads((folder / INTERNAL / "report.json").read_text())
    return exported(folder, read_record(folder), report["statement"])
