"""Preference optimisation on real abstracts: what preferences teach, how many survive noise, what the texts are worth.

    python benchmarks/preference_optimization.py --data ../shared/data --cache out/preference-optimization

750 clients of one abstract each, 100 held out, tiny-llama as policy, public text as seeds. Three tables. `rounds`: the
Frechet distance of each round's candidates to held-out samples, without noise, beside a control whose preferences are
shuffled and the distance of real samples to real ones, all at one sample size. `recovery`: the share of the first
round's preferences that are the same way round without noise, at epsilon inf, 7 and 1, with the 750 clients and in
populations of 100 to 70,000 drawn from them with replacement; also for the same prompts as if among the paper's 1800
in 20 rounds, where each prompt gets a smaller share of a client's say and noise wins sooner. `next token`: accuracy on
held-out clients of a model tuned on the texts, beside Private Evolution, PE + SFT, the public model's own texts, the
public model as it is (epsilon 0) and real texts.

Cells are cached as JSON and a cell made under other settings is done again. A killed run goes on where it was, POPri
within a cell from its last whole round; what says most comes first. The charges are simulations: measured, never
exported. A POPri cell of six rounds takes about 15 minutes on a core, a recovery cell seconds; `--prompts`, `--rounds`
and `--samples` shrink the work and are named above the tables.

`--published FOLDER` writes finished cells there too, without any text, and takes them from there: with `--print` the
tables are then remade in seconds, without the data.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import finished_cells
from preference_optimization_data import Cell, Settings, digest_of

ARMS = ("popri", "popri-shuffled", "recovery", "prompt-only", "epsilon-0", "pe", "pe+sft", "real")
# Expected minutes of a cell until one of its arm is done.
MINUTES = {"popri": 15.0, "popri-shuffled": 15.0, "recovery": 0.5, "pe": 8.0, "pe+sft": 4.0, "real": 4.0}


def main() -> None:
    options = parse()
    settings, every = settings_of(options), list(wanted(options))
    options.cache.mkdir(parents=True, exist_ok=True)
    if not options.print:
        work(options, settings, [cell for cell in every if finished(options, settings, cell) is None])
    for cell in every:
        publish(options, settings, cell)
    from preference_optimization_tables import print_tables

    found = {cell: value for cell in every if (value := finished(options, settings, cell)) is not None}
    print_tables(found, settings=settings, folder=options.cache)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per data set")
    parser.add_argument("--cache", type=Path, required=True, help="folder of finished cells and what they share")
    parser.add_argument("--published", type=Path, help="folder of finished cells without their texts")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[math.inf, 7.0, 1.0])
    parser.add_argument("--clients", type=int, default=750, help="real clients; fewer for a trial")
    parser.add_argument("--populations", type=int, nargs="*", default=[100, 2000, 10_000, 70_000], help="for recovery")
    parser.add_argument("--trained-populations", type=int, nargs="*", default=[10_000], help="for whole runs too")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--prompts", type=int, default=64, help="K")
    parser.add_argument("--per-prompt", type=int, default=10, help="J")
    parser.add_argument("--rounds", type=int, default=6, help="T")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of a candidate at most")
    parser.add_argument("--rejected-rank", type=int, default=5, help="l")
    parser.add_argument("--samples", type=int, default=1000, help="synthetic texts")
    parser.add_argument("--epochs", type=int, default=2, help="of the downstream model")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--limit", type=int, help="stop after this many cells")
    parser.add_argument("--print", action="store_true", help="only print what is finished")
    return parser.parse_args()


def settings_of(options: argparse.Namespace) -> Settings:
    return Settings(
        data=options.data,
        cache=options.cache,
        clients=options.clients,
        prompts=options.prompts,
        per_prompt=options.per_prompt,
        rounds=options.rounds,
        tokens=options.tokens,
        rejected_rank=options.rejected_rank,
        samples=options.samples,
        epochs=options.epochs,
        overrides=tuple(options.overrides),
    )


def wanted(options: argparse.Namespace) -> Iterator[Cell]:
    """The cells, once each, what says most first: a run that is stopped early has whole rows."""
    seen: set[Cell] = set()
    for cell in in_order(options):
        known = cell.epsilon in options.epsilons or cell.arm in ("epsilon-0", "prompt-only")
        if cell.arm in options.arms and known and cell not in seen:
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
        yield Cell("popri-shuffled", math.inf, real, seed)
        for population, epsilon in product((real, *options.populations), options.epsilons):
            yield Cell("recovery", epsilon, population, seed)
        for epsilon, arm in product(finite, ("popri", "pe", "pe+sft")):
            yield Cell(arm, epsilon, real, seed)
    for seed, epsilon, population in product(options.seeds, reversed(finite), options.trained_populations):
        yield Cell("popri", epsilon, population, seed)


def finished(options: argparse.Namespace, settings: Settings, cell: Cell) -> dict[str, Any] | None:
    """A cell's figures; None where it is still to do."""
    return finished_cells.read(cell.name, options.cache, options.published, digest=digest_of(settings, cell))


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
        pool.submit(share, settings).result()
        asking = {cell.seed: cell for cell in waiting if cell.arm in ("popri", "popri-shuffled", "recovery")}
        for ready in [pool.submit(share_candidates, settings, cell) for cell in asking.values()]:
            ready.result()
        print(f"clients and first candidates: {time.monotonic() - began:.0f} s", flush=True)
        jobs = [pool.submit(run_cells, settings, chain) for chain in chains(waiting)]
        try:
            for job in as_completed(jobs):
                for cell, (wall, cpu) in job.result().items():
                    publish(options, settings, cell)
                    waiting.remove(cell)
                    spent.setdefault(cell.arm, []).append(wall)
                    left = sum(expected(spent, other) for other in waiting) / options.jobs / 60
                    took = f"{wall:.0f} s, {cpu:.0f} s CPU"
                    print(f"{cell.name}: {took}; {len(waiting)} cells left, {left:.0f} min", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # a cell that fails ends the run, not hours later
            raise


def chains(cells: list[Cell]) -> list[list[Cell]]:
    """Cells in order, PE + SFT in one chain with its PE cell: it starts from that one's survivors."""
    found: list[list[Cell]] = []
    for cell in cells:
        if cell.arm == "pe+sft" and found and replace(cell, arm="pe") in found[-1]:
            found[-1].append(cell)
        else:
            found.append([cell])
    return found


def expected(spent: dict[str, list[float]], cell: Cell) -> float:
    """Seconds of a cell: the mean of its arm so far, or a guess."""
    found = spent.get(cell.arm)
    return sum(found) / len(found) if found else 60 * MINUTES.get(cell.arm, 3.0)


def share(settings: Settings) -> None:
    """Embed the real clients and the held-out ones."""
    import torch
    from preference_optimization_data import real_pool, unseen

    torch.set_num_threads(1)
    real_pool(settings)
    unseen(settings)


def share_candidates(settings: Settings, cell: Cell) -> None:
    """The first round of a seed."""
    import torch
    from preference_optimization_data import first_candidates

    torch.set_num_threads(1)
    first_candidates(settings, cell)


def run_cells(settings: Settings, cells: list[Cell]) -> dict[Cell, tuple[float, float]]:
    """Do some cells one after the other."""
    return {cell: run_cell(settings, cell) for cell in cells}


def run_cell(settings: Settings, cell: Cell) -> tuple[float, float]:
    """Do one cell and write it; (wall, processor) seconds."""
    import torch
    from preference_optimization_arms import figures, rounds_folder

    torch.set_num_threads(1)
    began, cpu = time.monotonic(), time.process_time()
    result = figures(settings, cell)
    seconds = (time.monotonic() - began, time.process_time() - cpu)
    result |= {
        "arm": cell.arm,
        "epsilon": str(cell.epsilon),
        "population": cell.population,
        "seed": cell.seed,
        "digest": digest_of(settings, cell),
        "seconds": seconds[0],
        "cpu_seconds": seconds[1],
    }
    finished_cells.write(settings.cache / f"{cell.name}.json", result)
    shutil.rmtree(rounds_folder(settings, cell), ignore_errors=True)
    return seconds


if __name__ == "__main__":
    main()
