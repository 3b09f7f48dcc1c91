"""Gradient matching on real reviews and tweets: what it buys beside prompting and chosen real rows.

    python benchmarks/gradient_matching.py --data ../shared/data --cache out/gradient-matching

Three tables. `main`: 40 synthetic rows matched to 5, 20 and 50 real rows without noise, and to the full training set
at epsilon inf, 8 and 0.05, beside zero-shot and few-shot text, herding, k-center, random rows and all real rows.
`targets`: the three targets at epsilon inf, 8 and 1, from 50 real rows and from all, and from 50 at an epsilon so small
that little but noise is left. `retokenised`: the matching loss of the emitted strings, tokenised again, against
zero-shot text and the best of as many plain samples as the same number of forward passes buys.

Accuracy is that of a shipped model fine-tuned on the rows (`evaluation.transfer`: 200 steps, last checkpoint) on real
test rows, with bootstrap intervals over test rows and seeds. Cells are cached as JSON, and one cell serves every table
that names it: a killed run goes on where it was, what says most comes first, and a cell that was made under other
settings is done again. The charges are simulations: measured, never exported.

`--published FOLDER` writes finished cells there too, without any text, and takes them from there: with `--print` the
tables are then remade in seconds.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import finished_cells
from gradient_matching_data import DATASETS, NOISE_ALONE, Cell, Settings, digest_of

TABLES = ("main", "targets", "retokenised")
SCARCE, EPSILONS = (5, 20, 50), (math.inf, 8.0, 0.05)
TARGETS = ((50, 8.0), (50, 1.0), (50, math.inf), (50, NOISE_ALONE), (None, 8.0), (None, 1.0), (None, math.inf))
KINDS = ("sketch", "label_rows", "head")


def main() -> None:
    options = parse()
    settings, every = settings_of(options), list(wanted(options))
    options.cache.mkdir(parents=True, exist_ok=True)
    if not options.print:
        work(options, settings, [cell for cell in every if finished(options, settings, cell) is None])
    for cell in every:
        publish(options, settings, cell)
    from gradient_matching_tables import print_tables

    found = {cell: value for cell in every if (value := finished(options, settings, cell)) is not None}
    print_tables(options.tables, found, default=default_kind(), models=settings.models, folder=options.cache)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per data set")
    parser.add_argument("--cache", type=Path, required=True, help="folder of finished cells and what they share")
    parser.add_argument("--published", type=Path, help="folder of finished cells without their texts")
    parser.add_argument("--datasets", nargs="+", choices=list(DATASETS), default=list(DATASETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--arms", nargs="+", help="only cells of these arms; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--samples", type=int, default=40, help="synthetic rows")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--inner-steps", type=int, default=10)
    parser.add_argument("--oversample", type=float, default=2.0, help="texts matched per text wanted")
    parser.add_argument("--compared", type=int, default=40, help="matched texts that plain samples are compared with")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--full-reports", action="store_true", help="seed 0: also distances, likelihood, membership")
    parser.add_argument("--limit", type=int, help="stop after this many cells")
    parser.add_argument("--print", action="store_true", help="only print what is finished")
    return parser.parse_args()


def settings_of(options: argparse.Namespace) -> Settings:
    return Settings(
        data=options.data,
        cache=options.cache,
        samples=options.samples,
        rounds=options.rounds,
        inner_steps=options.inner_steps,
        oversample=options.oversample,
        overrides=tuple(options.overrides),
        compared=options.compared,
        full_reports=options.full_reports,
    )


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
            fits = table in options.tables and (options.arms is None or cell.arm in options.arms)
            if fits and cell not in seen:
                seen.add(cell)
                yield cell


def of_seed(datasets: list[str], seed: int, *, first: bool) -> Iterator[tuple[str, Cell]]:
    """(table, cell) of one seed in order of worth."""
    matched = partial(Cell, arm="gradient matching", target=default_kind(), seed=seed)
    yield from (("main", matched(name, real=None, epsilon=epsilon)) for epsilon in (8.0, math.inf) for name in datasets)
    yield from (("main", cell) for name in datasets for cell in baselines(name, seed, first=first))
    yield from (
        ("targets", matched(name, real=real, epsilon=epsilon, target=kind))
        for (real, epsilon), name, kind in product(TARGETS, datasets, KINDS)
    )
    if first:
        for name, real, arm in product(datasets, (50, None), ("gradient matching", "plain samples")):
            yield "retokenised", matched(name, arm=arm, real=real)
    for name, real in product(datasets, reversed(SCARCE)):
        yield "main", matched(name, real=real)
        yield "main", Cell(name, "real rows", real, seed=seed)
        yield "main", Cell(name, "few-shot", real, seed=seed)
    yield from (("main", matched(name, real=None, epsilon=epsilon)) for epsilon in EPSILONS for name in datasets)


def baselines(dataset: str, seed: int, *, first: bool) -> list[Cell]:
    """What stands beside the private regime; a model that is not tuned is the same for every seed."""
    arms = ("random", "herding", "k-center", "real rows")
    return [
        Cell(dataset, "zero-shot", 0, seed=seed),
        Cell(dataset, "few-shot", max(SCARCE), seed=seed),
        *(Cell(dataset, arm, None, seed=seed) for arm in arms),
        *([Cell(dataset, "untuned", 0, seed=seed)] if first else []),
    ]


def finished(options: argparse.Namespace, settings: Settings, cell: Cell) -> dict[str, Any] | None:
    """A cell's figures; None where it is still to do."""
    found = finished_cells.read(cell.name, options.cache, options.published, digest=digest_of(settings, cell))
    reports_wanted = settings.full_reports and not options.print and cell.seed == 0
    if found is not None and reports_wanted and "texts" in found and "reports" not in found:
        return None
    return found


