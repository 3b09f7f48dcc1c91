"""What the report of a comparison says: its file report.json as one object."""

from __future__ import annotations

import math
from typing import Final, Literal

from pydantic import Field

from understudy.evaluation.metric_name import MetricName
from understudy.evaluation.metrics import Metrics
from understudy.frozen import Frozen
from understudy.reporting.report import MARKER

FORMAT: Final = "understudy.comparison/1"
LOOK: Final = (
    "These figures are measured on real rows. Choosing a method, an epsilon or a seed by them is a look at private "
    "rows that no epsilon covers: whoever exports the winner tells something of them that no statement counts.",
    "Every export keeps its own statement. Whoever hands over several of them has given away the sum of their "
    "epsilons and of their deltas.",
)


def said_epsilon(epsilon: float) -> str:
    """An epsilon in words."""
    return "∞" if math.isinf(epsilon) else f"{epsilon:g}"


class Group(Frozen):
    """Runs of one method and one epsilon, which differ in their seed.

    Attributes:
        name: part of the metrics' names.
        method: of the runs.
        epsilon: of each run; infinity for private output.
        seeds: of the runs that were measured.
        missing: seeds of those that were not.
    """

    name: str
    method: str
    epsilon: float
    seeds: tuple[int, ...]
    missing: tuple[int, ...] = ()

    @property
    def said(self) -> str:
        """The group in words."""
        return f"{self.method}, epsilon {said_epsilon(self.epsilon)}"


class ComparisonContent(Frozen):
    """All that a comparison's report says: report.json is this object."""

    format: Literal["understudy.comparison/1"] = FORMAT
    marker: Literal["internal, not private"] = MARKER
    title: str
    look: tuple[str, ...] = LOOK
    charged: str
    created: str = ""
    facts: dict[str, str] = Field(default_factory=dict, repr=False)
    groups: tuple[Group, ...]
    figures: tuple[MetricName, ...] = ()
    metrics: dict[str, float] = Field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = Field(default_factory=dict)
    missing: tuple[str, ...] = ()
    declared: tuple[MetricName, ...] = ()

    def measured(self) -> Metrics:
        """The figures with their intervals."""
        return Metrics(values=self.metrics, intervals=self.intervals, missing=self.missing, declared=self.declared)
