"""Measuring a run: what every labelled table is judged by, and what a method adds to it.

All of it is internal; nothing exported depends on it.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from understudy.artifacts.access import ArtifactRef, path_of, read_json, read_table, write_json
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.metrics import Metrics, merge
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.evaluation_config import MatchingEvaluationConfig
from understudy.privacy import labels
from understudy.settings import private_directory, settings
from understudy.tasks.engine.runtime import progress, task

if TYPE_CHECKING:
    from understudy.evaluation.rows import LabelledTexts
    from understudy.methods.gradient_matching.evaluation import MatchedLosses
    from understudy.models.loading import LoadedModel

_BATCH = 64


@task(name="evaluate")
def evaluate(
    synthetic: ArtifactRef,
    train: ArtifactRef,
    test: ArtifactRef,
    prompt_only: ArtifactRef | None,
    label_names: tuple[str, ...],
    config: EvaluationConfig,
) -> ArtifactRef:
    """Compare synthetic rows with real ones; the figures read private rows and are private.

    Of a run that kept no row it says so: the charge is paid by then, and what was released is worth having.
    """
    from understudy.evaluation.encoder import embed, load_encoder
    from understudy.evaluation.measure import evaluate_synthetic

    rows = partial(_rows, label_names=label_names)
    refs = [synthetic, train, test, *([prompt_only] if prompt_only is not None else [])]
    cache = private_directory(settings().private_root / "embeddings")
    made = rows(synthetic)
    if made.texts:
        metrics = evaluate_synthetic(
            made,
            rows(train),
            rows(test),
            prompt_only=rows(prompt_only) if prompt_only is not None else None,
            config=config,
            embedder=partial(embed, encoder=load_encoder(), cache=cache),
        )
    else:
        metrics = Metrics(missing=("everything about the synthetic rows: none was kept",))
    sources = labels.join(*(ref.label for ref in refs)).sources
    return write_json(metrics.model_dump(mode="json"), kind="metrics", label=labels.private(*sources), parents=refs)


@task(name="evaluate-matching")
def evaluate_matching(
    tables: dict[str, ArtifactRef],
    matched: list[ArtifactRef],
    target: ArtifactRef,
    label_names: tuple[str, ...],
    config: GradientMatchingConfig,
    signal_to_noise: float | str,
    sizes: MatchingEvaluationConfig,
) -> ArtifactRef:
    """What gradient matching is judged by besides `evaluate`; the figures read private rows and are private.

    Args:
        tables: `synthetic` (the rows that were kept), `train`, `test` and `prompt_only`.
        matched: the shards that the synthetic rows were chosen from.
        target: what they were matched to.
        label_names: every label, public.
        config: the run's settings.
        signal_to_noise: bound of the target; a word where it has no noise.
        sizes: of the evaluation.
    """
    from understudy.evaluation.encoder import embed, load_encoder
    from understudy.evaluation.rows import Conditions
    from understudy.methods.gradient_matching.evaluation import EvaluationModels, measure_matching
    from understudy.methods.gradient_matching.verbalizer import build_verbalizer
    from understudy.models.loading import load_base

    rows = {name: _rows(ref, label_names=label_names) for name, ref in tables.items()}
    base, cache = load_base(config), private_directory(settings().private_root / "embeddings")
    metrics = measure_matching(
        Conditions(rows["synthetic"], rows["train"], rows["prompt_only"]),
        rows["test"],
        _matched_losses(tables["synthetic"], rows, matched, target, base, signal_to_noise),
        evaluation_models=EvaluationModels(
            base=base,
            own=config.model,
            label_words=partial(build_verbalizer, label_names=label_names, config=config.verbalizer),
            embedder=partial(embed, encoder=load_encoder(), cache=cache),
        ),
        # No text is read further than the run reads it, which is known to fit the model.
        config=sizes.model_copy(update={"max_length": min(sizes.max_length, config.max_length)}),
        progress=progress,
    )
    refs = [*tables.values(), *matched, target]
    sources = labels.join(*(ref.label for ref in refs)).sources
    return write_json(metrics.model_dump(mode="json"), kind="metrics", label=labels.private(*sources), parents=refs)


@task(name="merge-metrics")
def merge_metrics(parts: list[ArtifactRef]) -> ArtifactRef:
    """One set of figures from several; each is measured once."""
    merged = merge(*(Metrics.model_validate(read_json(part)) for part in parts))
    sources = labels.join(*(part.label for part in parts)).sources
    return write_json(merged.model_dump(mode="json"), kind="metrics", label=labels.private(*sources), parents=parts)


def _rows(ref: ArtifactRef, *, label_names: tuple[str, ...]) -> LabelledTexts:
    from understudy.evaluation.rows import LabelledTexts

    table = read_table(ref)
    table = table.filter(table["text"].is_valid())  # null records keep their slots in what is trained on only
    return LabelledTexts(table["text"].to_pylist(), table["label"].to_pylist(), label_names)


def _matched_losses(
    synthetic: ArtifactRef,
    rows: dict[str, LabelledTexts],
    matched: list[ArtifactRef],
    target: ArtifactRef,
    base: LoadedModel,
    signal_to_noise: float | str,
) -> MatchedLosses:
    """Losses of kept, dropped and prompt-only texts, and what the filters counted."""
    from understudy.methods.gradient_matching.evaluation import MatchedLosses, split_losses

    drawn, report = pa.concat_tables([read_table(ref) for ref in matched]), read_json(synthetic)
    kept, dropped = split_losses(
        (drawn["text"].to_pylist(), drawn["label"].to_pylist()),
        drawn["emitted_loss"].to_numpy().astype(np.float64),
        (rows["synthetic"].texts, rows["synthetic"].labels),
    )
    reasons: Counter[str] = Counter()
    for counts in report["dropped"].values():
        reasons.update(counts)
    return MatchedLosses(
        kept=kept,
        dropped=dropped,
        prompt_only=_losses(target, base, rows["prompt_only"]),
        reasons=dict(reasons),
        labels=len(rows["synthetic"].label_names),
        shortfall=sum(report["shortfall"].values()),
        signal_to_noise=signal_to_noise if isinstance(signal_to_noise, float) else None,
    )


def _losses(target: ArtifactRef, base: LoadedModel, rows: LabelledTexts) -> npt.NDArray[np.float64]:
    """Matching losses of texts that were not matched."""
    import torch

    from understudy.methods.gradient_matching.loss import text_losses
    from understudy.methods.gradient_matching.release import load_target
    from understudy.methods.gradient_matching.targets import target_space
    from understudy.methods.gradient_matching.verbalizer import build_verbalizer

    released = load_target(path_of(target))
    charged = released.settings
    if charged.matching.gradient == "full":
        return np.zeros(0)  # another space, with a backward pass per text; the ablation does without
    verbalizer = build_verbalizer(base.tokenizer, released.label_names, charged.verbalizer)
    space = target_space(base.model, verbalizer, charged.target, public_seed=charged.public_seed)
    found = [
        text_losses(
            rows.texts[part.start : part.stop],
            torch.as_tensor(rows.labels[part.start : part.stop]),
            model=base.model,
            tokenizer=base.tokenizer,
            space=space,
            target=released.stacked,
            verbalizer=verbalizer,
            max_length=charged.max_length,
        )
        for part in (range(start, start + _BATCH) for start in range(0, len(rows.texts), _BATCH))
    ]
    losses: npt.NDArray[np.float64] = torch.cat(found).double().numpy()
    return losses
