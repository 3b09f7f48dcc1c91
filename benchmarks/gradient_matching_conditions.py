"""How the conditions of the gradient-matching benchmark make their rows, and a cell's figures.

What is matched, filtered and compared with plain samples is scored by the released target alone.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from cells import read as read_cell
from cells import write
from gradient_matching_data import (
    DATASETS,
    Cell,
    Settings,
    configure,
    digest_of,
    embeddings,
    read,
    subset,
    taken,
)
from gradient_matching_measures import full_reports, losses, tune, verdicts
from gradient_matching_release import register_source, release, yardstick
from simulation import model_of

from understudy.baselines import prompting, selection
from understudy.errors import InputError
from understudy.evaluation.rows import LabelledTexts, labelled_texts
from understudy.generation.config import SamplingConfig
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.optimise import instruction_of, match_shard
from understudy.methods.gradient_matching.shards import shards
from understudy.methods.gradient_matching.synthesis import select_texts

Made = tuple[LabelledTexts | None, dict[str, Any]]  # rows to fine-tune on, and what is known of them

MATCHED, PLAIN, UNTUNED = "gradient matching", "plain samples", "untuned"
_LONGEST = 64  # tokens of a prompted text, as in the flow


def figures(settings: Settings, cell: Cell) -> dict[str, Any]:
    """All figures of a cell, or the reports that a finished one lacks; `texts` holds its rows, never published."""
    began = time.process_time()
    earlier = read_cell(cell.name, settings.cache, digest=digest_of(settings, cell))
    if settings.full_reports and earlier is not None and "texts" in earlier:
        return earlier | {"reports": reports_of(settings, cell, earlier["texts"])}
    rows, facts = make(settings, cell)
    made = time.process_time()
    result: dict[str, Any] = {**facts, "making_cpu_seconds": made - began}
    if rows is None and cell.condition != UNTUNED:
        return result
    correct, tuned = {}, []
    for model in settings.models:
        tuned.append(tune(settings, cell, model, rows))
        found = verdicts(settings, cell, model, tuned[-1])
        correct[model] = "".join("01"[int(right)] for right in found.correct)
    result |= {"correct": correct, "tuning_cpu_seconds": time.process_time() - made}
    if rows is None:
        return result
    result["rows"] = len(rows.texts)
    if len(rows.texts) <= 10 * settings.samples:
        result["texts"] = [[int(label), text] for label, text in zip(rows.labels, rows.texts, strict=True)]
        result["head_loss_median"] = float(np.median(losses(yardstick(settings, cell), rows)))
        if settings.full_reports and cell.seed == 0:
            result["reports"] = full_reports(settings, cell, rows, tuned[0])
    return result


def reports_of(settings: Settings, cell: Cell, texts: list[tuple[int, str]]) -> dict[str, Any]:
    """The reports of rows that were made and judged before."""
    labels = np.asarray([label for label, _ in texts], np.int64)
    rows = LabelledTexts([text for _, text in texts], labels, DATASETS[cell.dataset].label_names)
    return full_reports(settings, cell, rows, tune(settings, cell, settings.models[0], rows))


def make(settings: Settings, cell: Cell) -> Made:
    """The rows of a condition, and public facts of how they were made."""
    train = read(settings.data, cell.dataset, "train")
    if cell.condition == MATCHED:
        return matched(settings, cell)
    if cell.condition == PLAIN:
        return None, plain_samples(settings, cell)
    if cell.condition == UNTUNED:
        return None, {}
    if cell.condition == "zero-shot":
        return zero_shot(settings, cell.dataset, cell.seed), {}
    if cell.condition == "few-shot":
        return few_shot(settings, cell), {}
    if cell.condition == "real rows":
        return subset(train, taken(settings, cell)), {}
    return subset(train, chosen_rows(settings, cell)), {}


def matched(settings: Settings, cell: Cell) -> Made:
    """Release, match, select: the flow's steps, the target from cached states."""
    config = configure(settings, cell)
    register_source(settings, cell)
    target, facts = release(settings, cell, config)
    base, names = model_of(config.model), DATASETS[cell.dataset].label_names
    parts = [
        match_shard(base, target, config=config, examples=part, public_seed=cell.seed)
        for part in shards(config, len(names))
    ]
    try:
        selected = select_texts(parts, base=base, config=config, label_names=names)
    except InputError as refused:  # the filters kept nothing: that is this cell's result
        return None, facts | {"refused": str(refused)}
    emitted = [[row["label"], row["example"], row["emitted_loss"]] for part in parts for row in part.to_pylist()]
    prompted = losses(target, zero_shot(settings, cell.dataset, cell.seed))
    facts |= selected.report() | {
        "emitted_losses": emitted,  # label, number, loss of every matched string, before any filter
        "projected_loss_median": float(np.median(np.concatenate([part["projected_loss"] for part in parts]))),
        "zero_shot_loss_median": float(np.median(prompted)),
    }
    return labelled_texts(selected.table, names), facts


