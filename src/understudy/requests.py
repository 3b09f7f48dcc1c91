"""What a user asks of a run, before anything is read: public values only.

The same object is the parameter of the Prefect flow, so the Prefect UI draws its form from it.
"""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from understudy.errors import InputError

Profile = Literal["tiny", "paper"]


class Budget(BaseModel):
    """The whole (epsilon, delta) that every run on one source may spend together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: float = Field(description="Total epsilon of the source; > 0, finite.")
    delta: float = Field(description="Total delta of the source; between 0 and 1, exclusive.")

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if not (0 < self.epsilon < math.inf) or not 0 < self.delta < 1:
            raise ValueError(
                f"expected a budget with 0 < epsilon < inf and 0 < delta < 1, found {self.epsilon:g},{self.delta:g}"
            )
        return self


def parse_budget(text: str) -> Budget:
    """Read `E,D`, for example `8,1e-5`.

    Raises:
        InputError: when the text is not two numbers in range.
    """
    try:
        epsilon, delta = (float(part) for part in text.split(","))
        return Budget(epsilon=epsilon, delta=delta)
    except ValueError as error:
        raise InputError(
            f"--budget {text}: expected EPSILON,DELTA with 0 < epsilon < inf and 0 < delta < 1, for example 8,1e-5"
        ) from error


class RunRequest(BaseModel):
    """One run of a method on a private table. Public values only."""

    # Infinity has no JSON number; as a string it survives Prefect's parameters.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    data: str = Field(
        description="CSV, JSONL or Parquet file, a datasets hub id, or sample:NAME. Read in the client zone."
    )
    source: str = Field(min_length=1, description="Name under which these rows keep their budget.")
    out: str = Field(description="Folder for export/ (safe to hand over) and internal/ (not private).")
    epsilon: float = Field(description="Epsilon of this run; > 0. inf: private output that never leaves.")
    delta: float | None = Field(default=None, description="Delta, below 1/n. Default 1/(n ln n).")
    budget: Budget | None = Field(
        default=None,
        description="Total budget, read on a source's first use; default this run's epsilon, delta.",
    )
    text_column: str = Field(default="text", description="Column with the texts.")
    label_column: str = Field(default="label", description="Column with the labels.")
    client_column: str = Field(
        default="client_id", description="Column that says whose text it is, for methods that protect clients."
    )
    label_names: dict[str, str] | None = Field(
        default=None, description="Value in the label column -> name used in prompts; declared public."
    )
    test: str | None = Field(
        default=None, description="Real rows for measuring only. Default: every tenth row is held out."
    )
    profile: Profile = Field(default="tiny", description="tiny: two cores, minutes. paper: the paper's sizes.")
    overrides: tuple[str, ...] = Field(default=(), description="section.key=value over the profile.")
    model: str | None = Field(default=None, description="Base model: shipped name, folder or hub id.")
    samples: int | None = Field(default=None, description="Number of synthetic texts; >= 1.")
    accept_new_charge: bool = Field(
        default=False, description="Pay again when the code or the environment changed since the charge."
    )

    @field_validator("data", "out")
    @classmethod
    def _check_not_empty(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("expected a path or a name, found an empty text")
        return value


def check_epsilon(epsilon: float) -> float:
    """Return `epsilon` when it is > 0 (inf allowed).

    Raises:
        InputError: when it is nan, zero or negative.
    """
    if math.isnan(epsilon) or epsilon <= 0:
        raise InputError(f"--epsilon {epsilon:g}: expected a number above 0, or inf for output that stays private")
    return epsilon


def check_delta(delta: float, *, n: int) -> float:
    """Return `delta` when 0 < delta < 1/n.

    Raises:
        InputError: when it is out of range; delta >= 1/n would allow a mechanism that publishes one row.
    """
    if not 0 < delta < 1 / n:
        raise InputError(
            f"--delta {delta:g}: expected 0 < delta < 1/n = {1 / n:.3g} for n={n} rows; leave it out for 1/(n ln n)"
        )
    return delta
