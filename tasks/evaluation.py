"""Measuring a run: utility, fidelity, diversity, memorisation. Internal; nothing exported depends on it."""

from __future__ import annotations

from functools import partial

from understudy.artifacts import ArtifactRef, read_table, write_json
from understudy.evaluation.config import EvaluationConfig
from understudy.privacy import labels
from understudy.settings import settings
from understudy.tasks.runtime import task


@task(name="evaluate")
def evaluate(
    synthetic: ArtifactRef,
    train: ArtifactRef,
    test: ArtifactRef,
    prompt_only: ArtifactRef | None,
    label_names: tuple[str, ...],
    config: EvaluationConfig,
) -> ArtifactRef:
    """Compare synthetic rows with real ones; the figures read private rows and are private."""
    from understudy.evaluation.encoder import embed, load_encoder
    from understudy.evaluation.measure import LabelledTexts, evaluate_synthetic
    from understudy.settings import private_directory

    def rows(ref: ArtifactRef) -> LabelledTexts:
        table = read_table(ref)
        return LabelledTexts(table["text"].to_pylist(), table["label"].to_pylist(), label_names)

    refs = [synthetic, train, test, *([prompt_only] if prompt_only is not None else [])]
    cache = private_directory(settings().private_root / "embeddings")
    metrics = evaluate_synthetic(
        rows(synthetic),
        rows(train),
        rows(test),
        prompt_only=rows(prompt_only) if prompt_only is not None else None,
        config=config,
        embedder=partial(embed, encoder=load_encoder(), cache=cache),
    )
    sources = labels.join(*(ref.label for ref in refs)).sources
    return write_json(metrics.model_dump(mode="json"), kind="metrics", label=labels.private(*sources), parents=refs)
