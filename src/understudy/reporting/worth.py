"""What a report opens with: what the run was worth in one sentence, and which rows it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from understudy.evaluation.metrics import Metrics
from understudy.frozen import Frozen
from understudy.reporting.text_formatting import percent, points
from understudy.reporting.view import labels_are_unequal, range_of


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


@dataclass(frozen=True)
class _Measure:
    """A figure by training set, and how to say it."""

    prefix: str
    figure: str
    learner: str
    found: str

    def of(self, condition: str) -> str:
        """The figure's name."""
        return f"{self.prefix}{condition}.{self.figure}"


_CLASSIFIER = "a classifier trained on the synthetic text is right on"
_RECALL = _Measure("utility.", "mean_recall", _CLASSIFIER, "of real rows it never saw, every label counted alike")
_MEASURES = (
    _Measure("utility.", "accuracy", _CLASSIFIER, "of real rows it never saw"),
    _Measure(
        "utility.next_token.",
        "accuracy",
        "a small language model tuned on the synthetic text predicts",
        "of the next tokens of clients that took no part",
    ),
)


def worth(metrics: Metrics) -> str:
    """One sentence: what the synthetic text teaches, beside prompt-only and real text; empty where not measured.

    Whether private rows helped is said by the interval of the difference, not by its sign. Where labels are unequal,
    every label counts alike.
    """
    measures = (_RECALL, *_MEASURES) if labels_are_unequal(metrics) else _MEASURES
    measure = next((m for m in measures if m.of("synthetic") in metrics.values), None)
    if measure is None:
        return ""
    name = measure.of("synthetic")
    between = range_of(metrics, name, lambda share: f"{100 * share:.1f}")
    sentence = f"{measure.learner} {percent(metrics.values[name])} {measure.found}{between and f' ({between})'}"
    beside = [_beside(metrics, measure, condition, words) for condition, words in _OTHERS.items()]
    sentence = ", ".join([sentence, *filter(None, beside)])
    verdict = _verdict(metrics, measure.of("synthetic_minus_prompt_only"))
    return f"{verdict}: {sentence}." if verdict else f"{sentence[:1].upper()}{sentence[1:]}."


_OTHERS = {"prompt_only": "prompt-only text", "real": "real text"}


def _beside(metrics: Metrics, measure: _Measure, condition: str, words: str) -> str:
    """The difference to another training set, with its interval."""
    values, difference = metrics.values, measure.of(f"synthetic_minus_{condition}")
    if difference in values:
        between = range_of(metrics, difference, lambda share: points(share, unit=""))
        return f"{points(values[difference])} beside {words}{between and f' ({between})'}"
    other = measure.of(condition)
    return f"{words} gives {percent(values[other])}" if other in values else ""


def _verdict(metrics: Metrics, difference: str) -> str:
    if difference not in metrics.intervals:
        return ""
    low, high = metrics.intervals[difference]
    if low > 0:
        return "The private rows helped"
    if high < 0:
        return "Worse than text without private rows"
    return "No difference from text without private rows could be measured"
