"""The tasks and the flow of `voted_texts`."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from prefect import flow

from understudy.artifacts.access import TABLE, VALUE, ArtifactRef, path_of, read_table, store_for, write_json
from understudy.baselines.private_evolution import threshold
from understudy.baselines.votes import Samples, release_votes, survival
from understudy.data import tables
from understudy.flows.paid_run import paid_run
from understudy.privacy import labels
from understudy.privacy.dpsgd.plan import DpSgdPlan, Stream
from understudy.privacy.queries import Queries
from understudy.runs.exported import Exported
from understudy.runs.request import RunRequest
from understudy.tasks.charge_receipt import ChargeReceipt, open_mechanisms, write_released
from understudy.tasks.charging import finalize
from understudy.tasks.engine.runtime import code_digest, task
from voted_texts.method import VotedTextsConfig


def candidates(config: VotedTextsConfig) -> list[str]:
    """The public texts that are voted on."""
    texts: list[str] = tables.check_texts(tables.read_source(config.seeds))["text"].to_pylist()
    return texts[: config.candidates]


def votes_plan_of(queries: Queries) -> DpSgdPlan:
    """The charged query as the baseline reads it."""
    (query,) = queries
    name, _, stream = query.name.partition("/")
    return DpSgdPlan(
        name=name,
        n=query.units,
        sampling_probability=query.sampling_probability,
        steps=query.steps,
        streams=(Stream(name=stream, l2_clip_norm=query.sensitivity, noise_multiplier=query.noise_multiplier),),
    )


@task(name="vote")
def vote(rows: ArtifactRef, receipt: ChargeReceipt, config: VotedTextsConfig) -> ArtifactRef:
    """The noised votes: everything that the charge pays for."""
    import torch

    from understudy.evaluation.texts.encoder import load_encoder
    from understudy.tensor_files import save_tensors

    table, encode = read_table(rows), load_encoder().encode
    slots: dict[bytes, int] = {}
    owners = [slots.setdefault(unit, len(slots)) for unit in table["unit_id"].to_pylist()]
    samples = Samples(encode(table["text"].to_pylist()), np.array(owners, np.int64), receipt.queries[0].units)
    mechanisms = open_mechanisms(receipt)
    plan = votes_plan_of(receipt.queries)
    votes = release_votes(samples, encode(candidates(config)), plan=plan, mechanisms=mechanisms, round=0)
    with write_released(receipt, kind="votes") as draft:
        save_tensors(draft.path / "votes.safetensors", {"votes": torch.from_numpy(votes)})
    return draft.ref


@task(name="keep-texts")
def keep_texts(votes: ArtifactRef, config: VotedTextsConfig, queries: Queries) -> ArtifactRef:
    """The candidates with the most votes above the threshold: post-processing."""
    from understudy.tensor_files import load_tensors

    found = load_tensors(path_of(votes) / "votes.safetensors")["votes"].numpy()
    share = survival(found, threshold=threshold(config.evolution, votes_plan_of(queries)))
    texts = candidates(config)
    kept = [texts[i] for i in np.argsort(-share, kind="stable") if share[i] > 0][: config.samples]
    label = labels.post_process(votes.label)
    facts = {"drawn": {"all": len(texts)}, "dropped": {"all": {"few votes": len(texts) - len(kept)}}, "shortfall": {}}
    with store_for(label).write(kind="synthetic", label=label, parents=[votes]) as draft:
        pq.write_table(pa.table({"text": kept}), draft.path / TABLE)
        (draft.path / VALUE).write_text(json.dumps(facts))
    return draft.ref


@task(name="compare-texts")
def compare_texts(synthetic: ArtifactRef, rows: ArtifactRef, test: ArtifactRef) -> ArtifactRef:
    """What any texts can be compared by; the figures read private texts and are private."""
    from understudy.evaluation.measure import measure_diversity, measure_memorization
    from understudy.evaluation.metrics import merge

    refs = [synthetic, rows, test]
    made, real, unseen = (read_table(ref)["text"].to_pylist() for ref in refs)
    metrics = merge(measure_diversity(made, unseen, seed=0), measure_memorization(made, real, unseen, seed=0))
    label = labels.private(*labels.join(*(ref.label for ref in refs)).sources)
    return write_json(metrics.model_dump(mode="json"), kind="metrics", label=label, parents=refs)


@flow(name="voted-texts", persist_result=True)
def voted_texts(request: RunRequest) -> Exported:
    """Texts of private clients in, the public texts that they vote for out."""
    with paid_run(request, VotedTextsConfig, code_digest(vote.fn)) as run:
        votes = finalize(run.receipt, vote(run.rows[0], run.receipt, run.charged))
        synthetic = keep_texts(votes, run.config, run.plan.queries)
        return run.export(votes, synthetic, compare_texts(synthetic, *run.rows))
