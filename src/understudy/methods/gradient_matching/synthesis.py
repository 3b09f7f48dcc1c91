"""From shards of matched texts to a synthetic table: which texts are matched, which are kept. Post-processing.

More texts are matched than are wanted (`filter.oversample`), the paper's filters drop some, and of what is left the
lowest losses of each label fill its share. A label that falls short gets further waves of texts with numbers, and so
random starts, of their own, until it is full or `filter.max_draws` is reached. What balancing alone dropped then fills
it, lowest losses first: the rows were asked for, and no further text is coming that could take their place. A label
that the other filters left short is reported short, not padded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy.artifacts.access import TABLE, VALUE
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.filters import filter_texts
from understudy.methods.gradient_matching.shards import wanted
from understudy.methods.gradient_matching.verbalizer import build_verbalizer
from understudy.models.loading import LoadedModel


@dataclass(frozen=True)
class Selection:
    """Synthetic rows and what was dropped on the way.

    Attributes:
        table: columns `text` (string) and `label` (int32), by label, each label's lowest loss first.
        drawn: texts matched per label name.
        checked: of those, texts that the label check read.
        dropped: label name -> reason -> texts dropped; `surplus`: beyond what was asked for.
        shortfall: label name -> rows wanted but not reached; only where above 0.
        unbalanced: label name -> rows that balancing dropped and that fill its share all the same; only where above 0.
        matching: figures of the optimisation over all matched texts, such as the median losses.
    """

    table: pa.Table = field(repr=False)
    drawn: Mapping[str, int] = field(repr=False)
    checked: Mapping[str, int] = field(repr=False)
    dropped: Mapping[str, Mapping[str, int]] = field(repr=False)
    shortfall: Mapping[str, int] = field(repr=False)
    unbalanced: Mapping[str, int] = field(repr=False)
    matching: Mapping[str, Any] = field(repr=False)

    def report(self) -> dict[str, Any]:
        """The counts and figures as plain JSON values."""
        return {
            "drawn": dict(self.drawn),
            "checked": dict(self.checked),
            "dropped": {name: dict(reasons) for name, reasons in self.dropped.items()},
            "shortfall": dict(self.shortfall),
            "unbalanced": dict(self.unbalanced),
            "matching": dict(self.matching),
        }


def select_texts(
    matched: Sequence[pa.Table],
    *,
    base: LoadedModel,
    config: GradientMatchingConfig,
    label_names: Sequence[str],
) -> Selection:
    """Filter the matched texts by their emitted strings' losses and fill each label's share.

    Args:
        matched: shards, with the columns of `matched.SCHEMA`.
        base: public base model, asked by the label check.
        config: filters and rows wanted.
        label_names: every label, public.

    Raises:
        InputError: the label check's public examples are not usable.
    """
    table = pa.concat_tables(matched)
    texts, labels = table["text"].to_pylist(), np.asarray(table["label"], np.int64)
    losses = np.asarray(table["emitted_loss"], np.float64)
    kept = filter_texts(
        texts,
        losses,
        labels,
        base=base,
        verbalizer=build_verbalizer(base.tokenizer, label_names, config.verbalizer),
        config=config.filter,
        max_length=config.max_length,
    )
    sizes = wanted(config, len(label_names))
    chosen: list[int] = []
    reasons = kept.report(label_names)
    reasons["surplus"] = {}
    refilled: dict[str, int] = {}
    for label, name in enumerate(label_names):
        ranked, spare = (_by_loss(rows[labels[rows] == label], losses) for rows in (kept.rows, kept.spare))
        filled = spare[: max(sizes[label] - len(ranked), 0)]
        chosen += [*ranked[: sizes[label]], *filled]
        reasons["surplus"][name] = len(ranked) - len(ranked[: sizes[label]])
        if filled:
            refilled[name] = len(filled)
            reasons["unbalanced"][name] -= len(filled)
    found = Counter(int(labels[row]) for row in chosen)
    short = {name: sizes[i] - found[i] for i, name in enumerate(label_names) if sizes[i] > found[i]}
    return Selection(
        table=table.select(["text", "label"]).take(pa.array(chosen, pa.int64())),
        drawn={name: int((labels == i).sum()) for i, name in enumerate(label_names)},
        checked=dict(zip(label_names, kept.checked, strict=True)),
        dropped={name: {why: counts[name] for why, counts in reasons.items()} for name in label_names},
        shortfall=short,
        unbalanced=refilled,
        matching=_figures(table, losses, chosen),
    )


def _by_loss(rows: np.ndarray[Any, np.dtype[np.int64]], losses: np.ndarray[Any, np.dtype[np.float64]]) -> list[int]:
    ranked: list[int] = rows[np.argsort(losses[rows], kind="stable")].tolist()
    return ranked


def _figures(table: pa.Table, losses: np.ndarray[Any, np.dtype[np.float64]], chosen: Sequence[int]) -> dict[str, Any]:
    """Medians over texts: 1 - cosine to the target, and how far X and its projection are apart, per round."""
    rounds = {name: np.asarray(table[name].to_pylist(), np.float64) for name in ("relaxed", "losses", "residuals")}
    return {
        "emitted_loss_median": float(np.median(losses)),
        "kept_loss_median": float(np.median(losses[list(chosen)])) if chosen else None,
        **{f"{name}_by_round": np.median(values, axis=0).tolist() for name, values in rounds.items()},
        "swapped_by_sweep": np.median(np.asarray(table["swapped"].to_pylist(), np.float64), axis=0).tolist(),
    }


def write_selection(selection: Selection, folder: Path) -> None:
    """Write the rows and, beside them, how many were matched and why some were dropped."""
    pq.write_table(selection.table.combine_chunks(), folder / TABLE, compression="zstd")
    (folder / VALUE).write_text(json.dumps(selection.report(), sort_keys=True) + "\n")
