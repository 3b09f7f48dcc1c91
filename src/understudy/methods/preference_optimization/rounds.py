"""One round as the server sees it: candidates out, noisy scores in, a better policy; and the texts in the end.

POPri, algorithm 1: lines 4 to 6 (`propose`), 21 to 26 (`prefer`), 28 (`write_texts`). Everything here is public or a
function of released scores; no private text comes near it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from torch import Tensor

from understudy.addresses import public_address
from understudy.methods.preference_optimization.candidates import continue_prompts, request_continuations
from understudy.methods.preference_optimization.config import CandidateConfig, PreferenceOptimizationConfig
from understudy.methods.preference_optimization.dpo import train_round, untrained
from understudy.methods.preference_optimization.dpo_pairs import NothingLearnt, Pairs, encode_pairs
from understudy.methods.preference_optimization.preferences import drop_identical, preference_pairs
from understudy.methods.preference_optimization.prompts import RoundSeed, round_prompts
from understudy.methods.preference_optimization.stored import CANDIDATE_SCHEMA, Candidates
from understudy.models.adapters import Adapter
from understudy.models.checkpoints import TrainingCheckpoint
from understudy.models.loading import LoadedModel
from understudy.progress import Progress

FloatArray = npt.NDArray[np.float32]

_REDRAWS = 3


def propose(
    policy: LoadedModel,
    seeds: Sequence[str],
    *,
    config: PreferenceOptimizationConfig,
    label_names: Sequence[str],
    round: int,
    encode: Callable[[Sequence[str]], FloatArray],
    answers: Path | None = None,
    progress: Progress | None = None,
) -> Candidates:
    """Prompt the policy and embed what it writes.

    Args:
        policy: base model with the last round's adapter; with an endpoint, only its tokenizer and context count.
        seeds: public texts.
        config: candidates, endpoint, public seed.
        label_names: labels that texts are made for, empty without.
        round: number of the round.
        encode: sentence encoder.
        answers: folder of an endpoint's answers to this step; not needed without one.
        progress: called with (texts drawn, texts).
    """
    table = _draw(
        policy,
        seeds,
        config=_served(config, round),
        shape=config.candidates,
        labels=list(enumerate(label_names)) or [(0, None)],
        round=round,
        answers=answers,
        done=progress,
    )
    return Candidates(table=table, embeddings=encode(table["text"].to_pylist()))


def prefer(
    base: LoadedModel,
    previous: Adapter | None,
    candidates: Candidates,
    scores: Tensor,
    *,
    config: PreferenceOptimizationConfig,
    round: int,
    folder: Path,
    progress: Progress | None = None,
) -> tuple[Adapter, dict[str, int]]:
    """Rank the candidates by their noisy scores and train the adapter on the pairs.

    Where there is nothing to learn, since chosen and rejected text are the same for every prompt or no pair fits the
    context, and where training moves nothing or ends in numbers that are not finite, the adapter stays as it is. The
    charge is paid by then, and without noise a run that ends here would tell of the clients to whoever sees how it
    ended; `evaluation.measure_rounds` says it in the report.

    Args:
        base: public base model.
        previous: the last round's adapter; None in the first.
        candidates: of this round.
        scores: (M,) released.
        config: preferences.
        round: number of the round.
        folder: temporary, for the trainer.
        progress: called with (steps done, steps).

    Returns:
        The adapter; and how many pairs there were, how many were dropped and how many it was trained on.
    """
    texts, prompts = candidates.table["text"].to_pylist(), candidates.table["prompt"].to_pylist()
    ranked = preference_pairs(
        scores.numpy(),
        per_prompt=config.candidates.per_prompt,
        rejected_rank=config.preferences.rejected_rank,
    )
    kept = drop_identical(ranked, texts)
    pairs = Pairs(
        prompts=[prompts[chosen] for chosen, _ in kept.pairs],
        chosen=[texts[chosen] for chosen, _ in kept.pairs],
        rejected=[texts[rejected] for _, rejected in kept.pairs],
        in_chat=config.candidates.in_chat,
    )
    try:
        if not pairs.prompts:
            raise NothingLearnt("every prompt's texts are the same")
        rows = encode_pairs(base, pairs)
        fitting = len(rows["prompt_ids"])
        adapter = train_round(
            base,
            previous,
            rows=rows,
            config=config.preferences,
            public_seed=config.public_seed,
            round=round,
            folder=folder,
            checkpoint=TrainingCheckpoint(folder / "steps", every=None),
            progress=None if progress is None else lambda step, steps, _: progress(step, steps),
        )
    except NothingLearnt:
        adapter = untrained(base, previous, config=config.preferences, public_seed=config.public_seed)
        fitting = 0
    return adapter, {"pairs": len(kept.pairs), "identical": kept.identical, "trained": fitting}


def write_texts(
    policy: LoadedModel,
    seeds: Sequence[str],
    *,
    config: PreferenceOptimizationConfig,
    label_names: Sequence[str],
    trained: bool,
    answers: Path | None = None,
    progress: Progress | None = None,
) -> tuple[pa.Table, dict[str, Any]]:
    """The synthetic texts: one per prompt, `samples` in all, shared out equally over labels.

    Empty texts are dropped and counted, and drawn again from further prompts a few times.

    Args:
        policy: base model with the last adapter, or without.
        seeds: public texts.
        config: candidates, endpoint, rounds, public seed, number of texts.
        label_names: labels that texts are made for, empty without.
        trained: whether this is the policy after the last round, which an endpoint serves under another name.
        answers: folder of an endpoint's answers to this step; not needed without one.
        progress: called with (texts drawn, texts).

    Returns:
        A table with `text` and `label` (null without labels), and what was drawn, dropped and is missing, per label.
    """
    names = list(label_names) or [""]
    served = _served(config, config.rounds if trained else 0)
    wanted = {name: config.samples // len(names) + (i < config.samples % len(names)) for i, name in enumerate(names)}
    kept: dict[str, list[str]] = {name: [] for name in names}
    drawn, dropped = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for attempt in range(_REDRAWS):
        for index, name in enumerate(names):
            missing = wanted[name] - len(kept[name])
            if missing == 0:
                continue
            shape = config.candidates.model_copy(update={"prompts": missing, "per_prompt": 1})
            table = _draw(
                policy,
                seeds,
                config=served,
                shape=shape,
                labels=[(index, name if label_names else None)],
                round=config.rounds + attempt,
                answers=answers,
                done=progress,
            )
            texts = [text for text in table["text"].to_pylist() if text]
            drawn[name] += missing
            dropped[name] += missing - len(texts)
            kept[name] += texts
    labels = [index if label_names else None for index, name in enumerate(names) for _ in kept[name]]
    table = pa.table(
        {
            "text": pa.array([text for name in names for text in kept[name]], pa.string()),
            "label": pa.array(labels, pa.int32()),
        }
    )
    facts = {
        "drawn": drawn,
        "dropped": {name: {"empty": dropped[name]} for name in names},
        "shortfall": {name: wanted[name] - len(kept[name]) for name in names},
    }
    return table, facts


def _served(config: PreferenceOptimizationConfig, round: int) -> PreferenceOptimizationConfig:
    """The settings with the name under which the policy of a round is served."""
    name = config.endpoint.model.replace("{round}", str(round))
    return config.model_copy(update={"endpoint": config.endpoint.model_copy(update={"model": name})})


def _draw(
    policy: LoadedModel,
    seeds: Sequence[str],
    *,
    config: PreferenceOptimizationConfig,
    shape: CandidateConfig,
    labels: Sequence[tuple[int, str | None]],
    round: int,
    answers: Path | None,
    done: Progress | None,
) -> pa.Table:
    """Prompts and continuations, label after label; the number of a label decides which random numbers its texts use.

    Two labels that were drawn with the same numbers would give texts that resemble each other place by place.
    """
    columns: dict[str, list[Any]] = {"prompt": [], "text": [], "label": []}
    for index, name in labels:
        seed = RoundSeed(round, config.public_seed + index)
        prompts = round_prompts(seeds, shape, loaded=policy, seed=seed, label=name, about=config.about)
        columns["text"] += _continue(policy, prompts, config=config, shape=shape, seed=seed, answers=answers, done=done)
        columns["prompt"] += [prompt for prompt in prompts for _ in range(shape.per_prompt)]
        columns["label"] += [index if name is not None else None] * len(prompts) * shape.per_prompt
    return pa.table(columns, schema=CANDIDATE_SCHEMA)


def _continue(
    policy: LoadedModel,
    prompts: Sequence[str],
    *,
    config: PreferenceOptimizationConfig,
    shape: CandidateConfig,
    seed: RoundSeed,
    answers: Path | None,
    done: Progress | None,
) -> list[str]:
    if config.endpoint.url is None:
        return continue_prompts(policy, prompts, shape, seed=seed, progress=done)
    if answers is None:
        raise ValueError(
            f"answers=None: expected a folder for the answers of endpoint.url={public_address(config.endpoint.url)}"
        )
    return request_continuations(
        policy, prompts, shape, endpoint=config.endpoint, seed=seed, kept=answers, progress=done
    )
