"""How far two groups of runs differ in one figure: the mean over the seeds that both have, paired by seed.

Runs of one seed share their test rows, and what the seed alone decides, such as initial weights. What they share goes
out of a difference. The interval is Student's at 95 % over the seeds (Student 1908), and holds nothing of other test
rows. Of many differences, one in twenty leaves out zero by chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from understudy.evaluation.metric_name import MetricName
from understudy.evaluation.metrics import Metrics
from understudy.evaluation.statistics.comparison import MeasuredRun
from understudy.evaluation.statistics.paired import student_half

# One difference says nothing of its own spread.
FEWEST_SEEDS: Final = 2


def difference_name(one: str, other: str, figure: str) -> str:
    """The name of the mean difference of two groups.

    >>> difference_name("bag-eps8", "letters-eps8", "fidelity.mauve")
    'comparison.bag-eps8.minus.letters-eps8.fidelity.mauve'
    """
    return f"comparison.{one}.minus.{other}.{figure}"


def differences(runs: Sequence[MeasuredRun], pairs: Iterable[tuple[str, str]], figure: MetricName) -> Metrics:
    """Mean differences of a figure with intervals over seeds, for the pairs that share at least `FEWEST_SEEDS` seeds.

    Args:
        runs: those that were measured; no two of one group and seed.
        pairs: names of two groups, the second to be taken off the first.
        figure: a figure of the runs.
    """
    by_group: dict[str, dict[int, float]] = {}
    for run in runs:
        if figure.pattern in run.metrics.values:
            by_group.setdefault(run.group, {})[run.seed] = run.metrics.values[figure.pattern]
    values: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    declared: list[MetricName] = []
    for one, other in pairs:
        a, b = by_group.get(one, {}), by_group.get(other, {})
        seeds = sorted(a.keys() & b.keys())
        if len(seeds) < FEWEST_SEEDS:
            continue
        found = np.array([a[seed] - b[seed] for seed in seeds])
        name, mean, half = difference_name(one, other, figure.pattern), float(found.mean()), student_half(found)
        values[name], intervals[name] = mean, (mean - half, mean + half)
        said = f"{one} minus {other}, mean over {len(seeds)} seeds. {figure.meaning}"
        declared.append(MetricName(name, said, figure.unit, "context"))
    return Metrics(values=values, intervals=intervals, declared=tuple(declared))
