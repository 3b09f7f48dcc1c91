"""What the texts of the preference-optimisation benchmark are like, beside how useful they are.

    python benchmarks/preference_optimization_texts.py --data ../shared/data --cache out/preference-optimization

Reads finished cells of `preference_optimization.py` that still hold their texts, and real samples of held-out clients.
Per arm and seed: words of a text, distinct pairs of words among 300 texts, negative log-likelihood per token under
the downstream model before it is tuned, and the median cosine of a text to its nearest public seed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from preference_optimization_data import Cell, Settings, clients_of, downstream_config, encoder, model_of, seed_texts

from understudy.evaluation.diversity import distinct_n, lengths
from understudy.evaluation.nearest import log_perplexities

ARMS = ("prompt-only", "popri", "popri-shuffled", "pe", "pe+sft")
ROWS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per data set")
    parser.add_argument("--cache", type=Path, required=True, help="folder of finished cells with their texts")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    settings = Settings(data=options.data, cache=options.cache)
    print("| arm | seed | words, median | distinct pairs | nats per token | cosine to the nearest seed |")
    print("|---|---|---|---|---|---|")
    print(f"| real, held out | | {described(settings, clients_of(settings, 'test').samples)} |", flush=True)
    for arm in ARMS:
        for seed in options.seeds:
            cell = Cell(arm, 0.0 if arm == "prompt-only" else math.inf, settings.clients, seed)
            path = options.cache / f"{cell.name}.json"
            texts = json.loads(path.read_text()).get("texts") if path.exists() else None
            if texts:
                print(f"| {arm} | {seed} | {described(settings, texts)} |", flush=True)


def described(settings: Settings, texts: Sequence[str]) -> str:
    """The four figures of the first texts; an equal number for every arm, for two of them depend on it."""
    some = list(texts)[:ROWS]
    nats = log_perplexities(model_of(downstream_config(settings).base), {"texts": some})["texts"]
    near = (encoder().encode(some) @ seeds(settings).T).max(axis=1)
    return f"{np.median(lengths(some)):.0f} | {distinct_n(some, 2):.3f} | {nats:.2f} | {np.median(near):.3f}"


@lru_cache(maxsize=1)
def seeds(settings: Settings) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Unit embeddings of the public seeds."""
    found: np.ndarray[tuple[int, int], np.dtype[np.float32]] = encoder().encode(list(seed_texts(settings)))
    return found


if __name__ == "__main__":
    main()
