"""The differences between groups of a comparison, in a table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from understudy.evaluation.metric_name import MetricName
from understudy.evaluation.statistics.comparison import seed_name
from understudy.evaluation.statistics.differences import difference_name
from understudy.reporting import view
from understudy.reporting.comparison_content import ComparisonContent, Group
from understudy.reporting.text_formatting import number, points
from understudy.reporting.view import Table

DIFFERENCES: Final = (
    "Mean over the seeds that both sides have, paired by seed. The interval is Student's over these seeds, and holds "
    "nothing of other test rows. One in twenty of such intervals leaves out zero by chance."
)


def pairs_of(groups: Sequence[Group]) -> tuple[tuple[Group, Group], ...]:
    """Groups that differ in one thing: the method at one epsilon, or the epsilon of one method."""
    return tuple(
        (one, other)
        for one, other in itertools.combinations(groups, 2)
        if (one.method == other.method) != (one.epsilon == other.epsilon)
    )


def differences_table(content: ComparisonContent, figure: MetricName) -> Table | None:
    """Mean differences of a figure, with intervals; None where no two groups share two seeds."""
    form = points if figure.unit == "share" else number
    rows = []
    for one, other in pairs_of(content.groups):
        name = difference_name(one.name, other.name, figure.pattern)
        if name in content.metrics:
            between = view.range_of(content.measured(), name, form)
            shared = _measured(content, one, figure) & _measured(content, other, figure)
            rows.append((f"{one.said} minus {other.said}", form(content.metrics[name]), between, number(len(shared))))
    return Table(("", "Difference", "Interval over seeds", "Seeds"), tuple(rows)) if rows else None


def _measured(content: ComparisonContent, group: Group, figure: MetricName) -> set[int]:
    """The seeds of a group whose runs have the figure."""
    return {seed for seed in group.seeds if seed_name(group.name, seed, figure.pattern) in content.metrics}
