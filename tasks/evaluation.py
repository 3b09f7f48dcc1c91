"""Measuring a run: the figures of every labelled table, and what a method adds to them.

All of it is internal; nothing exported depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from understudy.artifacts.access import ArtifactRef, read_json, read_table, row_count, write_json
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.metrics import Metrics, merge
from understudy.frozen import Frozen
from understudy.generation.config import Reading
from understudy.privacy import labels
from understudy.progress import Progress, halves
from understudy.settings import private_directory, settings
from understudy.tasks.engine.runtime import compute, progress, task

if TYPE_CHECKING:
    from understudy.evaluation.measure import Embedder
    from understudy.evaluation.rows import LabelledTexts

# Of tables with more slots than these the embeddings are made in parts.
_MANY: Final = 10_000
_PARTS: Final = 10


@task(name="evaluate")
def evaluate(
    synthetic: ArtifactRef,
    train: ArtifactRef,
    test: ArtifactRef,
    prompt_only: ArtifactRef | None,
    label_names: tuple[str, ...],
    config: EvaluationConfig,
    reading: Reading | None = None,
) -> ArtifactRef:
    """Compare synthetic rows with real ones; the figures read private rows and are private.

    With `reading`, how many private texts were cut is among them. Of a run that kept no row they say so: the charge is
    paid by then, and what was released is worth having.
    """
    from understudy.evaluation.measure import Conditions, evaluate_synthetic
    from understudy.evaluation.texts.cut_texts import measure_cut

    rows = partial(labelled_rows, label_names=label_names)
    refs = [synthetic, train, test, *([prompt_only] if prompt_only is not None else [])]
    made = rows(synthetic)
    # A small table is embedded before anybody asks; how many slots there are is public.
    large, learns = row_count(train) + row_count(test) > _MANY, config.headline == "transformer"
    reading_told, learning_told = halves(progress) if large and learns else (progress if large else None, progress)
    if made.texts:
        metrics = evaluate_synthetic(
            Conditions(made, rows(train), rows(prompt_only) if prompt_only is not None else None),
            rows(test),
            config=config,
            embedder=sentence_embedder(reading_told),
            device=compute().device,
            progress=learning_told,
        )
    else:
        metrics = Metrics(missing=("everything about the synthetic rows: none was kept",))
    if reading is not None:
        metrics = merge(metrics, measure_cut(rows(train).texts, reading))
    return write_metrics(metrics, refs)


@task(name="merge-metrics")
def merge_metrics(parts: list[ArtifactRef]) -> ArtifactRef:
    """One set of figures from several; each is measured once."""
    return write_metrics(merge(*(Metrics.model_validate(read_json(part)) for part in parts)), parts)


class MeasuredTables(Frozen):
    """The tables of a finished run that its figures compare."""

    synthetic: ArtifactRef
    prompt_only: ArtifactRef
    train: ArtifactRef
    test: ArtifactRef


def write_metrics(metrics: Metrics, made_from: Sequence[ArtifactRef]) -> ArtifactRef:
    """Store figures, private to every source that what they were made from names."""
    label = labels.private(*labels.join(*(ref.label for ref in made_from)).sources)
    return write_json(metrics.model_dump(mode="json"), kind="metrics", label=label, parents=made_from)


def sentence_embedder(told: Progress | None = None) -> Embedder:
    """The sentence encoder on this run's device; what it made of a text is kept in the client zone.

    Args:
        told: of each tenth, whatever the number of texts; what a killed task has encoded stays then.
    """
    from understudy.evaluation.texts.encoder import embed, load_encoder

    embedder = partial(embed, encoder=load_encoder(device=compute().device), cache=private_embeddings())
    return embedder if told is None else partial(embedder, parts=_PARTS, progress=told)


def private_embeddings() -> Path:
    """Where embeddings of texts are kept, private ones too, in the client zone."""
    return private_directory(settings().private_root / "embeddings")


def labelled_rows(ref: ArtifactRef, *, label_names: tuple[str, ...]) -> LabelledTexts:
    """The texts of a stored table that has labels; null records are left out."""
    from understudy.evaluation.rows import LabelledTexts

    table = read_table(ref)
    table = table.filter(table["text"].is_valid())  # null records keep their slots in what is trained on only
    return LabelledTexts(table["text"].to_pylist(), table["label"].to_pylist(), label_names)
