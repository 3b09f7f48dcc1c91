"""Claim: rows that were chosen by a sentence encoder also teach classifiers that read something else.

    python benchmarks/evaluation_models.py OUT --train sample:ferry --test sample:ferry-test

OUT is a finished run of conditional generation with the default settings. Its rows, as many prompt-only ones (drawn
again, from the same public seed) and the real ones each train three classifiers, tested on real rows: logistic
regression on sentence embeddings, whose encoder also chose the rows; logistic regression on word and word-pair
frequencies; and a fine-tuned small language model. Intervals are 95 %, paired bootstrap over test rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from tables import interval_text, print_table

from understudy.data.readers import read_source
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.measure import Conditions, LabelledTexts, evaluate_synthetic
from understudy.evaluation.statistics import intervals
from understudy.evaluation.texts.encoder import embed, load_encoder
from understudy.methods.conditional_generation.storage import load_trained
from understudy.methods.conditional_generation.synthesis import synthesize_untrained


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", required=True, help="the run's real rows, with columns text and label")
    parser.add_argument("--test", required=True, help="other real rows")
    options = parser.parse_args()
    torch.set_num_threads(1)
    stored = load_trained(options.out / "export" / "model")
    names = stored.trained.label_names
    made = _named(str(options.out / "export" / "synthetic.parquet"), names)
    sizes = {name: made.labels.count(label) for label, name in enumerate(names)}
    plain = synthesize_untrained(stored.settings, names, sizes=sizes).table
    sets = {
        "prompt_only": LabelledTexts(plain["text"].to_pylist(), plain["label"].to_pylist(), names),
        "synthetic": made,
        "real": _named(options.train, names),
    }
    test = _named(options.test, names)
    config = EvaluationConfig(profile="tiny", headline="transformer")
    found = evaluate_synthetic(
        Conditions(**sets),
        test,
        config=config,
        embedder=partial(embed, encoder=load_encoder(), cache=None),
    )
    lines = []
    for model in ("probe", "transformer"):
        line = {"classifier of": {"probe": "embeddings", "transformer": "fine-tuned model"}[model]}
        line |= {condition: f"{found.values[f'utility.{model}.{condition}.accuracy']:.3f}" for condition in sets}
        lines.append(line)
    correct = {
        condition: right_by_words(rows.texts, rows.labels, test.texts, test.labels) for condition, rows in sets.items()
    }
    line = {
        "classifier of": "word frequencies",
        **{condition: f"{right.mean():.3f}" for condition, right in correct.items()},
    }
    gain = intervals.paired_bootstrap(correct["synthetic"], correct["prompt_only"], seed=0, replicates=2000, level=0.95)
    line["synthetic - prompt-only"] = interval_text((gain.value, gain.low, gain.high))
    name = "utility.synthetic_minus_prompt_only.accuracy"
    lines[1]["synthetic - prompt-only"] = interval_text((found.values[name], *found.intervals[name]))
    print_table([*lines, line])


def _named(source: str, names: tuple[str, ...]) -> LabelledTexts:
    """A table whose labels are the names, or numbers of them."""
    table = read_source(source)
    labels = [label if isinstance(label, int) else names.index(label) for label in table["label"].to_pylist()]
    return LabelledTexts(table["text"].to_pylist(), labels, names)


def right_by_words(
    texts: Sequence[str], labels: Sequence[int], test_texts: Sequence[str], test_labels: Sequence[int]
) -> np.ndarray:
    """Which test rows a classifier of word frequencies, trained on the texts, is right on.

    Where the texts have one label only, as after a filter that knew no other, it answers that one.
    """
    if len(set(labels)) == 1:
        return np.asarray(test_labels) == labels[0]
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)).fit(texts)
    model = LogisticRegression(C=10, max_iter=1000).fit(words.transform(texts), labels)
    right: np.ndarray = model.predict(words.transform(test_texts)) == np.asarray(test_labels)
    return right


if __name__ == "__main__":
    main()
