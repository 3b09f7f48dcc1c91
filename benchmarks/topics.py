"""Claim: topics in prompts and a noised histogram of them bring synthetic rows nearer to private ones.

    python benchmarks/topics.py --data DATA --cache out/topics --figures topics.json

Public tables stand in for private ones: the first 2,000 rows of each, 200 synthetic rows of it. At the same epsilon a
run without topics is beside one with them, whose histogram is paid for by more noise elsewhere. Topics, clip norm and
learning rate are found before the charge, as in a run, with the public seed 0; seeds move noise and sampling. Measured
are the accuracy of an embedding probe on real test rows, MAUVE against them, and the Frechet distance to the private
rows' embeddings. The text without private rows stands beside both, with the same prompts: with topics, as many rows of
each. The charges are simulations: measured, never exported.

`--conditions` and `--variant untrained --model smollm2-135m-instruct` take other parts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from cells import Benchmark, Call, Value, arguments, complete, parse, settings_from, short_digest
from conditional_generation import correct
from tables import Row, interval_text, print_table, write_figures

TABLES = {
    "rotten_tomatoes": (("negative", "positive"), "one-sentence film reviews"),
    "ag_news": (("World", "Sports", "Business", "Sci/Tech"), "short news reports"),
}
CONDITIONS = ("plain", "topics")
CONTROLS = {"plain": "prompt-only", "topics": "prompt-only, topics"}
MEANS = {"mauve": "MAUVE", "frechet": "Frechet distance", "label_fidelity": "label fidelity"}


@dataclass(frozen=True)
class Settings:
    """What all cells of one run have in common.

    Attributes:
        data: folder with a folder for each table.
        cache: folder of finished cells.
        model: base model.
        variant: of the method.
        number: topics.
        share: of epsilon, for their histogram.
        rows: private rows, the first ones.
        samples: synthetic rows.
    """

    data: Path
    cache: Path
    model: str
    variant: str
    number: int
    share: float
    rows: int
    samples: int


@dataclass(frozen=True)
class Cell:
    """One table with or without topics, at one epsilon with one seed."""

    condition: str
    table: str
    epsilon: float
    seed: int

    @property
    def name(self) -> str:
        """A file name."""
        said = f"{self.condition} {self.table} eps {self.epsilon:g} seed {self.seed}"
        return "".join(c if c.isalnum() else "-" for c in said)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0, 8.0])
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--variant", default="naive")
    parser.add_argument("--number", type=int, default=8, help="topics")
    parser.add_argument("--share", type=float, default=0.1, help="part of epsilon for their histogram")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=200)
    options = parse(parser)
    settings = settings_from(Settings, options)
    benchmark = Benchmark(settings, figures, digest=digest, shared=shared, chains=by_table)
    found = complete(benchmark, wanted(options), options)
    rows = table_rows(list(found.values()))
    print_table([shown(row) for row in rows])
    write_figures(options.figures, {"rows": rows}, settings=facts_of(settings))


def wanted(options: argparse.Namespace) -> list[Cell]:
    """Seed by seed; text without private rows has no epsilon."""
    cells = []
    for seed in options.seeds:
        cells += [
            Cell(condition, table, epsilon, seed)
            for table, epsilon, condition in product(options.tables, options.epsilons, options.conditions)
        ]
        cells += [
            Cell(CONTROLS[condition], table, math.inf, seed)
            for table, condition in product(options.tables, options.conditions)
        ]
    return cells


def by_table(cells: Sequence[Cell]) -> list[list[Cell]]:
    """One process for each table: it reads the rows' embeddings once."""
    return [[cell for cell in cells if cell.table == table] for table in dict.fromkeys(cell.table for cell in cells)]


def facts_of(settings: Settings) -> dict[str, Any]:
    """What the figures depend on, wherever data and cache lie."""
    return {name: value for name, value in asdict(settings).items() if name not in ("data", "cache")}


def digest(settings: Settings, cell: Cell) -> str:
    """Of what is asked of a cell beside what its name says."""
    return short_digest(facts_of(settings))


