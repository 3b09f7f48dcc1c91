"""The runs that a comparison is made of, checked: nothing is read yet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Final

from understudy.errors import InputError
from understudy.methods import registry
from understudy.runs.comparisons.request import MOST_RUNS, Cell, CompareRequest, epsilon_text
from understudy.runs.request import RunRequest, check_epsilon

SEED: Final = "public_seed"


def cells_of(request: CompareRequest) -> tuple[Cell, ...]:
    """The runs of a comparison, method by method, then by epsilon and by seed.

    Raises:
        InputError: a method is unknown, something is named twice, there are too many runs, or a field of the run has
            another place here.
    """
    for method in request.methods:
        registry.check_name(method)
    _check_once("METHOD", request.methods)
    _check_once("--epsilon", [epsilon_text(check_epsilon(epsilon)) for epsilon in request.epsilons])
    _check_once("--seeds", request.seeds)
    count = len(request.methods) * len(request.epsilons) * len(request.seeds)
    if count > MOST_RUNS:
        raise InputError(
            f"--seeds: expected at most {MOST_RUNS} runs in all, found {len(request.methods)} methods x "
            f"{len(request.epsilons)} epsilons x {len(request.seeds)} seeds = {count}; name fewer of them"
        )
    _check_run(request.run)
    overrides = {method: _overrides_of(request, method) for method in request.methods}
    return tuple(
        _cell(request.run, method, epsilon, seed, overrides[method])
        for method, epsilon, seed in product(request.methods, request.epsilons, request.seeds)
    )


def _cell(run: RunRequest, method: str, epsilon: float, seed: int, overrides: Sequence[str]) -> Cell:
    plain = Cell(method=method, epsilon=epsilon, seed=seed, request=run)
    changes = {
        "out": str(Path(run.out) / plain.name),
        "epsilon": epsilon,
        # The source's, which the comparison registers: so a cell is the same run whether --budget was given or not.
        "budget": None,
        "overrides": (*overrides, f"{SEED}={seed}"),
    }
    return plain.model_copy(update={"request": run.model_copy(update=changes)})


def _overrides_of(request: CompareRequest, method: str) -> tuple[str, ...]:
    """Those for all methods and those for this one, in the order given."""
    found = []
    for override in request.run.overrides:
        name, _, _ = override.partition("=")
        first, dot, _ = name.strip().partition(".")
        owner = first if dot and first in registry.names() else None
        if owner is not None and owner not in request.methods:
            raise InputError(
                f"--set {override}: expected a setting of a method that is compared, found one of {owner}; compared "
                f"are {', '.join(request.methods)}"
            )
        plain = override.strip().removeprefix(f"{owner}.") if owner else override
        if plain.partition("=")[0].strip() == SEED:
            raise InputError(f"--set {override}: expected the seeds as --seeds, for example --seeds 0,1,2")
        if owner in (None, method):
            found.append(plain)
    return tuple(found)


def _check_once(option: str, given: Sequence[object]) -> None:
    twice = sorted({str(one) for one in given if given.count(one) > 1})
    if twice:
        raise InputError(f"{option} {','.join(map(str, given))}: expected each once, found {', '.join(twice)} twice")


def _check_run(run: RunRequest) -> None:
    if run.epsilon is not None:
        raise InputError("run.epsilon: expected the epsilons of all runs as epsilons; leave run.epsilon out")
    if run.share_real_rows:
        raise InputError(
            "run.share_real_rows: expected runs with an epsilon, whose output holds no real rows; leave it out"
        )
