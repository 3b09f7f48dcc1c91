"""Claim: preferences make texts longer and less varied than those of any other condition, and hardly less likely.

    python benchmarks/preference_optimization_texts.py --data ../shared/data --cache out/preference-optimization

Reads finished cells of `preference_optimization.py` that still hold their texts, and real samples of held-out clients.
Per condition and seed: words of a text, distinct pairs of words among 300 texts, negative log-likelihood per token
under the downstream model before it is tuned, and the median cosine of a text to its nearest public seed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
from cells import read
from preference_optimization_data import Cell, Settings, clients_of, downstream_config, encoder, seed_texts
from simulation import model_of
from tables import Row, print_table, write_figures

from understudy.evaluation.texts.diversity import distinct_n, lengths
from understudy.evaluation.texts.nearest import log_perplexities

CONDITIONS = ("prompt-only", "popri", "popri-shuffled", "pe", "pe+sft")
ROWS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per data set")
    parser.add_argument("--cache", type=Path, required=True, help="folder of finished cells with their texts")
    parser.add_argument("--figures", type=Path, help="JSON file of the table; default: in the cache")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    settings = Settings(data=options.data, cache=options.cache)
    table = [{"condition": "real, held out", "seed": "", **described(settings, clients_of(settings, "test").samples)}]
    for condition, seed in product(CONDITIONS, options.seeds):
        cell = Cell(condition, 0.0 if condition == "prompt-only" else math.inf, settings.clients, seed)
        texts = (read(cell.name, options.cache) or {}).get("texts")
        if texts:
            table.append({"condition": condition, "seed": str(seed), **described(settings, texts)})
    print_table(table)
    write_figures(options.figures or options.cache / "preference_optimization_texts-figures.json", {"rows": table})


def described(settings: Settings, texts: Sequence[str]) -> Row:
    """The four figures of the first texts; an equal number for every condition, for two of them depend on it."""
    some = list(texts)[:ROWS]
    nats = log_perplexities(model_of(downstream_config(settings).base), {"texts": some})["texts"]
    near = (encoder().encode(some) @ seeds(settings).T).max(axis=1)
    return {
        "words, median": f"{np.median(lengths(some)):.0f}",
        "distinct pairs": f"{distinct_n(some, 2):.3f}",
        "nats per token": f"{nats:.2f}",
        "cosine to the nearest seed": f"{np.median(near):.3f}",
    }


@lru_cache(maxsize=1)
def seeds(settings: Settings) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Unit embeddings of the public seeds."""
    found: np.ndarray[tuple[int, int], np.dtype[np.float32]] = encoder().encode(list(seed_texts(settings)))
    return found


if __name__ == "__main__":
    main()