def shared(settings: Settings, cells: Sequence[Cell]) -> list[list[Call]]:
    """Each table is registered, and its topics, clip norm and rate are found once."""
    both = dict.fromkeys((cell.table, "topics" in cell.condition) for cell in cells)
    tables = dict.fromkeys(cell.table for cell in cells)
    return [
        [partial(register_table, settings, table) for table in tables],
        [partial(resolved, settings, table, topics) for table, topics in both],
    ]


def register_table(settings: Settings, table: str) -> None:
    """The table as the ledger knows it."""
    from simulation import register

    register(table, unit="example", n=settings.rows, label_names=TABLES[table][0], share=0.5)


@lru_cache(maxsize=8)
def read(settings: Settings, table: str, split: str) -> tuple[list[str], list[int], Any]:
    """Texts, labels and embeddings of a split; of the training rows as many as are private."""
    import pyarrow.parquet as pq

    from understudy.evaluation.texts.encoder import embed, load_encoder

    found = pq.read_table(settings.data / table / f"{split}.parquet")
    found = found.slice(0, settings.rows) if split == "train" else found
    texts = found["text"].to_pylist()
    return texts, found["label"].to_pylist(), embed(texts, load_encoder())


def resolved(settings: Settings, table: str, topics: bool) -> Any:
    """The settings of a run with this table, with or without topics; kept in the cache's home."""
    from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
    from understudy.methods.conditional_generation.method import resolve

    names, about = TABLES[table]
    asked = {"number": settings.number, "share": settings.share} if topics else {}
    config = ConditionalGenerationConfig.model_validate(
        {
            "model": settings.model,
            "variant": settings.variant,
            "samples": settings.samples,
            "about": about,
            "topics": asked,
        }
    )
    return resolve(config, settings.rows, names, 8.0)


def figures(settings: Settings, cell: Cell) -> Value:
    """Every figure of a cell; its rows are under `texts`."""
    from understudy.methods.conditional_generation.class_sizes import sizes_of
    from understudy.methods.conditional_generation.synthesis import synthesize_untrained

    names = TABLES[cell.table][0]
    config = resolved(settings, cell.table, "topics" in cell.condition).model_copy(update={"public_seed": cell.seed})
    facts: Value = {"topics": [", ".join(words) for words in config.topics.found]}
    if cell.condition in CONTROLS.values():
        made = synthesize_untrained(config, names, sizes=sizes_of(config, names, None))
    else:
        made, released = paid(settings, cell, config)
        facts |= released
    return facts | measure(settings, cell, made.table["text"].to_pylist(), made.table["label"].to_pylist())


def paid(settings: Settings, cell: Cell, config: Any) -> tuple[Any, Value]:
    """Rows of a charged run, and how far its histogram is from the exact one: private, of a public table."""
    import numpy as np
    from simulation import charge, noise_facts

    from understudy.data.private_rows import PrivateRows
    from understudy.methods.conditional_generation.encode import count_topics, encode
    from understudy.methods.conditional_generation.fitting import train_on_table
    from understudy.methods.conditional_generation.queries import Asked, queries_of, schedule_of
    from understudy.methods.conditional_generation.synthesis import synthesize_stored
    from understudy.privacy.accounting import default_delta

    read_once()
    n, names = settings.rows, TABLES[cell.table][0]
    texts, labels, _ = read(settings, cell.table, "train")
    kept = settings.cache / "calibrations"
    queries = queries_of(config, n=n, epsilon=cell.epsilon, delta=default_delta(n), cache=kept)
    request = (cell.name, config.model_dump_json())
    mechanisms = charge(cell.table, unit="example", n=n, epsilon=cell.epsilon, queries=queries, request=request)
    rows = PrivateRows(texts, labels, names)
    stored = train_on_table(rows, Asked(config, schedule_of(queries), mechanisms))
    facts = noise_facts(queries, n=n, epsilon=cell.epsilon)
    if stored.topic_counts is not None:
        exact = count_topics(encode(rows, tokenizer=stored.trained.tokenizer, config=config)).numpy()
        noised = np.maximum(stored.topic_counts, 0)
        facts["histogram_error"] = float(np.abs(exact / exact.sum() - noised / noised.sum()).sum() / 2)
        facts["counts"] = exact.tolist()
    return synthesize_stored(stored, config), facts


