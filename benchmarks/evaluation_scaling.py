"""Claim: an evaluation's processor time grows linearly in its rows from 1,000 to 64,000 (log-log slope at most 1.1).

An evaluation of n rows compares n synthetic, n private, n unseen and n prompt-only texts, each made of words of the
shipped samples in random order, with as many words as one of their texts. Each part is timed once, by processor time of
this process. The slope is that of a least-squares line through the logarithms of rows and seconds.

Embedding four sets of 64,000 texts takes more than half an hour of one core, so the sentence encoder is timed up to
`--embedded` rows. At every size the parts that read embeddings read mixtures of two embedded texts with a little noise
in their place. The slope of the whole is that of everything but the encoder; the encoder's own stands beside it.

    python benchmarks/evaluation_scaling.py --out evaluation_scaling.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from measuring import write_result
from tables import print_table

from understudy.evaluation import measure
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.rows import Conditions, LabelledTexts
from understudy.evaluation.texts import fidelity, words
from understudy.evaluation.texts.encoder import FloatArray, embed, embed_sets, load_encoder
from understudy.evaluation.texts.nearest import nearest_real
from understudy.shipped import SAMPLES

TARGET = 1.1
SIZES = (1000, 2000, 4000, 8000, 16_000, 32_000, 64_000)
SETS = ("synthetic", "real", "test", "prompt_only")
LABELS = ("negative", "positive")
MIXED = 2000  # embedded texts that the stand-ins for embeddings are mixed of
Seconds = dict[str, float]


def sample_texts() -> list[str]:
    """Every text of the shipped samples."""
    tables = [pq.read_table(path) for path in sorted(SAMPLES.glob("*.parquet"))]
    columns = [
        table[name] for table in tables for name in ("text", "instruction", "response") if name in table.schema.names
    ]
    return [text for column in columns for text in column.to_pylist() if text]


def recombined(texts: list[str], n: int, *, seed: int) -> list[str]:
    """`n` texts of random words, with the words and the lengths of `texts`."""
    generator = np.random.default_rng([seed, n])
    known = np.array([word for text in texts for word in text.split()])
    lengths = generator.choice([len(text.split()) for text in texts], n)
    drawn = known[generator.integers(0, len(known), lengths.sum())].tolist()
    ends = lengths.cumsum().tolist()
    return [" ".join(drawn[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]


def mixed(embedded: FloatArray, n: int, *, seed: int) -> FloatArray:
    """`n` unit vectors distributed somewhat like embeddings."""
    generator = np.random.default_rng([seed, n])
    one, other = (embedded[generator.integers(0, len(embedded), n)] for _ in range(2))
    made = one + 0.3 * other + 0.02 * generator.normal(size=one.shape)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    found: FloatArray = made.astype(np.float32)
    return found


def labelled(texts: list[str], *, seed: int) -> LabelledTexts:
    return LabelledTexts(texts, np.random.default_rng([seed, len(texts)]).integers(0, 2, len(texts)), LABELS)


def measured(texts: dict[str, list[str]], vectors: dict[str, FloatArray], config: EvaluationConfig) -> Seconds:
    """Processor seconds of every part but the encoder."""
    rows = {name: labelled(found, seed=seed) for seed, (name, found) in enumerate(texts.items())}
    conditions = Conditions(rows["synthetic"], rows["real"], rows["prompt_only"])
    embedded = {name: found for name, found in vectors.items() if name != "test"}
    unseen, seed = vectors["test"], config.public_seed
    sets = {"": vectors["synthetic"], "prompt_only.": vectors["prompt_only"]}
    compare = partial(fidelity.compare, sets=sets, real=unseen, seed=seed, splits=config.floor_splits)
    read: list[words.TokenizedTexts] = []
    parts: dict[str, Callable[[], Any]] = {
        "utility": lambda: measure.measure_utility(conditions, rows["test"], embedded, unseen, config=config),
        "label fidelity": lambda: measure.measure_label_fidelity(conditions, rows["test"], embedded, unseen),
        "MAUVE": lambda: compare(fidelity.MAUVE),
        "Frechet distance": lambda: compare(fidelity.FRECHET),
        "tokenising": lambda: read.extend(words.tokenize(texts["synthetic"], texts["real"], texts["test"])),
        "diversity": lambda: measure.measure_diversity(read[0], read[2], seed=seed),
        "memorisation": lambda: measure.measure_memorization(read[0], read[1], read[2], seed=seed),
        "identifiers": lambda: measure.measure_identifiers(texts["synthetic"], texts["real"], texts["test"]),
        "nearest rows": lambda: nearest_real(vectors["synthetic"], vectors["real"], unseen, seed=seed),
    }
    return {name: timed(part) for name, part in parts.items()}


def timed(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def slope(seconds: dict[int, float]) -> float:
    """Of log seconds over log rows, by least squares."""
    return float(np.polyfit(np.log(list(seconds)), np.log(list(seconds.values())), 1)[0])


def table_of(found: dict[str, dict[int, float]], slopes: dict[str, float]) -> list[dict[str, str]]:
    sizes = sorted({size for seconds in found.values() for size in seconds})
    return [
        {
            "part": name,
            **{f"{size:,}": f"{seconds[size]:.2f}" if size in seconds else "" for size in sizes},
            "slope": f"{slopes[name]:.2f}",
        }
        for name, seconds in found.items()
    ]


def measure_sizes(options: argparse.Namespace) -> dict[str, dict[int, float]]:
    """Part -> rows -> processor seconds; `everything but the encoder` last."""
    source, config = sample_texts(), EvaluationConfig(profile="tiny", public_seed=options.seed)
    encoder = load_encoder(device="cpu")
    known = embed(recombined(source, MIXED, seed=options.seed), encoder)
    found: dict[str, dict[int, float]] = {}
    for size in options.sizes:
        seeds = range(options.seed + 1, options.seed + 1 + len(SETS))
        texts = {name: recombined(source, size, seed=seed) for name, seed in zip(SETS, seeds, strict=True)}
        vectors = {name: mixed(known, size, seed=seed) for name, seed in zip(SETS, seeds, strict=True)}
        seconds = measured(texts, vectors, config)
        seconds["everything but the encoder"] = sum(seconds.values())
        if size <= options.embedded:
            seconds = {"encoder": timed(partial(embed_sets, texts, partial(embed, encoder=encoder)))} | seconds
        for name, value in seconds.items():
            found.setdefault(name, {})[size] = value
        print(f"{size} rows: {seconds['everything but the encoder']:.1f} s", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=list(SIZES), help="rows per set, ascending, at least two"
    )
    parser.add_argument("--embedded", type=int, default=4000, help="the encoder is timed up to so many rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    from threadpoolctl import threadpool_limits

    with threadpool_limits(options.threads):
        found = measure_sizes(options)
    slopes = {name: slope(seconds) for name, seconds in found.items() if len(seconds) > 1}
    print_table(table_of({name: found[name] for name in slopes}, slopes), "Processor seconds of an evaluation")
    whole = [slopes[name] for name in ("everything but the encoder", "encoder") if name in slopes]
    met = max(whole) <= TARGET
    print(f"\ntarget, a slope of at most {TARGET}: {'met' if met else 'missed'}")
    facts = {"sizes": list(options.sizes), "embedded": options.embedded, "seed": options.seed}
    facts |= {"threads": options.threads, "seconds": found, "slopes": slopes, "target": TARGET, "met": met}
    write_result(options.out, facts)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
