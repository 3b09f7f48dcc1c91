"""The steps of gradient matching as tasks: release the target, match shards of texts to it, select."""

from __future__ import annotations

from dataclasses import replace

from understudy.artifacts.access import ArtifactRef, path_of, read_table, store_for, write_table
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.privacy import labels
from understudy.privacy.queries import Queries
from understudy.tasks.charge_receipt import ChargeReceipt, release_log
from understudy.tasks.engine.runtime import checkpoint_directory, progress, task


@task(name="release-target")
def release(
    rows: ArtifactRef,
    receipt: ChargeReceipt,
    config: GradientMatchingConfig,
    label_names: tuple[str, ...],
    queries: Queries,
) -> ArtifactRef:
    """The noised sum of clipped gradients of each label: everything that the charge pays for.

    Args:
        rows: checked private rows.
        receipt: the charge; its label is the result's.
        config: the charged settings only (ADR 0005).
        label_names: every label, public.
        queries: of the run plan, as charged.
    """
    from understudy.methods.gradient_matching.queries import schedule_of
    from understudy.methods.gradient_matching.release import release_target, save_target
    from understudy.privacy.ledger.ledger import Ledger
    from understudy.privacy.mechanisms import Mechanisms

    table = read_table(rows)
    target = release_target(
        table["text"].to_pylist(),
        table["label"].to_pylist(),
        label_names=label_names,
        config=config,
        schedule=schedule_of(queries),
        mechanisms=Mechanisms.live(
            Ledger.open().material(receipt.charge_id), release_log=release_log(receipt.charge_id)
        ),
        progress=progress,
    )
    parents = [f"source:{receipt.source}@{receipt.charge_id}"]
    with store_for(receipt.label).write(kind="target", label=receipt.label, parents=parents) as draft:
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
    from understudy.methods.gradient_matching.optimise import match_shard
    from understudy.methods.gradient_matching.release import load_target
    from understudy.models.checkpoints import TrainingCheckpoint
    from understudy.models.loading import load_base

    released = load_target(path_of(target))
    if config.length != "as_in_data":
        released = replace(released, length=config.length)
    folder = checkpoint_directory()
    table = match_shard(
        load_base(config),
        released,
        config=config,
        examples=examples,
        public_seed=config.public_seed,
        checkpoints=lambda name: TrainingCheckpoint(folder / name, every=1),
        progress=progress,
    )
    return write_table(table, kind="matched", label=labels.post_process(target.label), parents=[target])


@task(name="select")
def select(matched: list[ArtifactRef], config: GradientMatchingConfig, label_names: tuple[str, ...]) -> ArtifactRef:
    """Filter the matched texts and keep as many per label as were asked for, each drop counted with its reason."""
    from understudy.methods.gradient_matching.synthesis import select_texts, write_selection
    from understudy.models.loading import load_base

    selection = select_texts(
        [read_table(ref) for ref in matched], base=load_base(config), config=config, label_names=label_names
    )
    label = labels.post_process(labels.join(*(ref.label for ref in matched)))
    with store_for(label).write(kind="synthetic", label=label, parents=matched) as draft:
        write_selection(selection, draft.path)
    return draft.ref