def publish(options: argparse.Namespace, settings: Settings, cell: Cell) -> None:
    """A finished cell beside the script."""
    finished_cells.publish(cell.name, finished(options, settings, cell), options.published)


def work(options: argparse.Namespace, settings: Settings, waiting: list[Cell]) -> None:
    """Do the cells that are not finished, `--jobs` at a time."""
    waiting = waiting[: options.limit]
    if not waiting:
        return
    home = (options.cache / "home").absolute()
    home.mkdir(mode=0o700, exist_ok=True)
    os.environ["UNDERSTUDY_HOME"] = str(home)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    began = time.monotonic()
    spent: dict[str, list[float]] = {}
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        # What cells share is made before them: two processes would make it twice.
        shared = [pool.submit(share, settings, name) for name in dict.fromkeys(cell.dataset for cell in waiting)]
        for ready in as_completed(shared):
            print(f"prepared {ready.result()}: {time.monotonic() - began:.0f} s", flush=True)
        jobs = {pool.submit(run_cell, settings, cell): cell for cell in waiting}
        try:
            for number, job in enumerate(as_completed(jobs), 1):
                cell, (wall, cpu) = jobs.pop(job), job.result()
                publish(options, settings, cell)
                spent.setdefault(cell.arm, []).append(wall)
                left = remaining(spent, list(jobs.values())) / options.jobs / 60
                took = f"{wall:.0f} s, {cpu:.0f} s CPU"
                print(f"[{number}/{len(waiting)}] {cell.name}: {took}; left {left:.0f} min", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # a cell that fails ends the run, not hours later
            raise


def remaining(spent: dict[str, list[float]], cells: list[Cell]) -> float:
    """Expected seconds of cells, by the mean of their arm so far, of all arms where it is the arm's first."""
    every = [seconds for found in spent.values() for seconds in found]
    return sum(sum(found) / len(found) for found in (spent.get(cell.arm, every) for cell in cells))


def share(settings: Settings, dataset: str) -> str:
    """Everything that a data set's cells read and none of them changes."""
    import torch
    from gradient_matching_data import embeddings, states
    from gradient_matching_release import yardstick

    torch.set_num_threads(1)
    some = Cell(dataset, "shared", None)
    states(settings, some)
    yardstick(settings, some)
    embeddings(settings, dataset, "train")
    if settings.full_reports:
        embeddings(settings, dataset, "test")
    return dataset


def run_cell(settings: Settings, cell: Cell) -> tuple[float, float]:
    """Do one cell and write it; (wall, processor) seconds."""
    import torch
    from gradient_matching_arms import figures

    torch.set_num_threads(1)
    began, cpu = time.monotonic(), time.process_time()
    found = figures(settings, cell)
    seconds = (time.monotonic() - began, time.process_time() - cpu)
    # A cell that only lacked its reports keeps the time of its making.
    result = {"seconds": seconds[0], "cpu_seconds": seconds[1]} | found
    result |= {
        "dataset": cell.dataset,
        "arm": cell.arm,
        "real": cell.real,
        "epsilon": str(cell.epsilon),
        "target": cell.target,
        "seed": cell.seed,
        "digest": digest_of(settings, cell),
    }
    finished_cells.write(settings.cache / f"{cell.name}.json", result)
    return seconds


if __name__ == "__main__":
    main()
