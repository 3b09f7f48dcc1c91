"""The steps of preference optimisation as tasks, in two zones.

Client zone: embed the clients once, score a round's candidates. Server zone: propose candidates, train on noisy
scores, write the texts. What goes from client to server is the artifact `scores` and nothing else. At epsilon inf
nothing may go to the server, so the same steps run in the client zone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.artifacts.access import ArtifactRef, path_of, read_table, store_for
from understudy.compute import Compute
from understudy.frozen import Frozen
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.privacy import labels
from understudy.privacy.labels import Label
from understudy.progress import Course
from understudy.runs.request import Profile
from understudy.tasks.charge_receipt import ChargeReceipt, open_mechanisms, write_released
from understudy.tasks.engine.cache_key import references
from understudy.tasks.engine.runtime import (
    Zone,
    checkpoint_directory,
    code_digest,
    compute,
    in_either_zone,
    progress,
    progress_on,
    task,
)
from understudy.tasks.evaluation import MeasuredTables, sentence_embedder, write_metrics

if TYPE_CHECKING:
    from understudy.models.loading import LoadedModel


@task(name="embed-clients")
def embed_clients(
    rows: ArtifactRef, config: PreferenceOptimizationConfig, label_names: tuple[str, ...], n: int
) -> ArtifactRef:
    """The embeddings of the private texts, private themselves.

    Args:
        rows: checked private rows.
        config: the charged settings; the variant and the tokens of a sample count.
        label_names: every label, public; empty without.
        n: declared number of units, as validated.
    """
    from understudy.evaluation.texts.encoder import load_encoder
    from understudy.methods.preference_optimization.pool import build_pool, save_pool
    from understudy.models.checkpoints import TrainingCheckpoint
    from understudy.models.loading import load_base

    encoder = load_encoder(device=compute().device)
    pool = build_pool(
        read_table(rows),
        config=config,
        classes=len(label_names),
        tokenizer=load_base(config).tokenizer,
        encode=encoder.encode,
        dimension=encoder.dimension,
        slots=n,
        # A step is a client: by the time alone.
        course=Course(TrainingCheckpoint(checkpoint_directory(), every=None), progress),
    )
    with store_for(rows.label).write(kind="clients", label=rows.label, parents=[rows]) as draft:
        save_pool(pool, draft.path)
    return draft.ref


@in_either_zone("propose")
def propose(
    adapter: ArtifactRef | None, config: PreferenceOptimizationConfig, label_names: tuple[str, ...], number: int
) -> ArtifactRef:
    """The candidates of a round with their embeddings: public in the first round, then as released as the adapter.

    Args:
        adapter: of the round before; None in the first.
        config: the charged settings.
        label_names: every label, public; empty without.
        number: of the round.
    """
    from understudy.evaluation.texts.encoder import load_encoder
    from understudy.methods.preference_optimization import rounds, stored
    from understudy.methods.preference_optimization.seeds import read_seeds

    candidates = rounds.propose(
        _policy(config, adapter, compute()),
        read_seeds(config.seeds, digest=config.seeds_digest),
        config=config,
        label_names=label_names,
        round=number,
        encode=load_encoder(device=compute().device).encode,
        answers=checkpoint_directory(),
        progress=progress,
    )
    label, parents = _from(adapter)
    with store_for(label).write(kind="candidates", label=label, parents=parents) as draft:
        stored.save_candidates(candidates, draft.path)
    return draft.ref


@task(name="score")
def score(
    pool: ArtifactRef,
    candidates: ArtifactRef,
    receipt: ChargeReceipt,
    config: PreferenceOptimizationConfig,
    number: int,
) -> ArtifactRef:
    """The noisy scores of a round: what the charge pays for, written before anything uses them.

    Args:
        pool: of `embed_clients`.
        candidates: of `propose`.
        receipt: the charge; its label is the result's, and a pool of another number of units is refused.
        config: the charged settings.
        number: of the round.
    """
    from understudy.methods.preference_optimization.pool import load_pool
    from understudy.methods.preference_optimization.queries import schedule_of
    from understudy.methods.preference_optimization.release import release_scores
    from understudy.methods.preference_optimization.stored import SCORES_FILE, load_candidates
    from understudy.tensor_files import save_tensors

    clients, texts = load_pool(path_of(pool)), load_candidates(path_of(candidates))
    noisy = release_scores(
        clients,
        texts.embeddings,
        labels=texts.labels,
        config=config,
        schedule=schedule_of(receipt.queries),
        mechanisms=open_mechanisms(receipt, part=number),
        round=number,
    )
    with write_released(receipt, kind="scores", parents=[candidates]) as draft:
        save_tensors(draft.path / SCORES_FILE, {"scores": noisy})
    return draft.ref


@in_either_zone("prefer")
def prefer(
    candidates: ArtifactRef,
    scores: ArtifactRef,
    adapter: ArtifactRef | None,
    config: PreferenceOptimizationConfig,
    number: int,
) -> ArtifactRef:
    """DPO on the pairs that the noisy scores give: post-processing, with the scores' own label.

    Args:
        candidates: of `propose`.
        scores: of `score`.
        adapter: of the round before; None in the first.
        config: the charged settings.
        number: of the round.
    """
    from understudy.methods.preference_optimization import rounds, stored
    from understudy.models.adapters import load_adapter, save_adapter
    from understudy.models.loading import load_base
    from understudy.tensor_files import load_tensors

    trained, facts = rounds.prefer(
        load_base(config, compute()),
        None if adapter is None else load_adapter(path_of(adapter) / stored.ADAPTER_FILE),
        stored.load_candidates(path_of(candidates)),
        load_tensors(path_of(scores) / stored.SCORES_FILE)["scores"],
        config=config,
        round=number,
        folder=checkpoint_directory(),
        progress=progress_on(scores),
    )
    parents = [candidates, scores, *([adapter] if adapter is not None else [])]
    label = labels.post_process(labels.join(*(ref.label for ref in parents)))
    with store_for(label).write(kind="adapter", label=label, parents=parents) as draft:
        save_adapter(draft.path / stored.ADAPTER_FILE, trained)
        stored.write_facts(draft.path, facts)
    return draft.ref


@in_either_zone("publish")
def publish(adapter: ArtifactRef, config: PreferenceOptimizationConfig) -> ArtifactRef:
    """The last policy as a model that transformers alone can load: the adapter merged into the base weights."""
    from understudy.models.checkpoints import export_model

    policy = _policy(config, adapter, compute().in_float32)
    label = labels.post_process(adapter.label)
    with store_for(label).write(kind="model", label=label, parents=[adapter]) as draft:
        export_model(policy.model, policy.tokenizer, draft.path)
    return draft.ref


@in_either_zone("write-texts")
def write_texts(
    adapter: ArtifactRef | None, config: PreferenceOptimizationConfig, label_names: tuple[str, ...]
) -> ArtifactRef:
    """The synthetic texts of the last policy; without an adapter, those of the public base model to compare with.

    Args:
        adapter: of the last round, or None.
        config: the run's settings.
        label_names: every label, public; empty without.
    """
    import pyarrow.parquet as pq

    from understudy.methods.preference_optimization import rounds, stored
    from understudy.methods.preference_optimization.seeds import read_seeds

    table, facts = rounds.write_texts(
        _policy(config, adapter, compute()),
        read_seeds(config.seeds, digest=config.seeds_digest),
        config=config,
        label_names=label_names,
        trained=adapter is not None,
        answers=checkpoint_directory(),
        progress=progress_on(adapter),
    )
    label, parents = _from(adapter)
    kind = "prompt-only" if adapter is None else "synthetic"
    with store_for(label).write(kind=kind, label=label, parents=parents) as draft:
        pq.write_table(table.combine_chunks(), draft.path / stored.TABLE, compression="zstd")
        stored.write_facts(draft.path, facts)
    return draft.ref


class EvaluationRefs(Frozen):
    """What the evaluation of a finished run reads."""

    tables: MeasuredTables
    pool: ArtifactRef
    candidates: tuple[ArtifactRef, ...]
    scores: tuple[ArtifactRef, ...]
    adapters: tuple[ArtifactRef, ...]


@task(name="evaluate-rounds")
def evaluate_rounds(inputs: EvaluationRefs, config: PreferenceOptimizationConfig, profile: Profile) -> ArtifactRef:
    """Measure the texts, and the rounds that led to them; the figures read private texts and are private."""
    from understudy.methods.preference_optimization import stored
    from understudy.methods.preference_optimization.evaluation import EvaluationInputs, evaluate_run
    from understudy.methods.preference_optimization.pool import load_pool
    from understudy.models.loading import load_base
    from understudy.tensor_files import load_tensors

    metrics = evaluate_run(
        EvaluationInputs(
            synthetic=read_table(inputs.tables.synthetic)["text"].to_pylist(),
            prompt_only=read_table(inputs.tables.prompt_only)["text"].to_pylist(),
            train=read_table(inputs.tables.train),
            test=read_table(inputs.tables.test),
            pool=load_pool(path_of(inputs.pool)),
            candidates=[stored.load_candidates(path_of(ref)) for ref in inputs.candidates],
            scores=[load_tensors(path_of(ref) / stored.SCORES_FILE)["scores"] for ref in inputs.scores],
            trained=[stored.read_facts(path_of(ref))["trained"] for ref in inputs.adapters],
        ),
        config=config,
        profile=profile,
        tokenizer=load_base(config).tokenizer,
        embedder=sentence_embedder(),
        device=compute().device,
        progress=progress,
    )
    return write_metrics(metrics, list(references(inputs)))


def charged_code(zone: Zone) -> tuple[str, ...]:
    """Digests of the code that decides what the rounds ask of the clients: of scoring, and of what it scores.

    A query's candidates follow from every task before it, so a run whose tasks change between two rounds may ask
    something else in a round that was answered.
    """
    return tuple(code_digest(made.fn) for made in (embed_clients, propose[zone], score, prefer[zone]))


def _policy(config: PreferenceOptimizationConfig, adapter: ArtifactRef | None, use: Compute) -> LoadedModel:
    from understudy.methods.preference_optimization.stored import ADAPTER_FILE
    from understudy.models.adapters import load_adapter, merge_adapter
    from understudy.models.loading import load_base

    base = load_base(config, use)
    tensors = None if adapter is None else load_adapter(path_of(adapter) / ADAPTER_FILE)
    return merge_adapter(base, tensors, alpha=config.preferences.lora_alpha)


def _from(adapter: ArtifactRef | None) -> tuple[Label, list[ArtifactRef | str]]:
    """Label and parents of what an adapter, or the public base model, made."""
    if adapter is None:
        return labels.public(), []
    return labels.post_process(adapter.label), [adapter]
