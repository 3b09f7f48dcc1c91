"""The steps of trajectory matching as tasks: experts, carriers, selection, distillation, emission, measuring."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.artifacts.access import (
    TABLE,
    VALUE,
    ArtifactRef,
    path_of,
    read_table,
    store_for,
    write_table,
)
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.privacy import labels
from understudy.progress import Course
from understudy.tasks.charge_receipt import ChargeReceipt, open_mechanisms, write_released
from understudy.tasks.engine.runtime import checkpoint_directory, compute, progress, progress_on, task
from understudy.tasks.evaluation import write_metrics

if TYPE_CHECKING:
    from understudy.generation.instructions import Pair

TRAJECTORY = "trajectory.safetensors"


@task(name="train-expert", apart=True)
def train_expert(
    rows: ArtifactRef, receipt: ChargeReceipt, config: TrajectoryMatchingConfig, number: int
) -> ArtifactRef:
    """One expert's trajectory: part of what the charge pays for, or, without queries, as private as the rows."""
    from understudy.generation.instructions import PairEncoder, pairs_of
    from understudy.methods.trajectory_matching import experts
    from understudy.methods.trajectory_matching.queries import plan_of_expert
    from understudy.models.loading import load_base

    base, folder = load_base(config, compute()), checkpoint_directory()
    pairs = PairEncoder(base.tokenizer, config.template).encode(
        pairs_of(read_table(rows)), max_length=config.max_length
    )
    student = experts.expert_student(base.model, config, number)
    if config.experts.private:
        trajectory = experts.train_private_expert(
            student,
            pairs,
            config,
            plan=plan_of_expert(config, receipt.queries, number),
            mechanisms=open_mechanisms(receipt, part=number),
            folder=folder,
            progress=progress,
        )
    else:
        trajectory = experts.train_expert(student, pairs, config, number, folder=folder, progress=progress)
    with write_released(receipt, kind="trajectory") as draft:
        experts.save_trajectory(draft.path / TRAJECTORY, trajectory)
    return draft.ref


@task(name="gather-experts", computes=False)
def gather_experts(trajectories: list[ArtifactRef], receipt: ChargeReceipt) -> ArtifactRef:
    """All trajectories as one artifact: what the charge pays for."""
    with write_released(receipt, kind="trajectories") as draft:
        for number, trajectory in enumerate(trajectories):
            content = (path_of(trajectory) / TRAJECTORY).read_bytes()
            (draft.path / f"expert-{number}.safetensors").write_bytes(content)
    return draft.ref


@task(name="read-public-rows", cache=False, computes=False)
def read_public_rows(spec: str, setting: str, digest: str) -> ArtifactRef:
    """A public file of instructions with responses as an artifact.

    Args:
        spec: names the file.
        setting: that named it.
        digest: of the pairs that the run began with: other ones may hold private rows.
    """
    from understudy.data.public_tables import read_pairs

    table = read_pairs(spec, setting=setting, digest=digest)
    return write_table(table, kind="public-rows", label=labels.public())


@task(name="write-carriers")
def write_carriers(public: ArtifactRef, config: TrajectoryMatchingConfig) -> ArtifactRef:
    """The same instructions, answered by the public model."""
    from understudy.methods.trajectory_matching.carriers import answered, table_of
    from understudy.models.loading import load_base

    written = answered(load_base(config, compute()), _pairs(public), config, progress=progress)
    return write_table(table_of(written), kind="public-rows", label=labels.public(), parents=[public])


@task(name="select-rows")
def select_rows(carriers: ArtifactRef, target: ArtifactRef | None, config: TrajectoryMatchingConfig) -> ArtifactRef:
    """The rows that carry pseudo tokens, with the label of what they were chosen from."""
    from understudy.methods.trajectory_matching.carriers import choose, load_selector, table_of
    from understudy.methods.trajectory_matching.experts import expert_student
    from understudy.models.checkpoints import TrainingCheckpoint

    pairs, like = _pairs(carriers), None if target is None else _pairs(target)
    student, tokenizer = None, None
    if config.selection.strategy == "less":
        selector = load_selector(config, compute())
        student, tokenizer = expert_student(selector.model, config, 0), selector.tokenizer
    told = progress_on(carriers)
    kept = TrainingCheckpoint(checkpoint_directory(), every=None)
    rows = choose(pairs, like, config, student=student, tokenizer=tokenizer, checkpoint=kept, progress=told)
    parents = [carriers, *([target] if target is not None else [])]
    label = labels.post_process(labels.join(*(ref.label for ref in parents)))
    return write_table(table_of([pairs[row] for row in rows]), kind="selected", label=label, parents=parents)


