"""What an evaluation or audit found: figures under stable dotted names, and what is missing.

Metrics are computed on private members, holdouts or test rows: they are internal, and never influence
anything exported.
"""

from __future__ import annotations

import math

from pydantic import Field, model_validator

from understudy.evaluation import names
from understudy.evaluation.metric_name import MetricName
from understudy.evaluation.texts.diversity import LengthHistogram
from understudy.frozen import Frozen


class Histogram(Frozen):
    """Shares of several sets per bin; bin i holds values from edges[i] up to edges[i + 1].

    Attributes:
        edges: (bins + 1,) ascending.
        shares: name of the set -> (bins,) shares, which add up to 1.
        counted: what is counted, in plain words.
    """

    edges: tuple[float, ...]
    shares: dict[str, tuple[float, ...]]
    counted: str

    @model_validator(mode="after")
    def _check(self) -> Histogram:
        numbers = [*self.edges, *(share for shares in self.shares.values() for share in shares)]
        lengths = {name: len(shares) for name, shares in self.shares.items()}
        if not all(map(math.isfinite, numbers)) or set(lengths.values()) - {len(self.edges) - 1}:
            raise ValueError(f"expected one finite share per bin, found {len(self.edges)} edges and {lengths} shares")
        return self


class Metrics(Frozen):
    """Measured figures under stable dotted names.

    Attributes:
        values: name -> finite value.
        intervals: name -> (low, high), for some of the names.
        missing: what was not measured and why, in plain words.
        lengths: histogram for the length figure.
        histograms: further ones, by dotted name.
        declared: the names, beside the common ones of `common_metrics.METRICS`, that this measurement may use.
    """

    values: dict[str, float] = Field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = Field(default_factory=dict)
    missing: tuple[str, ...] = ()
    lengths: LengthHistogram | None = None
    histograms: dict[str, Histogram] = Field(default_factory=dict)
    declared: tuple[MetricName, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Metrics:
        names.check_declared(self.declared)
        names.check_names(self.values, self.declared)
        for name, value in self.values.items():
            if not math.isfinite(value):
                raise ValueError(f"expected a finite value, found {name}={value}")
        stray = sorted(set(self.intervals) - set(self.values))
        if stray:
            raise ValueError(f"expected intervals of measured values only, found {stray}")
        return self


def merge(*parts: Metrics) -> Metrics:
    """One `Metrics` with everything in `parts`; what several parts declare alike is declared once.

    Raises:
        ValueError: when two parts measured the same name, or declare one name with two meanings.
    """
    values: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    for part in parts:
        twice = sorted({*values, *histograms} & {*part.values, *part.histograms})
        if twice:
            raise ValueError(f"expected each metric once, found twice: {twice}")
        values |= part.values
        histograms |= part.histograms
    return Metrics(
        values=values,
        intervals={name: pair for part in parts for name, pair in part.intervals.items()},
        missing=tuple(dict.fromkeys(reason for part in parts for reason in part.missing)),
        lengths=next((part.lengths for part in parts if part.lengths is not None), None),
        histograms=histograms,
        declared=tuple(dict.fromkeys(metric for part in parts for metric in part.declared)),
    )
