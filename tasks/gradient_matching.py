"""The steps of gradient matching as tasks: release the target, match shards of texts to it, select."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from understudy.artifacts.access import ArtifactRef, path_of, read_json, read_table, store_for, write_table
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.evaluation_config import MatchingEvaluationConfig
from understudy.privacy import labels
from understudy.progress import Progress
from understudy.tasks.charge_receipt import ChargeReceipt, open_mechanisms, write_released
from understudy.tasks.engine.runtime import checkpoint_directory, compute, progress, task
from understudy.tasks.evaluation import labelled_rows, sentence_embedder, write_metrics

if TYPE_CHECKING:
    from understudy.evaluation.rows import LabelledTexts
    from understudy.methods.gradient_matching.evaluation import MatchedLosses
    from understudy.models.loading import LoadedModel


@task(name="release-target")
def release(rows: ArtifactRef, receipt: ChargeReceipt, config: GradientMatchingConfig) -> ArtifactRef:
    """The noised sum of clipped gradients of each label: everything that the charge pays for."""
    from understudy.data.private_rows import private_rows
    from understudy.methods.gradient_matching.queries import Asked, schedule_of
    from understudy.methods.gradient_matching.release import release_target, save_target
    from understudy.models.loading import load_base

    private = private_rows(read_table(rows), receipt.label_names)
    asked = Asked(config, schedule_of(receipt.queries), open_mechanisms(receipt))
    target = release_target(private, asked, base=load_base(config, compute()), progress=progress)
    with write_released(receipt, kind="target") as draft:
        save_target(target, draft.path)
    return draft.ref


@task(name="match")
def match(target: ArtifactRef, config: GradientMatchingConfig, examples: tuple[tuple[int, int], ...]) -> ArtifactRef:
    """Match one shard of synthetic texts to the target: post-processing, with the target's own label.

    Args:
        target: of `release`.
        config: `matching_settings` of the run's.
        examples: (label index, number of the text among those of its label).
    """
    from understudy.models.loading import load_base

    table = _matched_shard(load_base(config, compute()), target, config, examples, checkpoint_directory(), progress)
    return write_table(table, kind="matched", label=labels.post_process(target.label), parents=[target])


@task(name="match-further")
def match_further(
    target: ArtifactRef, matched: list[ArtifactRef], config: GradientMatchingConfig, label_names: tuple[str, ...]
) -> ArtifactRef:
    """All waves after the first in one task, which tells nothing of them: how many texts are lacking may be private.

    Args:
        target: of `release`.
        matched: the first wave.
        config: the run's settings.
        label_names: every label, public.

    Returns:
        The same texts as wave by wave; none where nothing is lacking.
    """
    from understudy.methods.gradient_matching.optimise import SCHEMA
    from understudy.methods.gradient_matching.shards import further_shards, matching_settings
    from understudy.methods.gradient_matching.synthesis import select_texts
    from understudy.models.loading import load_base

    base, tables = load_base(config, compute()), [read_table(ref).cast(SCHEMA) for ref in matched]
    further, folder, waves = [SCHEMA.empty_table()], checkpoint_directory(), 0
    while parts := further_shards(
        config,
        select_texts([*tables, *further], base=base, config=config, label_names=label_names).report(),
        label_names,
    ):
        for number, part in enumerate(parts):
            place = folder / f"wave-{waves}" / f"part-{number}"
            further.append(_matched_shard(base, target, matching_settings(config), part, place))
        waves += 1
    label = labels.post_process(labels.join(target.label, *(ref.label for ref in matched)))
    return write_table(pa.concat_tables(further), kind="matched", label=label, parents=[target, *matched])


@task(name="select")
def select(matched: list[ArtifactRef], config: GradientMatchingConfig, label_names: tuple[str, ...]) -> ArtifactRef:
    """Filter the matched texts and keep as many per label as were asked for, each drop counted with its reason."""
    from understudy.methods.gradient_matching.synthesis import select_texts, write_selection
    from understudy.models.loading import load_base

    selection = select_texts(
        [read_table(ref) for ref in matched], base=load_base(config, compute()), config=config, label_names=label_names
    )
    label = labels.post_process(labels.join(*(ref.label for ref in matched)))
    with store_for(label).write(kind="synthetic", label=label, parents=matched) as draft:
        write_selection(selection, draft.path)
    return draft.ref


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
    """The figures that only gradient matching has, besides those of `evaluate`; they read private rows and are private.

    Args:
        tables: `synthetic` (the rows that were kept), `train`, `test` and `prompt_only`.
        matched: the shards that the synthetic rows were chosen from.
        target: what they were matched to.
        label_names: every label, public.
        config: the run's settings.
        signal_to_noise: bound of the target; a word where it has no noise.
        sizes: of the evaluation.
    """
    from understudy.evaluation.rows import Conditions
    from understudy.methods.gradient_matching.evaluation import EvaluationModels, measure_matching
    from understudy.methods.gradient_matching.verbalizer import build_verbalizer
    from understudy.models.loading import load_base

    rows = {name: labelled_rows(ref, label_names=label_names) for name, ref in tables.items()}
    base = load_base(config, compute())
    metrics = measure_matching(
        Conditions(rows["synthetic"], rows["train"], rows["prompt_only"]),
        rows["test"],
        _matched_losses(tables["synthetic"], rows, matched, target, base, signal_to_noise),
        evaluation_models=EvaluationModels(
            base=base,
            own=config.model,
            label_words=partial(build_verbalizer, label_names=label_names, config=config.verbalizer),
            embedder=sentence_embedder(),
            device=compute().device,
        ),
        # No text is read further than the run reads it, which is known to fit the model.
        config=sizes.model_copy(update={"max_length": min(sizes.max_length, config.max_length)}),
        progress=progress,
    )
    return write_metrics(metrics, [*tables.values(), *matched, target])


def _matched_shard(
    base: LoadedModel,
    target: ArtifactRef,
    config: GradientMatchingConfig,
    examples: Sequence[tuple[int, int]],
    folder: Path,
    told: Progress | None = None,
) -> pa.Table:
    """One shard of texts, matched to a stored target; `folder` keeps the state of its batches."""
    from understudy.methods.gradient_matching.optimise import match_shard
    from understudy.methods.gradient_matching.release import load_target
    from understudy.models.checkpoints import TrainingCheckpoint

    stored = load_target(path_of(target))
    if config.length != "as_in_data":
        stored = replace(stored, length=config.length)
    return match_shard(
        base,
        stored,
        config=config,
        examples=examples,
        public_seed=config.public_seed,
        checkpoints=lambda name: TrainingCheckpoint(folder / name, every=1),
        progress=told,
    )


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
        checked=sum(report["checked"].values()),
        shortfall=sum(report["shortfall"].values()),
        signal_to_noise=signal_to_noise if isinstance(signal_to_noise, float) else None,
    )


def _losses(target: ArtifactRef, base: LoadedModel, rows: LabelledTexts) -> npt.NDArray[np.float64]:
    """Matching losses of texts that were not matched."""
    from understudy.methods.gradient_matching.evaluation import losses_of
    from understudy.methods.gradient_matching.release import load_target
    from understudy.methods.gradient_matching.targets import target_space
    from understudy.methods.gradient_matching.verbalizer import build_verbalizer

    released = load_target(path_of(target))
    charged = released.settings
    if charged.matching.gradient == "full":
        # The full gradient is another space, with a backward pass for each text: the ablation leaves this figure out.
        return np.zeros(0)
    verbalizer = build_verbalizer(base.tokenizer, released.label_names, charged.verbalizer)
    space = target_space(base.model, verbalizer, charged.target, public_seed=charged.public_seed)
    return losses_of(rows, released, base=base, space=space, verbalizer=verbalizer)
