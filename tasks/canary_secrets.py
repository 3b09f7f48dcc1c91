"""Guessing the secrets of an audit's canaries by the model that a run released; internal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from understudy.artifacts.access import ArtifactRef, read_json, read_table, write_json
from understudy.privacy import labels
from understudy.tasks.auditing import Attacked, released_by
from understudy.tasks.engine.runtime import compute, progress, task

if TYPE_CHECKING:
    import pyarrow as pa

    from understudy.auditing.one_run import Floats


@task(name="read-secrets-by-public-model")
def read_by_public_model(canaries: ArtifactRef, asked: Attacked) -> ArtifactRef:
    """Losses of canaries with every candidate in the place of their secret, under the model that every run began with.

    It is read once for all runs of an audit, which differ in noise alone. No coin and no secret has a part in it.

    Args:
        canaries: with their coins and secrets.
        asked: of one of the runs; its method has `row_losses`.

    Returns:
        Of each canary the losses of its candidates; private to the source, like the table they were read from.
    """
    losses = _losses(_first(canaries), asked, None)
    label = labels.private(*canaries.label.sources)
    return write_json(losses.tolist(), kind="losses-of-secrets", label=label, parents=(canaries,))


@task(name="guess-secrets")
def guess_secrets(
    released: ArtifactRef, before: ArtifactRef, canaries: ArtifactRef, asked: Attacked, *, holds_canaries: bool
) -> ArtifactRef:
    """Read canaries with every candidate in the place of their secret, and take what became likelier by the most.

    Args:
        released: what the run released.
        before: losses of the candidates under the public model.
        canaries: with their coins and secrets.
        asked: of the run; its method has `row_losses`.
        holds_canaries: whether the run met the canaries that their coins put in.

    Returns:
        What was guessed of the canaries that the run met, `put_in`, and of the others, `left_out`; private to the
        source.
    """
    from understudy.auditing.canaries import INCLUDED
    from understudy.auditing.canary_secrets import SECRET, guessed_secrets

    table = _first(canaries)
    public, after = np.array(read_json(before)), _losses(table, asked, released_by(released, asked))
    places = np.array(table[SECRET].to_pylist())
    met = np.array(table[INCLUDED].to_pylist(), dtype=np.bool_) & holds_canaries
    value = {
        name: guessed_secrets(public[those], after[those], places[those].tolist()).model_dump(mode="json")
        for name, those in (("put_in", met), ("left_out", ~met))
        if those.any()
    }
    refs = (released, before, canaries)
    label = labels.private(*labels.join(*(ref.label for ref in refs)).sources)
    return write_json(value, kind="guesses", label=label, parents=refs)


def _first(canaries: ArtifactRef) -> pa.Table:
    """Those that are read. How many hangs on no coin: progress shows it."""
    from understudy.auditing.canary_secrets import MOST_READ

    return read_table(canaries).slice(0, MOST_READ)


def _losses(table: pa.Table, asked: Attacked, model: Path | None) -> Floats:
    """Of each canary with each candidate, `(canaries, candidates)`, by the public model or by the released one."""
    import torch

    from understudy.auditing.canary_secrets import BESIDE_ROWS, OTHERS, versions
    from understudy.auditing.version_losses import parts_of_versions
    from understudy.lazy import load
    from understudy.methods.reading import RowsToRead

    candidates = table[OTHERS].to_pylist()
    rows = versions(table.drop_columns(list(BESIDE_ROWS)), candidates)
    # What one word gains by training would be rounded away in bfloat16.
    on = compute().in_float32
    read = load(asked.row_losses)(RowsToRead(rows, asked.label_names, asked.config, model, on))
    found, parts = [], parts_of_versions(read, rows.num_rows // len(candidates))
    with torch.no_grad():
        for done, part in enumerate(parts):
            found.append(part().double().cpu())
            progress(done + 1, len(parts))
    losses: Floats = torch.cat(found).numpy().reshape(len(candidates), -1)
    return losses
