"""The driver of every benchmark of cells: unfinished cells are run, finished ones are kept, published and read again.

A cell is one method or baseline with a seed and an epsilon. Its figures are one JSON file in the cache, which is
written as a whole or not at all, so a killed run goes on where it was. What is published of a cell holds no text.

A run does a cell again whose digest is not that of its settings. With `--print` a published cell counts by its name
alone: a method that has got another setting since would otherwise make every published figure unreadable.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

# Keys of a cell whose values are rows, real or synthetic: they stay in the cache.
TEXTS = ("texts", "samples")

Value = dict[str, Any]  # the figures of a cell
Seconds = tuple[float, float]  # of wall time, of processor time
Call = partial[Any]  # of a function at the top of a module, for another process


class Cell(Protocol):
    """One line of work, a frozen dataclass; its fields are written with its figures."""

    condition: str
    epsilon: float
    seed: int

    @property
    def name(self) -> str:
        """A file name."""


def _no_digest(settings: Any, cell: Any) -> None:
    return None


def _nothing_shared(settings: Any, cells: Sequence[Any]) -> list[list[Call]]:
    return []


def _one_by_one(cells: Sequence[Any]) -> list[list[Any]]:
    return [[cell] for cell in cells]


def _whole(settings: Any, cell: Any, value: Value) -> bool:
    return True


def _nothing(settings: Any, cell: Any) -> None:
    return None


@dataclass(frozen=True)
class Benchmark:
    """What the driver asks of a benchmark. Its functions run in other processes: they stand at the top of a module.

    Attributes:
        settings: what all cells of a run have in common; every function gets it first.
        figures: the figures of a cell.
        digest: of the settings that a cell's figures depend on: a cell of other settings is done again. None where the
            cell's name says them all.
        shared: stages of calls that make what several cells read, for the cells that wait; a stage begins when the
            one before has ended. Two cells would make it twice.
        chains: the cells that one process does one after the other.
        whole: whether a finished cell has every figure that this run wants.
        after: what is left to do when a cell is written.
        minutes: a guess per condition of what a cell takes, used until one of that condition is done.
    """

    settings: Any
    figures: Callable[[Any, Any], Value]
    digest: Callable[[Any, Any], str | None] = _no_digest
    shared: Callable[[Any, Sequence[Any]], list[list[Call]]] = _nothing_shared
    chains: Callable[[Sequence[Any]], list[list[Any]]] = _one_by_one
    whole: Callable[[Any, Any, Value], bool] = _whole
    after: Callable[[Any, Any], None] = _nothing
    minutes: Mapping[str, float] = field(default_factory=dict)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark of cells takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with one folder per data set; --print may do without")
    parser.add_argument("--cache", type=Path, required=True, help="folder of finished cells and of what they share")
    parser.add_argument("--published", type=Path, help="folder of finished cells without their texts")
    parser.add_argument("--figures", type=Path, help="JSON file of the tables; default: in the cache")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--limit", type=int, help="stop after this many cells")
    parser.add_argument("--print", action="store_true", help="only print what is finished")
    return parser


def add_numbers(parser: argparse.ArgumentParser, settings: Any, *, but: Sequence[str] = ()) -> None:
    """An option for each number among a benchmark's settings, with their own as its default."""
    kinds = {"int": int, "float": float}
    for one in fields(settings):
        if one.type in kinds and one.name not in but:
            option = f"--{one.name.replace('_', '-')}"
            parser.add_argument(option, type=kinds[str(one.type)], default=getattr(settings, one.name))


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, with the cache made and the paths that depend on it."""
    options = parser.parse_args()
    if options.data is None and not options.print:
        parser.error("--data: expected the folder of the data sets, found none; only --print does without")
    options.data = options.data or Path()
    options.cache.mkdir(parents=True, exist_ok=True)
    options.figures = options.figures or options.cache / f"{Path(sys.argv[0]).stem}-figures.json"
    return options


def settings_from(kind: type[Any], options: argparse.Namespace, **changes: Any) -> Any:
    """A dataclass of settings from the options of the same names; lists become tuples."""
    named = {one.name: getattr(options, one.name) for one in fields(kind) if hasattr(options, one.name)}
    return kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in (named | changes).items()}
    )


def complete(benchmark: Benchmark, cells: Sequence[Any], options: argparse.Namespace) -> dict[Any, Value]:
    """Run the cells that are not finished, publish what is, and give the figures of all that are.

    With `--print` nothing is run, and what is published stays as it is.

    Args:
        benchmark: what its cells do.
        cells: each once, what says most first: a run that is stopped early then has whole rows.
        options: of `parse`.
    """
    if not options.print:
        waiting = [cell for cell in cells if finished(benchmark, cell, options) is None]
        work(benchmark, waiting[: options.limit], options)
    found = {cell: value for cell in cells if (value := finished(benchmark, cell, options)) is not None}
    by_name = [cell for cell in found if printed_as_published(cell, options)]
    if by_name:
        print(f"Note: {len(by_name)} published cells are taken by their names, whatever settings they were made under.")
    for cell, value in found.items():
        if cell not in by_name:
            publish(cell.name, value, options.published)
    return found


def finished(benchmark: Benchmark, cell: Any, options: argparse.Namespace) -> Value | None:
    """A cell's figures; None where it is still to do."""
    if printed_as_published(cell, options):
        found = read(cell.name, options.published)
    elif any((folder / f"{cell.name}.json").exists() for folder in (options.cache, options.published) if folder):
        found = read(cell.name, options.cache, options.published, digest=digest_of(benchmark, cell, options))
    else:
        return None
    return found if found is not None and benchmark.whole(benchmark.settings, cell, found) else None


