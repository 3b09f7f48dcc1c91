"""Guessing the secrets of an audit's canaries by the model that a run released; internal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from understudy.artifacts.access import ArtifactRef, read_table, write_json
from understudy.privacy import labels
from understudy.tasks.auditing import Attacked, released_by
from understudy.tasks.engine.runtime import compute, progress, task

if TYPE_CHECKING:
    import pyarrow as pa

    from understudy.auditing.one_run import Floats


@task(name="guess-secrets")
def guess_secrets(
    released: ArtifactRef, canaries: ArtifactRef, asked: Attacked, *, holds_canaries: bool
) -> ArtifactRef:
    """Read canaries with every candidate in the place of their secret, and take what became likelier by the most.

    Args:
        released: what the run released.
        canaries: with their coins and secrets.
        asked: of the run; its method has `row_losses`.
        holds_canaries: whether the run met the canaries that their coins put in.

    Returns:
        What was guessed of the canaries that the run met, `put_in`, and of the others, `left_out`; private to the
        source.
    """
    from understudy.auditing.canaries import INCLUDED
    from understudy.auditing.canary_secrets import BESIDE_ROWS, MOST_READ, OTHERS, SECRET, guessed_secrets, versions

    # How many are read hangs on no coin: progress shows it.
    table = read_table(canaries).slice(0, MOST_READ)
    candidates, places = table[OTHERS].to_pylist(), np.array(table[SECRET].to_pylist())
    rows = versions(table.drop_columns(list(BESIDE_ROWS)), candidates)
    model = released_by(released, asked)
    before, after = (
        _losses(rows, asked, folder, number).reshape(len(candidates), -1) for number, folder in enumerate((None, model))
    )
    met = np.array(table[INCLUDED].to_pylist(), dtype=np.bool_) & holds_canaries
    value = {
        name: guessed_secrets(before[those], after[those], places[those].tolist()).model_dump(mode="json")
        for name, those in (("put_in", met), ("left_out", ~met))
        if those.any()
    }
    label = labels.private(*labels.join(released.label, canaries.label).sources)
    return write_json(value, kind="guesses", label=label, parents=(released, canaries))


def _losses(rows: pa.Table, asked: Attacked, model: Path | None, number: int) -> Floats:
    """Of each row, by the public model, which is the first of two to be read, or by the released one."""
    import torch

    from understudy.lazy import load
    from understudy.methods.reading import RowsToRead

    read = load(asked.row_losses)(RowsToRead(rows, asked.label_names, asked.config, model, compute()))
    found, parts = [], len(read.parts)
    with torch.no_grad():
        for done, part in enumerate(read.parts):
            found.append(part().double().cpu())
            progress(number * parts + done + 1, 2 * parts)
    losses: Floats = torch.cat(found).numpy()
    return losses
