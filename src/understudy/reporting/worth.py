"""What a report opens with: what the run was worth in one sentence, and which rows it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from understudy.evaluation import names
from understudy.evaluation.metric_name import MetricName
from understudy.evaluation.metrics import Metrics
from understudy.frozen import Frozen
from understudy.reporting.text_formatting import capitalised, percent, points, signed
from understudy.reporting.view import Beside, Headline, labels_are_unequal, range_of


class Completeness(Frozen):
    """How many rows a run made of those that were asked for.

    Attributes:
        rows: made.
        shortfall: label name, or `all` for rows without labels -> rows asked for and not made; only where above 0.
        lacking: labels that were asked for and have no row at all.
    """

    rows: int
    shortfall: dict[str, int] = Field(default_factory=dict)
    lacking: tuple[str, ...] = ()

    def in_words(self) -> str:
        """One sentence about what is missing; empty where nothing is."""
        missing = sum(self.shortfall.values())
        if not missing:
            return ""
        parts = ", ".join(f"{name} {count}" for name, count in self.shortfall.items())
        none = f"; no row at all for {', '.join(self.lacking)}" if self.lacking else ""
        return f"{missing} of {self.rows + missing} rows are missing ({parts}){none}."


def completeness_of(labels: Sequence[str | None], shortfall: Mapping[str, int]) -> Completeness:
    """Compare what was made with what was asked for.

    Args:
        labels: label name of each row made; None for rows without labels.
        shortfall: label name, empty for rows without labels -> rows asked for and not made.

    >>> completeness_of(["a", "a"], {"a": 0, "b": 2}).lacking
    ('b',)
    >>> completeness_of([None, None], {"": 1}).in_words()
    '1 of 3 rows are missing (all 1).'
    """
    short = {name or "all": int(count) for name, count in shortfall.items() if count > 0}
    unlabelled = bool(labels) and labels[0] is None
    lacking = () if unlabelled else tuple(name for name in short if name not in set(labels))
    return Completeness(rows=len(labels), shortfall=short, lacking=lacking)


def _by_training_set(prefix: str, figure: str, said: str) -> Headline:
    """A figure of synthetic text, beside the same of prompt-only and of real text."""
    others = {"prompt_only": "prompt-only text", "real": "real text"}
    return Headline(
        f"{prefix}synthetic.{figure}",
        said,
        tuple(
            Beside(f"{prefix}{other}.{figure}", f"{prefix}synthetic_minus_{other}.{figure}", words)
            for other, words in others.items()
        ),
        rival="text without private rows",
    )


_CLASSIFIER = "a classifier trained on the synthetic text is right on {} of real rows it never saw"
_RECALL = _by_training_set("utility.", "mean_recall", f"{_CLASSIFIER}, every label counted alike")
_COMMON = (
    _by_training_set("utility.", "accuracy", _CLASSIFIER),
    _by_training_set(
        "utility.next_token.",
        "accuracy",
        "a small language model tuned on the synthetic text predicts {} of the next tokens of clients that took no "
        "part",
    ),
)


def worth(metrics: Metrics, headlines: Sequence[Headline] = ()) -> str:
    """One sentence: what the run is worth beside the same without private rows; empty where that was not measured.

    Whether private rows helped is said by the interval of the difference, not by its sign. Where labels are unequal,
    every label counts alike.

    Args:
        metrics: what was measured.
        headlines: of the method, which come first.
    """
    common = (_RECALL, *_COMMON) if labels_are_unequal(metrics) else _COMMON
    headline = next((one for one in (*headlines, *common) if one.figure in metrics.values), None)
    if headline is None:
        return ""
    metric = names.describe(headline.figure, metrics.declared)
    between = range_of(metrics, headline.figure, _bare_percent if metric.unit == "share" else _three)
    said = headline.said.format(_value(metrics.values[headline.figure], metric)) + (between and f" ({between})")
    sentence = ", ".join([said, *filter(None, (_beside(metrics, other, metric) for other in headline.beside))])
    verdict = _verdict(metrics, headline, metric)
    return f"{verdict}: {sentence}." if verdict else f"{capitalised(sentence)}."


def _beside(metrics: Metrics, other: Beside, metric: MetricName) -> str:
    """The difference to something else, with its interval."""
    values = metrics.values
    if other.difference in values:
        share = metric.unit == "share"
        between = range_of(metrics, other.difference, _bare_points if share else signed)
        difference = (points if share else signed)(values[other.difference])
        return f"{difference} beside {other.words}{between and f' ({between})'}"
    return f"{other.words} gives {_value(values[other.figure], metric)}" if other.figure in values else ""


def _verdict(metrics: Metrics, headline: Headline, metric: MetricName) -> str:
    interval = metrics.intervals.get(headline.beside[0].difference)
    if interval is None:
        return ""
    low, high = interval if metric.better == "higher" else (-interval[1], -interval[0])
    if low > 0:
        return headline.gain
    if high < 0:
        return f"Worse than {headline.rival}"
    return f"No difference from {headline.rival} could be measured"


def _value(value: float, metric: MetricName) -> str:
    return percent(value) if metric.unit == "share" else f"{_three(value)} {metric.unit}"


def _bare_percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _bare_points(difference: float) -> str:
    return points(difference, unit="")


def _three(value: float) -> str:
    return f"{value:.3f}"