@task(name="distil")
def distil(trajectories: ArtifactRef, selected: ArtifactRef, config: TrajectoryMatchingConfig) -> ArtifactRef:
    """Learn the pseudo tokens: post-processing of the experts and of the rows that carry them."""
    from understudy.methods.trajectory_matching import distil as distilling
    from understudy.methods.trajectory_matching.carriers import encoded
    from understudy.methods.trajectory_matching.emission import decoded, save_distilled
    from understudy.methods.trajectory_matching.experts import expert_student, gathered
    from understudy.methods.trajectory_matching.training import PacedCheckpoint
    from understudy.models.loading import load_base

    base = load_base(config, compute())
    student, pairs = expert_student(base.model, config, 0), _pairs(selected)
    rows, found = encoded(pairs, base.tokenizer, config), gathered(path_of(trajectories))
    course = Course(PacedCheckpoint(checkpoint_directory(), per_epoch=config.distil.steps), progress)
    result = distilling.distil(student, rows, found, config, course)
    tokens, texts = decoded(result.prompts, student.vocabulary, base.tokenizer)
    label = labels.post_process(labels.join(trajectories.label, selected.label))
    with store_for(label).write(kind="distilled", label=label, parents=[trajectories, selected]) as draft:
        save_distilled(draft.path, result, tokens)
        table = read_table(selected).append_column("pseudo_tokens", pa.array(texts, pa.string()))
        pq.write_table(table, draft.path / TABLE)
    return draft.ref


@task(name="emit-text", computes=False)
def emit_text(distilled: ArtifactRef) -> ArtifactRef:
    """The rows behind the text of their pseudo tokens, for any model."""
    from understudy.methods.trajectory_matching.emission import with_pseudo_text

    table = read_table(distilled)
    texts = with_pseudo_text(table["instruction"].to_pylist(), table["pseudo_tokens"].to_pylist())
    label = labels.post_process(distilled.label)
    facts = {"drawn": {"all": table.num_rows}, "dropped": {}, "shortfall": {}}
    with store_for(label).write(kind="synthetic", label=label, parents=[distilled]) as draft:
        pq.write_table(pa.table({"instruction": texts, "response": table["response"]}), draft.path / TABLE)
        (draft.path / VALUE).write_text(json.dumps(facts))
    return draft.ref


@task(name="evaluate-tuning")
def evaluate_tuning(
    learned: ArtifactRef, experts: ArtifactRef, train: ArtifactRef, test: ArtifactRef, config: TrajectoryMatchingConfig
) -> ArtifactRef:
    """Tune on the result and measure on held-out rows, and count what training cut; the figures are private."""
    from understudy.methods.trajectory_matching import evaluation
    from understudy.methods.trajectory_matching.emission import load_distilled
    from understudy.methods.trajectory_matching.experts import gathered
    from understudy.models.loading import load_base, load_model

    result, _ = load_distilled(path_of(learned))
    texts = read_table(learned)["pseudo_tokens"].to_pylist()
    other, digest = config.tuning.transfer, config.tuning.transfer_digest
    metrics = evaluation.evaluate_tuning(
        load_base(config, compute()),
        evaluation.Emitted(_pairs(learned), result, texts),
        gathered(path_of(experts))[0][-1],
        _pairs(test),
        config,
        train=_pairs(train),
        other=load_model(other, digest=digest, compute=compute()) if other else None,
    )
    return write_metrics(metrics, [learned, experts, train, test])


def _pairs(ref: ArtifactRef) -> list[Pair]:
    """The pairs of a stored table, null records left out."""
    from understudy.generation.instructions import pairs_of

    return [pair for pair in pairs_of(read_table(ref)) if pair is not None]
