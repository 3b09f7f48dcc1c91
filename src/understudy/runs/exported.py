"""What a run tells its caller when it has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from understudy.errors import UnderstudyError
from understudy.reporting.worth import Completeness
from understudy.runs.folders import RunRecord, read_record
from understudy.runs.placement import EXPORT, INTERNAL


class Exported(BaseModel):
    """Where a run's results are, and what they cost."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    export: str | None
    report: str
    statement: dict[str, Any]
    released: str
    synthetic: str
    rows: int | None = None
    missing: str = ""
    lacking: tuple[str, ...] = ()


_TOLD = ("epsilon", "delta", "unit", "relation", "accountant", "epsilon_rdp", "verdict")


def exported(
    folder: Path, record: RunRecord, statement: dict[str, Any], completeness: Completeness | None = None
) -> Exported:
    """What is told of a finished run.

    Args:
        folder: the run's folder.
        record: of the run.
        statement: its privacy statement.
        completeness: which rows it made; None in folders of earlier versions. Of a private output nothing is told.
    """
    place = folder / EXPORT
    leaves = record.released.label.kind != "private"
    found = completeness if leaves else None
    return Exported(
        export=str(place) if leaves or place.is_dir() else None,
        report=str(folder / INTERNAL / "report.html"),
        statement={key: statement[key] for key in _TOLD},
        released=record.released.id,
        synthetic=record.synthetic.id,
        rows=found.rows if found else None,
        missing=found.in_words() if found else "",
        lacking=found.lacking if found else (),
    )


def complete(result: Exported) -> Exported:
    """The result of a run that has rows of every label it was asked for.

    Raises:
        UnderstudyError: a label has none. Everything that was made and paid for lies in the run's folder all the same.
    """
    if not result.lacking:
        return result
    raise UnderstudyError(
        f"{result.missing} What was made and paid for lies beside {result.report}, which says why rows were dropped; "
        "loosen the filters or ask for fewer rows and run again, which charges nothing"
    )


def read_exported(folder: Path) -> Exported:
    """What the run that left this folder told.

    Raises:
        InputError: when the folder holds no finished run.
    """
    report = json.loads((folder / INTERNAL / "report.json").read_text())
    return exported(folder, read_record(folder), report["statement"], _completeness(report))


def _completeness(report: dict[str, Any]) -> Completeness | None:
    found = report.get("completeness")
    return Completeness.model_validate(found) if found else None
