"""The steps of conditional generation as tasks: train, generate, the text that no private row has met, test loss."""

from __future__ import annotations

from understudy.artifacts.access import ArtifactRef, path_of, read_table, store_for
from understudy.evaluation.config import EvaluationConfig
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.privacy import labels
from understudy.tasks.charge_receipt import ChargeReceipt, open_mechanisms, write_released
from understudy.tasks.engine.runtime import checkpoint_directory, compute, progress, progress_on, task
from understudy.tasks.evaluation import private_embeddings, write_metrics


@task(name="train")
def train(rows: ArtifactRef, receipt: ChargeReceipt, config: ConditionalGenerationConfig) -> ArtifactRef:
    """DP fine-tuning and, if asked for, the class histogram: everything that the charge pays for."""
    from understudy.data.private_rows import private_rows
    from understudy.methods.conditional_generation.fitting import train_on_table
    from understudy.methods.conditional_generation.queries import CLASS_MEANS, Asked, schedule_of
    from understudy.methods.conditional_generation.storage import save_trained
    from understudy.models.checkpoints import TrainingCheckpoint
    from understudy.models.loading import load_base

    folder = checkpoint_directory()
    stored = train_on_table(
        private_rows(read_table(rows), receipt.label_names),
        Asked(config, schedule_of(receipt.queries), open_mechanisms(receipt)),
        base=load_base(config, compute()),
        # A step of the class means is a row: by the time alone.
        checkpoints=lambda name: TrainingCheckpoint(
            folder / name, every=None if name == CLASS_MEANS else config.train.checkpoint_every
        ),
        progress=progress,
        embeddings=private_embeddings(),
    )
    with write_released(receipt, kind="model") as draft:
        save_trained(stored, draft.path)
    return draft.ref


@task(name="generate")
def generate(model: ArtifactRef, config: ConditionalGenerationConfig) -> ArtifactRef:
    """Draw, steer and filter synthetic rows: post-processing, with the model's own label."""
    from understudy.methods.conditional_generation.storage import load_trained
    from understudy.methods.conditional_generation.synthesis import synthesize_stored, write_synthesis

    stored = load_trained(path_of(model), compute())
    synthesis = synthesize_stored(stored, config, progress=progress_on(model))
    label = labels.post_process(model.label)
    with store_for(label).write(kind="synthetic", label=label, parents=[model]) as draft:
        write_synthesis(synthesis, draft.path)
    return draft.ref


@task(name="prompt-only")
def prompt_only(
    config: ConditionalGenerationConfig, label_names: tuple[str, ...], released: ArtifactRef | None = None
) -> ArtifactRef:
    """As many texts of each label from the base model, untrained: what private rows add is measured on it.

    `released` is the model whose noised histogram says how many, where sizes are those of the data.
    """
    from understudy.methods.conditional_generation.class_sizes import sizes_of
    from understudy.methods.conditional_generation.storage import released_counts
    from understudy.methods.conditional_generation.synthesis import synthesize_untrained, write_synthesis

    counts = None if released is None else released_counts(path_of(released))
    sizes = sizes_of(config, label_names, counts)
    told = progress_on(released)
    synthesis = synthesize_untrained(config, label_names, sizes=sizes, compute=compute(), progress=told)
    label = labels.public() if released is None else labels.post_process(released.label)
    parents = [] if released is None else [released]
    with store_for(label).write(kind="prompt-only", label=label, parents=parents) as draft:
        write_synthesis(synthesis, draft.path)
    return draft.ref


@task(name="evaluate-loss")
def evaluate_loss(
    model: ArtifactRef,
    test: ArtifactRef,
    label_names: tuple[str, ...],
    config: ConditionalGenerationConfig,
    settings: EvaluationConfig,
) -> ArtifactRef:
    """How likely held-out texts are to the released model and to the base model; of private rows, so private.

    Args:
        model: of `train`.
        test: the held-out rows.
        label_names: every label, public.
        config: the settings that private rows met: how rows are drawn changes no loss.
        settings: of the evaluation.
    """
    from understudy.methods.conditional_generation.evaluation import measure_held_out
    from understudy.methods.reading import RowsToRead

    asked = RowsToRead(read_table(test), label_names, config, path_of(model), compute())
    return write_metrics(measure_held_out(asked, settings, progress=progress), [model, test])
