"""What a user asks of a comparison, and the runs that this makes: public values only, nothing is read.

The same object is the parameter of the Prefect flow, so the Prefect UI draws its form from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from understudy.runs.request import Epsilon, RunRequest, checked_request

MOST_RUNS: Final = 100
_OPTIONS: Final = {"methods": "METHOD", "epsilons": "--epsilon", "run": "run"}


class CompareRequest(BaseModel):
    """Every method with every epsilon and every seed on one private table. Public values only."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", hide_input_in_errors=True)

    methods: tuple[Annotated[str, Field(min_length=1, max_length=100)], ...] = Field(
        min_length=1, max_length=MOST_RUNS, description="Methods to compare; all protect the same kind of rows."
    )
    epsilons: tuple[Epsilon, ...] = Field(
        min_length=1, max_length=MOST_RUNS, description='Epsilons of the runs, 0.0001 to 100. "inf": private output.'
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


class Cell(BaseModel):
    """One run of a comparison.

    Attributes:
        method: its name.
        epsilon: of the run.
        seed: public.
        request: what the method's own flow is asked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

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
    """`checked_request` of a comparison."""
    return checked_request(CompareRequest, fields, options=_OPTIONS)
