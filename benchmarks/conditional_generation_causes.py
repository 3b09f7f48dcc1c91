"""Claim: the labels of synthetic rows, not their texts, are what a probe trained on them lacks.

    python benchmarks/conditional_generation_causes.py --data ../shared/data/rotten_tomatoes --cache out/benchmark

Reads finished cells of `conditional_generation.py` that still hold their rows. Every line is a probe's accuracy on the
real test rows, trained on 1,000 rows: real ones; real ones of whose labels as many are turned round as the condition
has wrong ones; the condition's own; the condition's texts with the labels that a probe on all real rows gives them. The
last is what a condition could reach if its labels were as true as a real-trained judge can make them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tables import print_table, write_figures

from understudy.evaluation.texts.encoder import embed, load_encoder
from understudy.evaluation.utility.accuracy import fit_probe, score

ROWS, DRAWS = 1000, 5
COLUMNS = ("rows", "label fidelity", "as labelled", "labelled by the judge", "real texts, as many labels wrong")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.parquet and test.parquet")
    parser.add_argument("--cache", type=Path, required=True, help="folder of finished cells with their rows")
    parser.add_argument("--figures", type=Path, help="JSON file of the table; default: in the cache")
    options = parser.parse_args()
    real, test = (np.load(options.cache / f"{split}-embedded.npy") for split in ("train", "test"))
    labels, truth = (
        np.array(pq.read_table(options.data / f"{split}.parquet")["label"].to_pylist()) for split in ("train", "test")
    )
    judge = fit_probe(real, labels.tolist())

    def accuracy(rows: np.ndarray[Any, Any], given: np.ndarray[Any, Any]) -> float:
        return float(score(fit_probe(rows, given.tolist())(test), truth.tolist()).correct.mean())

    chosen = [np.random.default_rng(draw).permutation(len(real))[:ROWS] for draw in range(DRAWS)]
    own = np.mean([accuracy(real[rows], labels[rows]) for rows in chosen])
    table = [{**dict.fromkeys(COLUMNS, ""), "rows": "real", "as labelled": f"{own:.3f}"}]
    for path in sorted(options.cache.glob("*.json")):
        cell = json.loads(path.read_text())
        if "label_fidelity" not in cell or "texts" not in cell:
            continue
        given = np.array([label for label, _ in cell["texts"]])
        mine = embed([text for _, text in cell["texts"]], load_encoder())
        wrong = []
        for draw, rows in enumerate(chosen):
            turned = np.random.default_rng(100 + draw).random(len(rows)) > cell["label_fidelity"]
            wrong.append(accuracy(real[rows], np.where(turned, 1 - labels[rows], labels[rows])))
        name = f"{cell['condition']}, epsilon {cell['epsilon']}, seed {cell['seed']}"
        figures = (cell["label_fidelity"], accuracy(mine, given), accuracy(mine, judge(mine)), float(np.mean(wrong)))
        shown = (f"{figure:.3f}" for figure in figures)
        table.append(dict(zip(COLUMNS, (name, *shown), strict=True)))
    print_table(table)
    write_figures(options.figures or options.cache / "conditional_generation_causes-figures.json", {"rows": table})


if __name__ == "__main__":
    main()
