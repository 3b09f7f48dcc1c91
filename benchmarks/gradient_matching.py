"""Claim: texts matched to a released gradient train a model better than prompted text, and as well as chosen real rows.

    python benchmarks/gradient_matching.py --data ../shared/data --cache out/gradient-matching

Measured on real reviews and tweets, in three tables. `main`: 40 synthetic rows matched to 5, 20 and 50 real rows
without noise, and to the full training set at epsilon inf, 8 and 0.05, beside zero-shot and few-shot text, herding,
k-center, random rows and all real rows. `targets`: the three targets at epsilon inf, 8 and 1, from 50 real rows and
from all, and from 50 at an epsilon so small that little but noise is left. `retokenised`: the matching loss of the
emitted strings, tokenised again, against zero-shot text and the best of as many plain samples as the same number of
forward passes buys.

Accuracy is that of a shipped model fine-tuned on the rows (`evaluation.transfer`: 200 steps, last checkpoint) on real
test rows, with bootstrap intervals over test rows and seeds. One cell serves every table that names it, and a cell that
was made under other settings is done again. The charges are simulations: measured, never exported.

`--published FOLDER` writes finished cells there too, without any text, and takes them from there: with `--print` the
tables are then remade in seconds and written as JSON (`--figures`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import product

from cells import Benchmark, Call, Value, arguments, complete, parse, settings_from
from gradient_matching_data import DATASETS, NOISE_ALONE, Cell, Settings, digest_of

TABLES = ("main", "targets", "retokenised")
SCARCE, EPSILONS = (5, 20, 50), (math.inf, 8.0, 0.05)
TARGETS = ((50, 8.0), (50, 1.0), (50, math.inf), (50, NOISE_ALONE), (None, 8.0), (None, 1.0), (None, math.inf))
KINDS = ("sketch", "label_rows", "head")


def main() -> None:
    options = parse_options()
    settings = settings_from(Settings, options, full_reports=options.full_reports and not options.print)
    benchmark = Benchmark(settings, figures, digest=digest_of, shared=shared, whole=has_reports)
    found = complete(benchmark, list(wanted(options)), options)
    from gradient_matching_tables import print_tables

    print_tables(options.tables, found, default=default_kind(), models=settings.models, path=options.figures)


def parse_options() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--datasets", nargs="+", choices=list(DATASETS), default=list(DATASETS))
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--conditions", nargs="+", help="only cells of these conditions; default: all")
    parser.add_argument("--scarce", type=int, nargs="*", default=list(SCARCE), help="only these numbers of real rows")
    parser.add_argument("--epsilons", type=float, nargs="+", help="only cells of these epsilons; default: all")
    parser.add_argument("--samples", type=int, default=40, help="synthetic rows")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--inner-steps", type=int, default=10)
    parser.add_argument("--oversample", type=float, default=2.0, help="texts matched per text wanted")
    parser.add_argument("--compared", type=int, default=40, help="matched texts that plain samples are compared with")
    parser.add_argument("--models", nargs="+", default=["tiny-llama", "tiny-gpt2"], help="the first one is matched")
    parser.add_argument("--about", action="store_true", help="words and prompts as in a user's first command")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--full-reports", action="store_true", help="seed 0: also distances, likelihood, membership")
    return parse(parser)


@lru_cache(maxsize=1)
def default_kind() -> str:
    """The method's own target."""
    from understudy.methods.gradient_matching.config import GradientMatchingConfig

    return GradientMatchingConfig().target.kind


def wanted(options: argparse.Namespace) -> Iterator[Cell]:
    """The cells of the tables, once each, what says most first: a run that is stopped early has whole rows."""
    seen: set[Cell] = set()
    for seed in options.seeds:
        for table, cell in of_seed(options.datasets, seed, first=seed == options.seeds[0]):
            if table in options.tables and fits(cell, options) and cell not in seen:
                seen.add(cell)
                yield cell


def fits(cell: Cell, options: argparse.Namespace) -> bool:
    """Whether a cell is among those asked for."""
    return (
        (options.conditions is None or cell.condition in options.conditions)
        and (not cell.real or cell.real in options.scarce)
        and (not cell.target or options.epsilons is None or cell.epsilon in options.epsilons)
    )


def of_seed(datasets: list[str], seed: int, *, first: bool) -> Iterator[tuple[str, Cell]]:
    """(table, cell) of one seed in order of worth."""
    matched = partial(Cell, condition="gradient matching", target=default_kind(), seed=seed)
    yield from (("main", matched(name, real=None, epsilon=epsilon)) for epsilon in (8.0, math.inf) for name in datasets)
    yield from (("main", cell) for name in datasets for cell in baselines(name, seed, first=first))
    yield from (
        ("targets", matched(name, real=real, epsilon=epsilon, target=kind))
        for (real, epsilon), name, kind in product(TARGETS, datasets, KINDS)
    )
    if first:
        for name, real, condition in product(datasets, (50, None), ("gradient matching", "plain samples")):
            yield "retokenised", matched(name, condition=condition, real=real)
    for name, real in product(datasets, reversed(SCARCE)):
        yield "main", matched(name, real=real)
        yield "main", Cell(name, "real rows", real, seed=seed)
        yield "main", Cell(name, "few-shot", real, seed=seed)
    yield from (("main", matched(name, real=None, epsilon=epsilon)) for epsilon in EPSILONS for name in datasets)


def baselines(dataset: str, seed: int, *, first: bool) -> list[Cell]:
    """What stands beside the private regime; a model that is not tuned is the same for every seed."""
    conditions = ("random", "herding", "k-center", "real rows")
    return [
        Cell(dataset, "zero-shot", 0, seed=seed),
        Cell(dataset, "few-shot", max(SCARCE), seed=seed),
        *(Cell(dataset, condition, None, seed=seed) for condition in conditions),
        *([Cell(dataset, "untuned", 0, seed=seed)] if first else []),
    ]


def has_reports(settings: Settings, cell: Cell, value: Value) -> bool:
    """Whether a finished cell has the reports, where they are wanted and its rows are at hand."""
    return not (settings.full_reports and cell.seed == 0 and "texts" in value and "reports" not in value)


def shared(settings: Settings, cells: Sequence[Cell]) -> list[list[Call]]:
    """Everything that a data set's cells read and none of them changes, a data set at a time."""
    return [[partial(share, settings, name) for name in dict.fromkeys(cell.dataset for cell in cells)]]


def share(settings: Settings, dataset: str) -> None:
    """States, yardstick and embeddings of one data set."""
    from gradient_matching_data import embeddings, states
    from gradient_matching_release import yardstick

    some = Cell(dataset, "shared", None)
    states(settings, some)
    yardstick(settings, some)
    embeddings(settings, dataset, "train")
    if settings.full_reports:
        embeddings(settings, dataset, "test")


def figures(settings: Settings, cell: Cell) -> Value:
    """Every figure of a cell; its rows are under `texts`."""
    from gradient_matching_conditions import figures as made

    return made(settings, cell)


if __name__ == "__main__":
    main()
