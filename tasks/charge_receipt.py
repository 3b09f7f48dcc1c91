"""Proof that a run is paid for; a module of its own, so that edits to charging do not change the code of training.

A task that a charge pays for takes the checked private rows, the receipt, whose label is that of the result, and the
charged settings only (ADR 0005). Everything else that it needs to know of the run is in the receipt.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from understudy.artifacts.access import ArtifactRef, store_for
from understudy.privacy.labels import Label
from understudy.privacy.queries import Queries
from understudy.settings import private_directory, settings

if TYPE_CHECKING:
    from understudy.artifacts.store import Draft
    from understudy.privacy.mechanisms import Mechanisms


class ChargeReceipt(BaseModel):
    """Proof that a run is paid for: passed to every task that draws noise, so that its key holds the charge."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    charge_id: str
    source: str
    label: Label = Field(description="Label of what the mechanisms put out under this charge.")
    queries: Queries = Field(description="Everything that private rows are asked under it.")
    label_names: tuple[str, ...] = Field(default=(), description="Every label, public; empty for rows without.")


def open_mechanisms(receipt: ChargeReceipt, *, part: int = 0) -> Mechanisms:
    """The mechanisms that a charge pays for: they answer its queries, with its keys.

    What must not be released twice is kept in the charge's release log; which query that was is noted in the ledger.

    Args:
        receipt: of the charge.
        part: of a charge whose queries are asked by several tasks, the number of this one.
    """
    from understudy.privacy.ledger.ledger import Ledger
    from understudy.privacy.mechanisms import Mechanisms

    ledger = Ledger.open()
    return Mechanisms.live(
        ledger.material(receipt.charge_id, part=part),
        release_log=release_log(receipt.charge_id),
        note=partial(ledger.note_query, receipt.charge_id),
    )


@contextmanager
def write_released(receipt: ChargeReceipt, *, kind: str, parents: Sequence[ArtifactRef] = ()) -> Iterator[Draft]:
    """A new artifact of what the mechanisms put out under a charge, with the charge's label, made from its source.

    Args:
        receipt: of the charge.
        kind: of the artifact.
        parents: what it was made from besides, such as the candidates that were scored.
    """
    made_from: list[ArtifactRef | str] = [f"source:{receipt.source}@{receipt.charge_id}", *parents]
    with store_for(receipt.label).write(kind=kind, label=receipt.label, parents=made_from) as draft:
        yield draft


def release_log(charge_id: str) -> Path:
    """Where a charge's mechanism interface keeps what it released once; it stays until the charge's salt is erased.

    Apart from the tasks' checkpoints: those go when a task ends or is abandoned, and a query that was released would
    then be noised again if its inputs came out differently.
    """
    return private_directory(settings().private_root / "release-logs") / charge_id


def drop_release_log(charge_id: str) -> None:
    """Remove it: only after the salt is erased, for until then it keeps a query from being noised twice."""
    folder = release_log(charge_id)
    if folder.exists():
        shutil.rmtree(folder)
