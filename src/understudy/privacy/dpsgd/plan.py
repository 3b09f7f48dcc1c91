"""What a DP training asks of its rows: sampler, clip norms, noise and steps, all public, without torch."""

from __future__ import annotations

from collections.abc import Sequence

from dp_accounting import DpEvent
from pydantic import Field, field_validator

from understudy.errors import InputError
from understudy.frozen import Frozen
from understudy.privacy.queries import Queries, Query, event_of
from understudy.quantities import rounded_up

_NAME = r"^[a-z0-9][a-z0-9_.-]*$"


class Stream(Frozen):
    """One clipped and noised sum of gradients per step; all values public."""

    name: str = Field(pattern=_NAME)
    l2_clip_norm: float = Field(gt=0, allow_inf_nan=False, description="Clip norm C of one example.")
    noise_multiplier: float = Field(ge=0, allow_inf_nan=False, description="Noise deviation / C; 0 is no DP.")


class DpSgdPlan(Frozen):
    """The one owner of sampler, clip norms, noise multipliers and event of a training; all values public."""

    name: str = Field(default="train", pattern=_NAME, description="Tells trainings of one charge apart.")
    n: int = Field(ge=1, description="Number of slots, null ones included.")
    sampling_probability: float = Field(gt=0, le=1)
    steps: int = Field(ge=1)
    streams: tuple[Stream, ...] = Field(min_length=1)

    @field_validator("streams")
    @classmethod
    def _check_names(cls, value: tuple[Stream, ...]) -> tuple[Stream, ...]:
        names = [stream.name for stream in value]
        if len(set(names)) != len(names):
            raise ValueError(f"expected different names, found streams={names}")
        return value

    @classmethod
    def of_epochs(cls, epochs: float, batch_size: float, *, n: int, name: str, streams: Sequence[Stream]) -> DpSgdPlan:
        """The training that sees every one of n rows so many times in expectation, in Poisson batches.

        Args:
            epochs: expected passes over the rows.
            batch_size: expected batch; all rows where there are fewer.
            n: number of slots, null ones included.
            name: of the training.
            streams: of every step.

        Raises:
            InputError: there is no row.
        """
        if n < 1:
            raise InputError(f"n={n}: expected at least one row")
        probability = min(1.0, batch_size / n)
        steps = max(1, rounded_up(epochs / probability))
        return cls(name=name, n=n, sampling_probability=probability, steps=steps, streams=tuple(streams))

    @property
    def expected_batch(self) -> float:
        """What every update is divided by: n * sampling_probability."""
        return self.n * self.sampling_probability

    @property
    def queries(self) -> Queries:
        """What the rows are asked, to be charged before training: one query per stream, all on one mask."""
        return tuple(
            Query(
                kind="gaussian_sum",
                name=f"{self.name}/{stream.name}",
                units=self.n,
                steps=self.steps,
                sensitivity=stream.l2_clip_norm,
                noise_multiplier=stream.noise_multiplier,
                batch=self.name,
                sampling_probability=self.sampling_probability,
            )
            for stream in self.streams
        )

    @property
    def event(self) -> DpEvent:
        """All steps and streams as one event."""
        return event_of(self.queries)


def plans_in(queries: Queries) -> tuple[DpSgdPlan, ...]:
    """The trainings whose queries are on a list, in its order; what is asked of no batch is passed over."""
    by_name: dict[str, list[Query]] = {}
    for query in queries:
        if query.batch is not None:
            by_name.setdefault(query.batch, []).append(query)
    return tuple(_plan_of(name, asked) for name, asked in by_name.items())


def _plan_of(name: str, asked: Sequence[Query]) -> DpSgdPlan:
    streams = tuple(
        Stream(
            name=query.name.removeprefix(f"{name}/"),
            l2_clip_norm=query.sensitivity,
            noise_multiplier=query.noise_multiplier,
        )
        for query in asked
    )
    first = asked[0]
    return DpSgdPlan(
        name=name,
        n=first.units,
        sampling_probability=first.sampling_probability,
        steps=first.steps,
        streams=streams,
    )
