"""Claim: noisy preferences of clients bring texts nearer to theirs, and make texts that are worth training on.

    python benchmarks/preference_optimization.py --data ../shared/data --cache out/preference-optimization

750 clients of one abstract each, 100 held out, tiny-llama as policy, public text as seeds. Three tables. `rounds`: the
Frechet distance of each round's candidates to held-out samples, without noise, beside a control whose preferences are
shuffled and the distance of real samples to real ones, all at one sample size. `recovery`: the share of the first
round's preferences that are the same way round without noise, at epsilon inf, 7 and 1, with the 750 clients and in
populations of 100 to 70,000 drawn from them with replacement; also for the same prompts as if among the paper's 1800
in 20 rounds, where each prompt gets a smaller share of a client's say and noise wins sooner. `next token`: accuracy on
held-out clients of a model tuned on the texts, beside Private Evolution, PE + SFT, the public model's own texts, the
public model as it is (epsilon 0) and real texts; also as many real texts as synthetic ones, and as many public seeds.

A cell made under other settings is done again. A killed POPri cell goes on from its last whole round. The charges are
simulations: measured, never exported. A POPri cell of six rounds takes about 15 minutes on a core, a recovery cell
seconds; `--prompts`, `--rounds` and `--samples` shrink the work and are named above the tables.

`--published FOLDER` writes finished cells there too, without any text, and takes them from there: with `--print` the
tables are then remade in seconds, without the data, and written as JSON (`--figures`).
"""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from cells import Benchmark, Call, Value, arguments, complete, parse, settings_from
from preference_optimization_data import Cell, Settings, digest_of

CONTROLS = ("real-as-many", "public-seeds")
CONDITIONS = ("popri", "popri-shuffled", "recovery", "prompt-only", "epsilon-0", "pe", "pe+sft", "real", *CONTROLS)
# Expected minutes of a cell until one of its condition is done.
MINUTES = {"popri": 15.0, "popri-shuffled": 15.0, "recovery": 0.5, "pe": 8.0, "pe+sft": 4.0, "real": 4.0}


def main() -> None:
    options = parse_options()
    settings = settings_from(Settings, options)
    benchmark = Benchmark(
        settings, figures, digest=digest_of, shared=shared, chains=chains, after=drop_rounds, minutes=MINUTES
    )
    found = complete(benchmark, list(wanted(options)), options)
    from preference_optimization_tables import print_tables

    print_tables(found, settings=settings, path=options.figures)


def parse_options() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[math.inf, 7.0, 1.0])
    parser.add_argument("--clients", type=int, default=750, help="real clients; fewer for a trial")
    parser.add_argument("--populations", type=int, nargs="*", default=[100, 2000, 10_000, 70_000], help="for recovery")
    parser.add_argument("--trained-populations", type=int, nargs="*", default=[10_000], help="for whole runs too")
    parser.add_argument("--prompts", type=int, default=64, help="K")
    parser.add_argument("--per-prompt", type=int, default=10, help="J")
    parser.add_argument("--rounds", type=int, default=6, help="T")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of a candidate at most")
    parser.add_argument("--rejected-rank", type=int, default=5, help="l")
    parser.add_argument("--samples", type=int, default=1000, help="synthetic texts")
    parser.add_argument("--epochs", type=int, default=2, help="of the downstream model")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="PATH=VALUE")
    return parse(parser)


def wanted(options: argparse.Namespace) -> Iterator[Cell]:
    """The cells, once each, what says most first: a run that is stopped early has whole rows."""
    seen: set[Cell] = set()
    for cell in in_order(options):
        known = cell.epsilon in options.epsilons or cell.condition in ("epsilon-0", "prompt-only")
        if cell.condition in options.conditions and known and cell not in seen:
            seen.add(cell)
            yield cell


def in_order(options: argparse.Namespace) -> Iterator[Cell]:
    """Every cell in order of worth, some of them twice."""
    real, (first, *_) = options.clients, options.seeds
    finite = [epsilon for epsilon in options.epsilons if math.isfinite(epsilon)]
    yield Cell("popri", math.inf, real, first)
    yield Cell("popri-shuffled", math.inf, real, first)
    for population, epsilon in product((real, *options.populations), options.epsilons):
        yield Cell("recovery", epsilon, population, first)
    yield Cell("epsilon-0", 0.0, real, first)  # the same for every seed
    for seed in options.seeds:
        yield Cell("popri", math.inf, real, seed)
        yield Cell("prompt-only", 0.0, real, seed)
        yield Cell("pe", math.inf, real, seed)
        yield Cell("pe+sft", math.inf, real, seed)
        yield Cell("real", math.inf, real, seed)
        for control in CONTROLS:
            yield Cell(control, math.inf, real, seed)
        yield Cell("popri-shuffled", math.inf, real, seed)
        for population, epsilon in product((real, *options.populations), options.epsilons):
            yield Cell("recovery", epsilon, population, seed)
        for epsilon, condition in product(finite, ("popri", "pe", "pe+sft")):
            yield Cell(condition, epsilon, real, seed)
    for seed, epsilon, population in product(options.seeds, reversed(finite), options.trained_populations):
        yield Cell("popri", epsilon, population, seed)


def shared(settings: Settings, cells: Sequence[Cell]) -> list[list[Call]]:
    """The clients' embeddings, then the first round of every seed that asks for it."""
    asking = {cell.seed: cell for cell in cells if cell.condition in ("popri", "popri-shuffled", "recovery")}
    return [[partial(share, settings)], [partial(share_candidates, settings, cell) for cell in asking.values()]]


def share(settings: Settings) -> None:
    """Embed the real clients and the held-out ones."""
    from preference_optimization_data import real_pool, unseen

    real_pool(settings)
    unseen(settings)


def share_candidates(settings: Settings, cell: Cell) -> None:
    """The first round of a seed."""
    from preference_optimization_data import first_candidates

    first_candidates(settings, cell)


def chains(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells in order, PE + SFT in one chain with its PE cell: it starts from that one's survivors."""
    found: list[list[Cell]] = []
    for cell in cells:
        if cell.condition == "pe+sft" and found and replace(cell, condition="pe") in found[-1]:
            found[-1].append(cell)
        else:
            found.append([cell])
    return found


def figures(settings: Settings, cell: Cell) -> Value:
    """Every figure of a cell; its rows are under `texts`."""
    from preference_optimization_conditions import figures as made

    return made(settings, cell)


def drop_rounds(settings: Settings, cell: Cell) -> None:
    """A finished cell's rounds are not needed any more."""
    from preference_optimization_conditions import rounds_folder

    shutil.rmtree(rounds_folder(settings, cell), ignore_errors=True)


if __name__ == "__main__":
    main()
