"""The figures of several runs side by side: the mean over seeds of each, its interval and its spread.

Runs are taken together in groups, such as one method at one epsilon, that differ in their seed alone. All figures are
computed on real rows, and none of them may choose what is exported.

The *interval* of a mean is the mean of the ends of the runs' own intervals. Those are over test rows, which are the
same for all runs, so it says how far other test rows would move the figure, and nothing of other seeds. The *spread* is
the standard deviation over the seeds, with n - 1 below it, which says nothing of other test rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from understudy.evaluation import common_metrics, names
from understudy.evaluation.metric_name import MetricName
from understudy.evaluation.metrics import Metrics

# The common figures that are shown first, in this order, where they were measured.
MAIN = (
    "utility.synthetic.accuracy",
    "utility.synthetic.mean_recall",
    "utility.next_token.synthetic.accuracy",
    "utility.synthetic_minus_prompt_only.accuracy",
    "utility.synthetic_minus_real.accuracy",
    "fidelity.mauve",
    "fidelity.frechet",
    "label_fidelity.synthetic",
    "memorization.ngram_5.synthetic",
    "memorization.exact_duplicates.all_private",
    "audit.mia.advantage",
)
HEADLINES = ("utility.synthetic.accuracy", "utility.next_token.synthetic.accuracy")
_FAMILY = "comparison"
_SYNTHETIC = ".synthetic."


@dataclass(frozen=True)
class MeasuredRun:
    """The figures of one run.

    Attributes:
        group: what its seeds are taken together of: letters, digits, `-` and `_`.
        seed: which of them it is.
        metrics: as the run measured them.
    """

    group: str
    seed: int
    metrics: Metrics


def mean_name(group: str, figure: str) -> str:
    """The name of a figure's mean over the seeds of a group.

    >>> mean_name("bag-eps8", "fidelity.mauve")
    'comparison.bag-eps8.fidelity.mauve'
    """
    return f"{_FAMILY}.{group}.{figure}"


def spread_name(group: str, figure: str) -> str:
    """The name of a figure's standard deviation over the seeds of a group."""
    return f"{_FAMILY}.{group}.{figure}.spread"


def seed_name(group: str, seed: int, figure: str) -> str:
    """The name of a figure of one run."""
    return f"{_FAMILY}.{group}.seed_{seed}.{figure}"


def count_name(group: str) -> str:
    """The name of the number of runs behind the means of a group."""
    return f"{_FAMILY}.{group}.seeds"


def figures_of(runs: Sequence[MeasuredRun]) -> tuple[MetricName, ...]:
    """What the runs are compared by: the main common figures, then all others of which more or less is better."""
    measured = {name: names.describe(name, run.metrics.declared) for run in runs for name in sorted(run.metrics.values)}
    first = [name for name in MAIN if name in measured]
    further = [
        name
        for name, metric in measured.items()
        if metric.better in ("higher", "lower") and name not in MAIN and not name.startswith(_common_families())
    ]
    baselines = [other for name in first if _SYNTHETIC in name for other in baselines_of(name) if other in measured]
    return tuple(measured[name] for name in dict.fromkeys([*first, *further, *baselines]))


def baselines_of(figure: str) -> tuple[str, ...]:
    """The same figure of text without private data, and of real text.

    >>> baselines_of("utility.synthetic.accuracy")
    ('utility.prompt_only.accuracy', 'utility.real.accuracy')
    """
    return tuple(
        figure.replace(_SYNTHETIC, f".{condition}.")
        for condition in common_metrics.CONDITIONS
        if condition != "synthetic" and _SYNTHETIC in figure
    )


def headline_of(figures: Sequence[MetricName]) -> str:
    """The figure that a comparison is opened with: usefulness, or the first of which more is better; else empty."""
    found = [figure.pattern for figure in figures]
    higher = [figure.pattern for figure in figures if figure.better == "higher"]
    return next((name for name in (*HEADLINES, *higher) if name in found), "")


def compared(runs: Sequence[MeasuredRun], *, missing: Iterable[str] = ()) -> Metrics:
    """Means, intervals and spreads of every figure that the runs are compared by.

    Args:
        runs: those that were measured; no two of one group and seed.
        missing: what was not measured and why, in plain words.

    Raises:
        ValueError: two runs have the same group and seed.
    """
    if len({(run.group, run.seed) for run in runs}) != len(runs):
        raise ValueError(f"expected one run per seed of a group, found {[(run.group, run.seed) for run in runs]}")
    figures = figures_of(runs)
    values: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for group in dict.fromkeys(run.group for run in runs):
        own = [run for run in runs if run.group == group]
        values[count_name(group)] = float(len(own))
        for figure in (figure.pattern for figure in figures):
            having = [run for run in own if figure in run.metrics.values]
            for run in having:
                values[seed_name(group, run.seed, figure)] = run.metrics.values[figure]
                if figure in run.metrics.intervals:
                    intervals[seed_name(group, run.seed, figure)] = run.metrics.intervals[figure]
            # A mean over fewer seeds than the group's others is of other runs, so it is left out.
            if len(having) == len(own):
                _add_mean(values, intervals, group, figure, [run.metrics for run in own])
    return Metrics(values=values, intervals=intervals, missing=tuple(missing), declared=declared_of(figures))


def declared_of(figures: Sequence[MetricName]) -> tuple[MetricName, ...]:
    """The names of a comparison by these figures; `{model}` stands for the group, `{i}` for the seed."""
    found = [MetricName(count_name("{model}"), "Runs behind the means of {model}, one per seed", "rows", "context")]
    for figure in figures:
        said = (figure.unit, figure.better)
        found += [
            MetricName(mean_name("{model}", figure.pattern), f"{{model}}, mean over seeds. {figure.meaning}", *said),
            MetricName(
                spread_name("{model}", figure.pattern),
                f"{{model}}, standard deviation over seeds. {figure.meaning}",
                figure.unit,
                "context",
            ),
        ]
        pattern = f"{_FAMILY}.{{model}}.seed_{{i}}.{figure.pattern}"
        found.append(MetricName(pattern, f"{{model}}, seed {{i}}. {figure.meaning}", *said))
    return tuple(found)


def _add_mean(
    values: dict[str, float],
    intervals: dict[str, tuple[float, float]],
    group: str,
    figure: str,
    measured: Sequence[Metrics],
) -> None:
    found = [metrics.values[figure] for metrics in measured]
    values[mean_name(group, figure)] = statistics.fmean(found)
    if len(found) > 1:
        values[spread_name(group, figure)] = statistics.stdev(found)
    ends = [metrics.intervals[figure] for metrics in measured if figure in metrics.intervals]
    if len(ends) == len(found):
        low, high = (statistics.fmean(side) for side in zip(*ends, strict=True))
        intervals[mean_name(group, figure)] = (low, high)


def _common_families() -> tuple[str, ...]:
    """Families of common figures of which only the main ones are shown; each run's own report has the others."""
    return ("memorization.", "diversity.", "label_fidelity.", "cut.", "audit.", "utility.probe.", "language_model.")
