"""Claim: at epsilon 3 text steered by a second objective teaches a classifier more than text of naive DP fine-tuning.

    python benchmarks/conditional_generation.py --data ../shared/data/rotten_tomatoes --cache out/benchmark

Measured on real reviews, at epsilon inf and 3. Each cell (condition, epsilon, seed) trains on every training row, draws
1,000 rows, and trains an embedding probe on them that is tested on the real test rows; seed 0 also fine-tunes the
transformer classifier. `by words` is the accuracy of a classifier of word frequencies, which shares nothing with the
encoder that selection reads. Label fidelity is judged by a probe trained on real rows, which is not the steering head.
The charges are simulations: measured, never exported. The last step prints the table, with paired bootstrap intervals
over test rows and seeds, and writes it as JSON (`--figures`).

`--published FOLDER` writes finished cells there too, without sample texts, and takes them from there: the cells behind
docs/results/conditional-generation.md lie in benchmarks/cells/conditional_generation, so that `--print` remakes the
table in a second.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from cells import Benchmark, Call, Value, arguments, complete, parse, settings_from, short_digest
from conditional_generation_data import Cell, Settings
from tables import Row, interval_text, print_table, write_figures

CONDITIONS: dict[str, dict[str, Any]] = {
    "naive": {"variant": "naive"},
    "naive + filter": {"variant": "naive_filter"},
    "naive + PPLM": {"variant": "naive_pplm"},
    "multitask + PPLM, alternating": {"variant": "multitask", "update": "alternating"},
    "multitask + PPLM, joint": {"variant": "multitask", "update": "joint"},
    # Ablations: what is left of the method without steering, and what steering adds.
    "multitask, alternating, unsteered": {"variant": "multitask", "update": "alternating", "steered": False},
    # Ours: of four texts drawn for a row, the nearest to its label's noised mean (the default of the tiny profile).
    "untrained, nearest of 4": {"variant": "untrained", "selection": {"draws": 4}},
    "untrained, nearest of 16": {"variant": "untrained", "selection": {"draws": 16}},
    "naive, nearest of 4": {"variant": "naive", "selection": {"draws": 4}},
    "multitask + PPLM, joint, nearest of 4": {"variant": "multitask", "update": "joint", "selection": {"draws": 4}},
}
MEANS = {
    "words_accuracy": "by words",
    "label_fidelity": "label fidelity",
    "mauve": "MAUVE",
    "test_loss": "test loss",
    "discriminator_accuracy": "head",
    "transformer_accuracy": "transformer",
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default=None, help="base model; default: the tiny profile's")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0, math.inf])
    parser.add_argument("--conditions", nargs="+", choices=list(CONDITIONS), default=list(CONDITIONS))
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=None, help="training rows, the first ones; default: all")
    parser.add_argument("--about", default="", help="public words; learning rate and clip norm are then chosen")
    parser.add_argument("--transformer", action="store_true", help="also fine-tune the transformer for seed 0")
    options = parse(parser)
    settings = settings_from(Settings, options)
    benchmark = Benchmark(settings, figures, digest=digest, shared=shared)
    found = complete(benchmark, wanted(options), options)
    rows = table_rows(list(found.values()))
    print_table([shown(row) for row in rows])
    write_figures(options.figures, {"rows": rows})


def wanted(options: argparse.Namespace) -> list[Cell]:
    """The two ends of the scale, then one epsilon after the other and seed by seed."""
    ends = [Cell("real", math.inf, 0), *(Cell("prompt-only", math.inf, seed) for seed in options.seeds)]
    every = product(options.epsilons, options.seeds, options.conditions)
    return [*ends, *(Cell(condition, epsilon, seed) for epsilon, seed, condition in every)]


def digest(settings: Settings, cell: Cell) -> str:
    """Of what is asked of a cell beside what its name says; defaults of the package are not part of it."""
    asked = {name: getattr(settings, name) for name in ("model", "rows", "samples", "about")}
    return short_digest({**asked, "condition": CONDITIONS.get(cell.condition)})


def shared(settings: Settings, cells: Sequence[Cell]) -> list[list[Call]]:
    """The real rows are embedded once, and the source is registered."""
    from conditional_generation_conditions import embedded, register_source

    return [[partial(register_source, settings), *(partial(embedded, settings, split) for split in ("train", "test"))]]


def figures(settings: Settings, cell: Cell) -> Value:
    """Every figure of a cell; its rows are under `texts`."""
    from conditional_generation_conditions import measure, synthesize

    return measure(settings, cell, synthesize(settings, cell, CONDITIONS))


def table_rows(values: Sequence[Value]) -> list[dict[str, Any]]:
    """One row per condition and epsilon, in numbers."""
    from understudy.evaluation.statistics.intervals import accuracy_interval

    found: dict[tuple[str, str], list[Value]] = {}
    for value in sorted(values, key=lambda value: value["seed"]):
        found.setdefault((value["condition"], value["epsilon"]), []).append(value)
    order = dict.fromkeys((value["condition"], value["epsilon"]) for value in values)
    rows = []
    for condition, epsilon in order:
        own = found[condition, epsilon]
        interval = accuracy_interval(correct(own), seed=0, replicates=2000, level=0.95)
        row: dict[str, Any] = {"condition": condition, "epsilon": epsilon, "seeds": [value["seed"] for value in own]}
        row["probe_accuracy"] = [interval.value, interval.low, interval.high]
        row |= minus(found, condition, epsilon, "naive", epsilon)
        row |= minus(found, condition, epsilon, "prompt-only", "inf")
        for name in MEANS:
            known = [value[name] for value in own if value.get(name) is not None]
            row[name] = sum(known) / len(known) if known else None
        row["minutes"] = sum(value["seconds"] for value in own) / len(own) / 60
        rows.append(row)
    return rows


def correct(values: Sequence[Value]) -> Any:
    """(seeds, test rows) bool."""
    import numpy as np

    return np.array([value["correct"] for value in values], dtype=bool)


def minus(
    found: Mapping[tuple[str, str], Sequence[Value]], condition: str, epsilon: str, other: str, other_epsilon: str
) -> dict[str, list[float]]:
    """The paired difference to another condition over the seeds of the first, where the other has them all."""
    from understudy.evaluation.statistics.intervals import paired_bootstrap

    own = found[condition, epsilon]
    by_seed = {value["seed"]: value for value in found.get((other, other_epsilon), [])}
    if condition in (other, "real", "prompt-only") or not {value["seed"] for value in own} <= by_seed.keys():
        return {}
    same = [by_seed[value["seed"]] for value in own]
    difference = paired_bootstrap(correct(own), correct(same), seed=0, replicates=2000, level=0.95)
    return {f"minus_{other.replace('-', '_')}": [difference.value, difference.low, difference.high]}


def shown(row: Mapping[str, Any]) -> Row:
    """A row as it is printed."""
    return {
        "condition": row["condition"],
        "epsilon": row["epsilon"],
        "probe accuracy": interval_text(row["probe_accuracy"]),
        "minus naive": interval_text(row.get("minus_naive")),
        "minus prompt-only": interval_text(row.get("minus_prompt_only")),
        **{words: "" if row[name] is None else f"{row[name]:.3f}" for name, words in MEANS.items()},
        "minutes": f"{row['minutes']:.1f}",
    }


if __name__ == "__main__":
    main()
