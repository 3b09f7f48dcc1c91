"""Proof that a run is paid for; a module of its own, so that edits to charging do not change the code of training."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from understudy.privacy.labels import Label


class Ticket(BaseModel):
    """Proof that a run is paid for: passed to every task that draws noise, so that its key holds the charge."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    charge_id: str
    source: str
    label: Label = Field(description="Label of what the mechanisms put out under this charge.")
