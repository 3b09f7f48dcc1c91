"""What a user asks of an evaluation, before anything is read: public values only; Prefect's UI draws its form from it.

The tables are named and not held: whatever Prefect is handed, it keeps and shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from understudy.runs.request import LabelNames, Name, Place

_TABLE: Final = (
    "CSV, JSONL or Parquet file, hub:OWNER/NAME, or sample:NAME; an absolute path in the run of a deployment."
)


class EvaluateRequest(BaseModel):
    """A synthetic table of labelled texts, and real ones that it is measured against. Public values only."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    synthetic: Place = Field(description=f"Synthetic table with columns text and label, however it was made: {_TABLE}")
    real: Place = Field(description=f"Real rows that it stands in for; read in the client zone: {_TABLE}")
    test: Place = Field(description=f"Real rows that nothing was trained on; read in the client zone: {_TABLE}")
    out: Place = Field(
        description="Folder for report.html and report.json, which are made from real rows: do not hand them over. An "
        "absolute path in the run of a deployment."
    )
    text_column: Name = Field(default="text", description="Column of the real rows with the texts.")
    label_column: Name = Field(default="label", description="Column of the real rows with the labels.")
    label_names: LabelNames | None = Field(
        default=None,
        max_length=1_000,
        description="Value in the label column of the real rows -> name; declared public. Default: the values are the "
        "names, and stay as private as the rows.",
    )

    @property
    def folder(self) -> Path:
        """Where the report goes."""
        return Path(self.out).expanduser()