@lru_cache(maxsize=1)
def read_once() -> None:
    """From here on this process remembers the embedding of every text that is read alone: the cells share the rows."""
    from dataclasses import replace

    from understudy.evaluation.texts import encoder

    plain = encoder.load_encoder()
    known: dict[str, Any] = {}

    def encode(texts: Sequence[str]) -> Any:
        if len(texts) != 1:
            return plain.encode(texts)
        if texts[0] not in known:
            known[texts[0]] = plain.encode(texts)
        return known[texts[0]]

    remembering = replace(plain, encode=encode)
    encoder.load_encoder = lambda *_, **__: remembering


def measure(settings: Settings, cell: Cell, texts: list[str], labels: list[int]) -> Value:
    """What the rows are worth and how near they are to real ones."""
    from understudy.evaluation.texts import fidelity
    from understudy.evaluation.texts.encoder import embed, load_encoder
    from understudy.evaluation.utility import accuracy

    _, real_labels, real = read(settings, cell.table, "train")
    _, test_labels, test = read(settings, cell.table, "test")
    mine = embed(texts, load_encoder())
    right = accuracy.score(accuracy.fit_probe(mine, labels)(test), test_labels).correct
    return {
        "correct": right.astype(int).tolist(),
        "rows": len(texts),
        "mauve": float(fidelity.mauve(mine, test, seed=0)),
        "frechet": float(fidelity.gaussian_distance(fidelity.fit_gaussian(mine), fidelity.fit_gaussian(real))),
        "label_fidelity": float(accuracy.label_fidelity(mine, labels, accuracy.fit_probe(real, real_labels)).share),
        "texts": [[label, text] for text, label in zip(texts, labels, strict=True)],
    }


def table_rows(values: Sequence[Value]) -> list[dict[str, Any]]:
    """One row per table, epsilon and condition, in numbers."""
    from understudy.evaluation.statistics.intervals import accuracy_interval, paired_bootstrap

    found: dict[tuple[str, str, str], list[Value]] = {}
    for value in sorted(values, key=lambda value: value["seed"]):
        found.setdefault((value["table"], value["epsilon"], value["condition"]), []).append(value)
    rows = []
    for (table, epsilon, condition), own in sorted(found.items()):
        interval = accuracy_interval(correct(own), seed=0, replicates=2000, level=0.95)
        row: dict[str, Any] = {
            "table": table,
            "epsilon": epsilon,
            "condition": condition,
            "seeds": [one["seed"] for one in own],
        }
        row["accuracy"] = [interval.value, interval.low, interval.high]
        other = {one["seed"]: one for one in found.get((table, epsilon, condition.replace(", topics", "")), [])}
        other = (
            {one["seed"]: one for one in found.get((table, epsilon, "plain"), [])} if condition == "topics" else other
        )
        if "topics" in condition and {one["seed"] for one in own} <= other.keys():
            same = [other[one["seed"]] for one in own]
            difference = paired_bootstrap(correct(own), correct(same), seed=0, replicates=2000, level=0.95)
            row["minus_without"] = [difference.value, difference.low, difference.high]
            row["topics"], row["counts"] = own[0]["topics"], own[0].get("counts")
            row["histogram_error"] = [one["histogram_error"] for one in own if "histogram_error" in one]
        for name in MEANS:
            row[name] = [one[name] for one in own]
        row["minutes"] = sum(one["seconds"] for one in own) / len(own) / 60
        rows.append(row)
    return rows


def shown(row: dict[str, Any]) -> Row:
    """A row as it is printed; of several seeds their mean."""
    return {
        "table": row["table"],
        "epsilon": row["epsilon"],
        "condition": row["condition"],
        "accuracy": interval_text(row["accuracy"]),
        "minus without topics": interval_text(row.get("minus_without")),
        **{words: f"{sum(row[name]) / len(row[name]):.3f}" for name, words in MEANS.items()},
        "minutes": f"{row['minutes']:.1f}",
    }


if __name__ == "__main__":
    main()