def printed_as_published(cell: Any, options: argparse.Namespace) -> bool:
    """Whether a published cell counts by its name, whatever its digest."""
    return bool(options.print and options.published and (options.published / f"{cell.name}.json").exists())


def digest_of(benchmark: Benchmark, cell: Any, options: argparse.Namespace) -> str | None:
    """Of the settings of a cell; some of them are resolved from the data."""
    from understudy.errors import InputError

    try:
        return benchmark.digest(benchmark.settings, cell)
    except InputError as error:
        if not options.print:
            raise
        raise SystemExit(f"{cell.name} is not published: expected --data, to compare its settings; {error}") from None


def work(benchmark: Benchmark, waiting: Sequence[Any], options: argparse.Namespace) -> None:
    """Do the cells, `--jobs` at a time; each is published when it is done."""
    if not waiting:
        return
    set_environment(options.cache)
    began, spent, left = time.monotonic(), dict[str, list[float]](), list(waiting)
    context = get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context, initializer=_use_one_thread) as pool:
        for stage in benchmark.shared(benchmark.settings, waiting):
            for job in [pool.submit(call) for call in stage]:
                job.result()
        print(f"what the cells share: {time.monotonic() - began:.0f} s", flush=True)
        jobs = [pool.submit(run_cells, benchmark, chain, options.cache) for chain in benchmark.chains(waiting)]
        try:
            for job in as_completed(jobs):
                for cell, (wall, cpu) in job.result().items():
                    publish(cell.name, finished(benchmark, cell, options), options.published)
                    left.remove(cell)
                    spent.setdefault(cell.condition, []).append(wall)
                    minutes = remaining(spent, left, benchmark.minutes) / options.jobs / 60
                    done = f"[{len(waiting) - len(left)}/{len(waiting)}] {cell.name}"
                    print(f"{done}: {wall:.0f} s, {cpu:.0f} s CPU; left {minutes:.0f} min", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # a cell that fails ends the run now, not hours later
            raise


def set_environment(cache: Path) -> None:
    """The home of the simulated charges, and one thread for every process."""
    home = (cache / "home").absolute()
    home.mkdir(parents=True, mode=0o700, exist_ok=True)
    os.environ["UNDERSTUDY_HOME"] = str(home)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def run_cells(benchmark: Benchmark, cells: Sequence[Any], cache: Path) -> dict[Any, Seconds]:
    """Do some cells one after the other."""
    return {cell: run_cell(benchmark, cell, cache) for cell in cells}


def run_cell(benchmark: Benchmark, cell: Any, cache: Path) -> Seconds:
    """Do one cell and write it."""
    began, cpu = time.monotonic(), time.process_time()
    figures = benchmark.figures(benchmark.settings, cell)
    seconds = (time.monotonic() - began, time.process_time() - cpu)
    # A cell that only lacked some figures brings the time of its making along.
    value = {"seconds": seconds[0], "cpu_seconds": seconds[1]} | figures | asdict(cell) | {"epsilon": str(cell.epsilon)}
    if (digest := benchmark.digest(benchmark.settings, cell)) is not None:
        value["digest"] = digest
    write(cache / f"{cell.name}.json", value)
    benchmark.after(benchmark.settings, cell)
    return seconds


def remaining(spent: Mapping[str, list[float]], cells: Sequence[Any], minutes: Mapping[str, float]) -> float:
    """Expected seconds of cells: the mean of their condition so far, or the guess for it, or the mean of all."""
    every = [seconds for found in spent.values() for seconds in found]

    def expected(condition: str) -> float:
        if condition in spent or condition not in minutes:
            found = spent.get(condition, every)
            return sum(found) / len(found)
        return 60 * minutes[condition]

    return sum(expected(cell.condition) for cell in cells)


@contextmanager
def temporary(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """A path beside the one wanted, renamed in the end: another process sees all of it or nothing."""
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    if folder:
        part.mkdir(parents=True, exist_ok=True)
    yield part
    if folder and path.exists():
        shutil.rmtree(part)
    else:
        part.rename(path)


def write(path: Path, value: Any) -> None:
    """JSON, whole or not at all."""
    with temporary(path) as part:
        part.write_text(json.dumps(value) + "\n")


def read(name: str, *folders: Path | None, digest: str | None = None) -> Value | None:
    """A cell's figures from the first folder that has them, made under the same settings; None where there are none.

    Args:
        name: of the cell.
        folders: cache first, then what is published; None for none.
        digest: of the settings; None where the name says them all.
    """
    for folder in folders:
        path = None if folder is None else folder / f"{name}.json"
        if path is not None and path.exists():
            found: Value = json.loads(path.read_text())
            if digest is None or found.get("digest") == digest:
                return found
    return None


def publish(name: str, value: Value | None, folder: Path | None) -> None:
    """A finished cell beside the script: every figure, which test rows were right, no text."""
    if folder is None or value is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"{name}.json", {key: found for key, found in value.items() if key not in TEXTS})


def short_digest(facts: Mapping[str, Any]) -> str:
    """16 characters that stand for settings."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
