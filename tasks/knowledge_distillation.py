"""The steps of knowledge distillation as tasks, in two zones.

Client zone: train the adapter, send it, take the better one back, measure. Server zone: write pairs with it, have them
answered, tune it. What goes from client to server is a sealed adapter and nothing else. At epsilon inf nothing may go
to the server, so the same steps run in the client zone.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from understudy.addresses import public_address
from understudy.artifacts.access import TABLE, VALUE, ArtifactRef, path_of, read_table, store_for
from understudy.errors import ZoneError
from understudy.frozen import Frozen
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.privacy import labels
from understudy.progress import Course
from understudy.runs.request import Profile
from understudy.settings import private_directory, settings
from understudy.tasks.charge_receipt import ChargeReceipt, open_mechanisms, write_released
from understudy.tasks.engine.cache_key import references
from understudy.tasks.engine.runtime import (
    Zone,
    checkpoint_directory,
    compute,
    in_either_zone,
    progress,
    progress_on,
    task,
)
from understudy.tasks.evaluation import MeasuredTables, sentence_embedder, write_metrics

ADAPTER = "adapter.safetensors"


@task(name="train")
def train(rows: ArtifactRef, receipt: ChargeReceipt, config: KnowledgeDistillationConfig) -> ArtifactRef:
    """DP fine-tuning: everything that the charge pays for. The adapter is sealed for this zone itself."""
    from understudy.generation.instructions import pairs_of
    from understudy.methods.knowledge_distillation import crossing
    from understudy.methods.knowledge_distillation.base import shared_base
    from understudy.methods.knowledge_distillation.queries import Asked, schedule_of
    from understudy.methods.knowledge_distillation.train import PrivatePairs, train_on_pairs
    from understudy.models.checkpoints import TrainingCheckpoint

    adapter = train_on_pairs(
        PrivatePairs(pairs_of(read_table(rows))),
        Asked(config, schedule_of(receipt.queries), open_mechanisms(receipt)),
        base=shared_base(config, compute()),
        course=Course(TrainingCheckpoint(checkpoint_directory(), every=config.train.checkpoint_every), progress),
    )
    with write_released(receipt, kind="adapter") as draft:
        crossing.send(
            adapter,
            draft.path,
            label=receipt.label,
            charge=receipt.charge_id,
            way=crossing.KEPT,
            sender="client",
            receiver=crossing.key_from(crossing.key_of("client")),
            facts={"model_digest": config.model_digest},
        )
    return draft.ref


@task(name="send")
def send(adapter: ArtifactRef, charge: str, receiver: str, config: KnowledgeDistillationConfig) -> ArtifactRef:
    """The adapter, sealed for the zone that works on.

    Args:
        adapter: of `train`.
        charge: that paid for it.
        receiver: public key of that zone.
        config: the charged settings.
    """
    from understudy.methods.knowledge_distillation import crossing

    label = labels.post_process(adapter.label)
    with store_for(label).write(kind="bundle", label=label, parents=[adapter]) as draft:
        crossing.send(
            _kept(adapter, charge),
            draft.path,
            label=label,
            charge=charge,
            way=crossing.TO_SERVER,
            sender="client",
            receiver=crossing.key_from(receiver),
            facts={"model_digest": config.model_digest},
        )
    return draft.ref


@in_either_zone("write-pairs")
def write_pairs(
    bundle: ArtifactRef | None, charge: str, zone: Zone, config: KnowledgeDistillationConfig
) -> ArtifactRef:
    """Synthetic pairs: instructions of the DP model, filtered, answered by the professional one, ranked.

    Args:
        bundle: of `send`; None: pairs of the base model, to compare with.
        charge: that paid for it.
        zone: where this runs.
        config: the run's settings.

    Raises:
        ZoneError: an endpoint would see instructions of a private model.
    """
    import pyarrow.parquet as pq

    from understudy.methods.knowledge_distillation.distil import dp_model, synthesise

    if bundle is not None and bundle.is_private and config.professional.url is not None:
        raise ZoneError(
            f"professional.url={public_address(config.professional.url)}: expected a released adapter, found one that "
            f"is {bundle.label}; what it writes stays in the client zone: leave professional.url out"
        )
    adapter = None if bundle is None else _sent(bundle, charge, zone)
    synthesis = synthesise(
        dp_model(config, adapter, compute()),
        config,
        answers=private_directory(settings().private_root / "endpoint-answers"),
        compute=compute(),
        progress=progress_on(bundle),
    )
    label = labels.public() if bundle is None else labels.post_process(bundle.label)
    kind = "prompt-only" if bundle is None else "synthetic"
    with store_for(label).write(kind=kind, label=label, parents=[] if bundle is None else [bundle]) as draft:
        pq.write_table(synthesis.table.combine_chunks(), draft.path / TABLE, compression="zstd")
        (draft.path / VALUE).write_text(json.dumps(synthesis.facts, sort_keys=True) + "\n")
    return draft.ref


@in_either_zone("improve")
def improve(
    bundle: ArtifactRef,
    pairs: ArtifactRef,
    charge: str,
    zone: Zone,
    receiver: str,
    config: KnowledgeDistillationConfig,
) -> ArtifactRef:
    """The adapter tuned on the pairs without noise, sealed for the client zone.

    Args:
        bundle: of `send`.
        pairs: of `write_pairs`.
        charge: that paid for it.
        zone: where this runs.
        receiver: public key of the client zone.
        config: the run's settings.
    """
    from understudy.methods.knowledge_distillation import crossing, distil
    from understudy.methods.knowledge_distillation.base import shared_base
    from understudy.models.checkpoints import TrainingCheckpoint

    adapter = distil.improve(
        shared_base(config, compute()),
        _sent(bundle, charge, zone),
        _pairs(pairs),
        config,
        course=Course(
            TrainingCheckpoint(checkpoint_directory(), every=config.tune.checkpoint_every), progress_on(pairs)
        ),
    )
    label = labels.post_process(labels.join(bundle.label, pairs.label))
    with store_for(label).write(kind="bundle", label=label, parents=[bundle, pairs]) as draft:
        crossing.send(
            adapter,
            draft.path,
            label=label,
            charge=charge,
            way=crossing.to_client(pairs.id, config),
            sender=zone,
            receiver=crossing.key_from(receiver),
            facts={"model_digest": config.model_digest},
        )
    return draft.ref


@in_either_zone("tune-base")
def tune_base(pairs: ArtifactRef, config: KnowledgeDistillationConfig) -> ArtifactRef:
    """A fresh adapter tuned as `improve` tunes the client's: the method without its private half, to compare with.

    Args:
        pairs: of `write_pairs` without an adapter.
        config: the run's settings.
    """
    from understudy.methods.knowledge_distillation import distil
    from understudy.methods.knowledge_distillation.base import shared_base
    from understudy.models.checkpoints import TrainingCheckpoint
    from understudy.tensor_files import save_tensors

    adapter = distil.improve(
        shared_base(config, compute()),
        None,
        _pairs(pairs),
        config,
        course=Course(TrainingCheckpoint(checkpoint_directory(), every=config.tune.checkpoint_every), progress),
    )
    label = labels.post_process(pairs.label)
    with store_for(label).write(kind="control-adapter", label=label, parents=[pairs]) as draft:
        save_tensors(draft.path / ADAPTER, adapter)
    return draft.ref


@task(name="publish")
def publish(
    bundle: ArtifactRef, pairs: ArtifactRef, charge: str, sender: Zone, config: KnowledgeDistillationConfig
) -> ArtifactRef:
    """The better adapter, opened and merged: a model that transformers alone can load.

    Args:
        bundle: of `improve`.
        pairs: that it was tuned on.
        charge: that paid for it.
        sender: zone that sealed it.
        config: the run's settings.
    """
    from understudy.methods.knowledge_distillation.distil import dp_model
    from understudy.models.checkpoints import export_model

    model = dp_model(config, _returned(bundle, pairs, charge, sender, config), compute().in_float32)
    label = labels.post_process(bundle.label)
    with store_for(label).write(kind="model", label=label, parents=[bundle]) as draft:
        export_model(model.model, model.tokenizer, draft.path)
    return draft.ref


class EvaluationRefs(Frozen):
    """What the evaluation of a finished run reads.

    Attributes:
        tables: pairs, synthetic and real.
        adapter: of `train`.
        bundle: of `improve`.
        control: of `tune_base`.
    """

    tables: MeasuredTables
    adapter: ArtifactRef
    bundle: ArtifactRef
    control: ArtifactRef


@task(name="evaluate-pairs")
def evaluate_pairs(
    inputs: EvaluationRefs, charge: str, sender: Zone, config: KnowledgeDistillationConfig, profile: Profile
) -> ArtifactRef:
    """Measure the pairs and the models; the figures read private pairs and are private."""
    from understudy.methods.knowledge_distillation.distil import dp_model
    from understudy.methods.knowledge_distillation.evaluation import EvaluationInputs, evaluate_run
    from understudy.tensor_files import load_tensors

    kept = _kept(inputs.adapter, charge)
    returned = _returned(inputs.bundle, inputs.tables.synthetic, charge, sender, config.unmeasured)
    control = load_tensors(path_of(inputs.control) / ADAPTER)
    adapters = {"base": None, "public_only": control, "dp_only": kept, "target": returned}
    metrics = evaluate_run(
        EvaluationInputs(
            synthetic=_pairs(inputs.tables.synthetic),
            prompt_only=_pairs(inputs.tables.prompt_only),
            train=_pairs(inputs.tables.train),
            test=_pairs(inputs.tables.test),
            models={name: partial(dp_model, config, adapter, compute()) for name, adapter in adapters.items()},
            sent_bytes=_size(path_of(inputs.bundle)),
        ),
        config=config,
        profile=profile,
        embedder=sentence_embedder(),
        compute=compute(),
        progress=progress,
    )
    return write_metrics(metrics, list(references(inputs)))


def _kept(adapter: ArtifactRef, charge: str) -> Any:
    """The adapter as the client zone keeps it."""
    from understudy.methods.knowledge_distillation import crossing

    return crossing.receive(
        path_of(adapter), label=adapter.label, charge=charge, way=crossing.KEPT, sender="client", receiver="client"
    )


def _sent(bundle: ArtifactRef, charge: str, zone: Zone) -> Any:
    """The adapter as the working zone receives it."""
    from understudy.methods.knowledge_distillation import crossing

    return crossing.receive(
        path_of(bundle), label=bundle.label, charge=charge, way=crossing.TO_SERVER, sender="client", receiver=zone
    )


def _returned(
    bundle: ArtifactRef, pairs: ArtifactRef, charge: str, sender: Zone, config: KnowledgeDistillationConfig
) -> Any:
    """The adapter that was tuned on some pairs, as it came back."""
    from understudy.methods.knowledge_distillation import crossing

    way = crossing.to_client(pairs.id, config)
    return crossing.receive(
        path_of(bundle), label=bundle.label, charge=charge, way=way, sender=sender, receiver="client"
    )


def _pairs(ref: ArtifactRef) -> list[Any]:
    """The pairs of a stored table, null records left out."""
    from understudy.generation.instructions import pairs_of

    return [pair for pair in pairs_of(read_table(ref)) if pair is not None]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
