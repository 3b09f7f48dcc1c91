"""What is left of the released scores for whoever knows all units but the canaries of an audit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from understudy.auditing.known_rows import LeftOver, seen_from
from understudy.evaluation.texts import encoder
from understudy.evaluation.texts.encoder import Encoder
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.pool import ClientPool, build_pool
from understudy.methods.preference_optimization.queries import schedule_of
from understudy.methods.preference_optimization.release import scores_without_noise
from understudy.methods.preference_optimization.stored import SCORES_FILE, Candidates, load_candidates
from understudy.methods.reading import SumsToRead
from understudy.models.loading import LoadedModel, load_base
from understudy.tensor_files import load_tensors

Numbers = npt.NDArray[np.float64]


def left_over(asked: SumsToRead) -> LeftOver | None:
    """Of the scores of all rounds. None where a mechanism draws who takes part: then nobody knows all other units.

    Raises:
        ArtifactDamaged: candidates or scores of a round are gone.
    """
    config, schedule = asked.settings(PreferenceOptimizationConfig), schedule_of(asked.queries)
    if schedule.sampling_probability < 1:
        return None
    base, sentences = load_base(config), encoder.load_encoder(device=asked.compute.device)
    others, canaries = (
        _pool(table, config, classes=len(asked.label_names), base=base, sentences=sentences)
        for table in (asked.others, asked.canaries)
    )
    added, left = [], []
    for scores in asked.released.behind("scores"):
        (proposed,) = (load_candidates(parent.folder) for parent in scores.parents)
        released = load_tensors(scores.folder / SCORES_FILE)["scores"].double().numpy()
        of_canaries = np.stack([_sum(canaries, proposed, config, only=slot) for slot in range(canaries.slots)])
        added.append(of_canaries)
        left.append(released - _sum(others, proposed, config) - of_canaries.sum(0) / 2)
    return seen_from(
        torch.from_numpy(np.concatenate(added, axis=1)),
        torch.from_numpy(np.concatenate(left)),
        deviation=schedule.noise_multiplier,
    )


def _pool(
    table: pa.Table, config: PreferenceOptimizationConfig, *, classes: int, base: LoadedModel, sentences: Encoder
) -> ClientPool:
    return build_pool(
        table,
        config=config,
        classes=classes,
        tokenizer=base.tokenizer,
        encode=sentences.encode,
        dimension=sentences.dimension,
    )


def _sum(
    pool: ClientPool, proposed: Candidates, config: PreferenceOptimizationConfig, *, only: int | None = None
) -> Numbers:
    """(M,) what the pool's units, or only the one of a slot, add to the scores of a round."""
    mask = np.ones(pool.slots, dtype=np.bool_) if only is None else np.arange(pool.slots) == only
    return scores_without_noise(pool, proposed.embeddings, mask, labels=proposed.labels, config=config)
