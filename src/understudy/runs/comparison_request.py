"""What a user asks of a comparison, and the runs that this makes: public values only, nothing is read.

The same object is the parameter of the Prefect flow, so the Prefect UI draws its form from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from understudy.errors import InputError
from understudy.methods import registry
from understudy.runs.request import Epsilon, RunRequest, check_epsilon

MOST_RUNS: Final = 100
SEED: Final = "public_seed"
_OPTIONS: Final = {"methods": "METHOD", "epsilons": "--epsilon", "seeds": "--seeds"}


class CompareRequest(BaseModel):
    """Every method with every epsilon and every seed on one private table. Public values only."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", hide_input_in_errors=True)

    methods: tuple[Annotated[str, Field(min_length=1, max_length=100)], ...] = Field(
        min_length=1, max_length=MOST_RUNS, description="Methods to compare; all protect the same kind of rows."
    )
    epsilons: tuple[Epsilon, ...] = Field(
        min_length=1, max_length=MOST_RUNS, description='Epsilons of the runs; > 0. "inf": private output.'
    )
    seeds: tuple[Annotated[int, Field(ge=0, lt=1_000_000)], ...] = Field(
        default=(0,),
        min_length=1,
        max_length=MOST_RUNS,
        description="Public seeds, 0 to 999,999: each is another run, with a charge of its own where private rows "
        "meet the seed.",
    )
    run: RunRequest = Field(
        description="What every run is asked, without epsilon and share_real_rows. Its out is the folder of the "
        "comparison, in which each run has one of its own; its budget is that of the source. An override that begins "
        "with the name of a method, as METHOD.section.key=value, is for that method alone."
    )


@dataclass(frozen=True)
class Cell:
    """One run of a comparison.

    Attributes:
        method: its name.
        epsilon: of the run.
        seed: public.
        request: what the method's own flow is asked.
    """

    method: str
    epsilon: float
    seed: int
    request: RunRequest

    @property
    def group(self) -> str:
        """Method and epsilon, which the seeds are taken together of, as part of a metric's name."""
        return f"{self.method}-eps{epsilon_text(self.epsilon).replace('.', '_')}"

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.method}-eps{epsilon_text(self.epsilon)}-seed{self.seed}"

    @property
    def folder(self) -> Path:
        """Where its export/ and internal/ are."""
        return Path(self.request.out).expanduser()


def epsilon_text(epsilon: float) -> str:
    """The shortest decimal that says this epsilon.

    >>> epsilon_text(8.0), epsilon_text(0.5), epsilon_text(float("inf"))
    ('8', '0.5', 'inf')
    """
    return repr(float(epsilon)).removesuffix(".0")


def compare_request_of(fields: Mapping[str, Any]) -> CompareRequest:
    """The request with these fields.

    Raises:
        InputError: a field is missing, unknown or malformed; named without its value, which may be private.
    """
    try:
        return CompareRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    place = str(first["loc"][0]) if first["loc"] else ""
    raise InputError(f"{_OPTIONS.get(place, place or 'request')}: {first['msg'].removeprefix('Value error, ')}")


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
    plain = Cell(method, epsilon, seed, run)
    changes = {
        "out": str(Path(run.out) / plain.name),
        "epsilon": epsilon,
        # The source's, which the comparison registers: so a cell is the same run whether --budget was given or not.
        "budget": None,
        "overrides": (*overrides, f"{SEED}={seed}"),
    }
    return Cell(method, epsilon, seed, run.model_copy(update=changes))


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