def zero_shot(settings: Settings, dataset: str, seed: int) -> LabelledTexts:
    """Public texts of the instruction alone, drawn once per data set and seed."""
    path = settings.cache / f"{dataset}-zero-shot-{settings.samples}-seed-{seed}.json"
    return drawn(settings, dataset, path, rows=settings.samples, longest=_LONGEST, seed=seed)


def drawn(settings: Settings, dataset: str, path: Path, *, rows: int, longest: int, seed: int) -> LabelledTexts:
    """Prompted texts from a file, or drawn and written there."""
    declared, config = DATASETS[dataset], configure(settings, Cell(dataset, "zero-shot", 0, seed=seed))
    if not path.exists():
        table = prompting.zero_shot(
            model_of(config.model),
            declared.label_names,
            rows,
            instruction=instruction_of(config),
            sampling=SamplingConfig(max_new_tokens=longest),
            public_seed=seed,
        )
        write(path, table.to_pydict())
    found = json.loads(path.read_text())
    return LabelledTexts(found["text"], np.asarray(found["label"]), declared.label_names)


def few_shot(settings: Settings, cell: Cell) -> LabelledTexts:
    """Texts after real examples: as private as these."""
    declared, config = DATASETS[cell.dataset], configure(settings, cell)
    shown = subset(read(settings.data, cell.dataset, "train"), taken(settings, cell))
    table = prompting.few_shot(
        model_of(config.model),
        shown,
        settings.samples,
        instruction=instruction_of(config),
        sampling=SamplingConfig(max_new_tokens=_LONGEST),
        public_seed=cell.seed,
    )
    return labelled_texts(table, declared.label_names)


def chosen_rows(settings: Settings, cell: Cell) -> np.ndarray[Any, np.dtype[np.int64]]:
    """As many real rows as there are synthetic ones, chosen among all."""
    labels = np.asarray(read(settings.data, cell.dataset, "train").labels)
    classes = len(DATASETS[cell.dataset].label_names)
    each = {"classes": classes, "per_class": max(settings.samples // classes, 1)}
    if cell.condition == "random":
        return np.concatenate(selection.random_rows(labels, **each, generator=np.random.default_rng(cell.seed)))
    choose = {"herding": selection.herding, "k-center": selection.k_center}[cell.condition]
    return np.concatenate(choose(embeddings(settings, cell.dataset, "train"), labels, **each))


def plain_samples(settings: Settings, cell: Cell) -> dict[str, Any]:
    """The losses of zero-shot text and of the best of as many plain samples as one matched text's passes buy."""
    config = configure(settings, cell)
    register_source(settings, cell)
    target, facts = release(settings, cell, config)
    counts = samples_bought(config)
    most, rows = max(counts.values()), settings.compared
    length = config.length
    path = settings.cache / f"{cell.dataset}-plain-{rows}x{most}-{length}-seed-{cell.seed}.json"
    pool = drawn(settings, cell.dataset, path, rows=rows * most, longest=int(length), seed=10_000 + cell.seed)
    found, labels = losses(target, pool), np.asarray(pool.labels)
    own = {label: found[labels == label].reshape(-1, most) for label in sorted(set(labels.tolist()))}
    # Text i of a label has `most` samples of its own, of which it takes the first `count`: none counts for two texts.
    best = {
        name: [
            [label, i, float(text[:count].min())] for label, of_label in own.items() for i, text in enumerate(of_label)
        ]
        for name, count in counts.items()
    }
    prompted = zero_shot(settings, cell.dataset, cell.seed)
    return facts | {
        "samples_bought": counts,
        "plain_loss_median": float(np.median(found)),
        "best_losses": best,
        "zero_shot_losses": [
            [int(label), float(loss)] for label, loss in zip(prompted.labels, losses(target, prompted), strict=True)
        ],
    }


def samples_bought(config: GradientMatchingConfig) -> dict[str, int]:
    """Plain samples that cost what one matched text costs, by three ways of counting.

    A forward pass is one text of `length` tokens going once through the model, whether as a whole (an inner step, a
    score) or token by token with a cache (a projection, a sample). A matched text takes one per inner step, with
    the warm start's; one per projection, the last included; one for f(Z) of each round and two for the projected
    tokens and the emitted string; per sweep of swaps one for the gradient, one for the proposals, one per swap tried
    and one for all together. A plain sample takes two: to be written and to be scored.

    - `forward`: forward passes alone, as the claim says.
    - `forward_and_backward`: each backward pass counts as one more. It reaches the embeddings only, so it multiplies
      by each weight once, as a forward pass does. The most favourable count to the plain samples, and the headline.
    - `calls`: calls of the model, where a token at a time is a call: the least favourable.
    """
    matching, length = config.matching, int(config.length)
    inner, projections, scores = (matching.rounds + 1) * matching.inner_steps, matching.rounds + 1, matching.rounds + 2
    sweeps = matching.swap_sweeps
    swaps = 1 + sweeps * (min(matching.swap_width, length) + 3)
    return {
        "calls": (inner + projections * length + scores + swaps) // (length + 1),
        "forward": (inner + projections + scores + swaps) // 2,
        "forward_and_backward": (2 * inner + projections + scores + swaps + sweeps) // 2,
    }
