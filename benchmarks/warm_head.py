"""Claim: a head fitted on the public model's own texts, labelled by their prompts, knows few labels of real rows.

    python benchmarks/warm_head.py OUT.json --data FOLDER [--models NAME ...] [--tables NAME ...] [--per-label 128]

Steering follows a head, and at small epsilon the head hardly learns. One that starts from own texts costs no charge.
For each model and table a logistic regression on mean states of the untrained model is fitted on own texts, of
growing number, and asked about real test rows. Beside it stand the share of the commonest label, and the same
classifier of 1,000 real rows without privacy, which is what a head could know. Scores cut at their medians do not
count a shift of all of them. Intervals are Wilson's, 95 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from defaults import TABLES
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tables import interval_text, print_table, write_figures

from understudy.generation.own_texts import write_own_texts
from understudy.generation.prompts import build_prompts
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.model import MultitaskModel, TrainedModel
from understudy.methods.conditional_generation.states import text_states
from understudy.models.loading import LoadedModel, load_model

_REAL = 1000
Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Labelled:
    """Texts and the index of each one's label."""

    texts: list[str]
    labels: list[int]


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    lines, figures = [], []
    for name in options.models:
        base = load_model(name)
        for table in options.tables:
            found = measured(base, table, options.data / table, per_label=options.per_label, rows=options.rows)
            figures.append({"model": name, "table": table, **found})
            shown = {key: interval_text(value) for key, value in found.items()}
            lines.append({"model": name, "table": table, **shown})
            print_table(lines[-1:])
    print_table(lines, "share of real test rows that a head is right about, by what it was fitted on")
    write_figures(options.out, {"heads": figures}, per_label=options.per_label, rows=options.rows)


def measured(base: LoadedModel, table: str, folder: Path, *, per_label: int, rows: int) -> dict[str, Interval]:
    """Share of real test rows that each head is right about, with its interval, by what the head was fitted on."""
    split, names, about = TABLES[table]
    label_names = [one.partition("=")[2] for one in names.split(",")]
    config = ConditionalGenerationConfig(model=base.name, about=about)
    prompts = build_prompts(base.tokenizer, label_names, config.prompt, about=about)
    plain = TrainedModel(MultitaskModel(base.model), base.tokenizer, tuple(label_names), prompts)

    def states(texts: Sequence[str]) -> np.ndarray:
        return text_states(base.model, texts, trained=plain, config=config)["mean"].double().numpy()

    tokens = config.generate.sampling.max_new_tokens
    texts, labels = write_own_texts(base, label_names, about=about, per_label=per_label, tokens=tokens)
    own = Labelled(texts, labels)
    real, test = rows_of(folder, "train", _REAL), rows_of(folder, split, rows)
    asked, right = states(test.texts), np.array(test.labels)
    common = int(np.bincount(right).max())
    seen, of = states(own.texts), np.array(own.labels)
    # Own texts come label by label: the first of each label.
    place = np.arange(len(of)) % per_label
    found = {"commonest label": _share(common, len(right))}
    for count in sorted({per_label // 4, per_label}):
        some = place < count
        found |= _right(f"{count} own texts a label", seen[some], of[some], asked, right)
    return found | _right(f"{_REAL} real rows", states(real.texts), np.array(real.labels), asked, right)


def _right(name: str, seen: np.ndarray, of: np.ndarray, asked: np.ndarray, right: np.ndarray) -> dict[str, Interval]:
    """How often a head is right, with its scores as they are and with each label's cut at its median."""
    head = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000)).fit(seen, of)
    scores = head.predict_log_proba(asked)
    shifted = scores - np.median(scores, axis=0)
    return {
        title: _share(int((each.argmax(1) == right).sum()), len(right))
        for title, each in ((name, scores), (f"{name}, cut at the median", shifted))
    }


def _share(count: int, of: int) -> Interval:
    bounds = binomtest(count, of).proportion_ci(method="wilson")
    return count / of, float(bounds.low), float(bounds.high)


def rows_of(folder: Path, split: str, count: int) -> Labelled:
    """Some rows of a split, drawn by a public seed."""
    table = pq.read_table(folder / f"{split}.parquet")
    chosen = table.take(np.random.default_rng(0).permutation(table.num_rows)[:count])
    return Labelled(chosen["text"].to_pylist(), chosen["label"].to_pylist())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder with a folder of Parquet files per table")
    parser.add_argument("--models", nargs="+", default=["tiny-llama", "smollm2-135m-instruct"])
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--per-label", type=int, default=128)
    parser.add_argument("--rows", type=int, default=500, help="real test rows")
    return parser.parse_args()


if __name__ == "__main__":
    main()
