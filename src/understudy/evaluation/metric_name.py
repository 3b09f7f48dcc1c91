"""What is said of a metric: its stable dotted name, what it means, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower", "as real", "context"]


@dataclass(frozen=True)
class MetricName:
    """One metric.

    Attributes:
        pattern: the name, with `{i}` for a number, `{model}` for a model's short name, `{task}` for a benchmark's.
        meaning: what it measures, in plain words.
        unit: share, distance, words, identifiers, nats per token, rows, seconds, epsilon, or score.
        better: which way is better; `as real` means closest to the real text's own value.
    """

    pattern: str
    meaning: str
    unit: str
    better: Better


def of_models(
    pattern: str, meaning: str, *, models: Mapping[str, str], leading: str, unit: str, better: Better, on: str = ""
) -> tuple[MetricName, ...]:
    """A figure of several models: each one's own, and the leading one's minus every other's where it has pairs.

    Args:
        pattern: the name, with `*` in the place of a model's.
        meaning: what it measures.
        models: short name -> the words for it.
        leading: the model that the run is about.
        unit: as in `MetricName`.
        better: which way, for the leading model.
        on: what a difference is paired by; empty names no differences.

    >>> [one.pattern for one in of_models("a.*.loss", "Loss", models={"x": "x", "y": "y"}, leading="y", unit="score",
    ...                                   better="lower", on="the same rows")]
    ['a.x.loss', 'a.y.loss', 'a.y_minus_x.loss']
    """
    own = tuple(
        MetricName(pattern.replace("*", name), f"{meaning}, by {words}", unit, better if name == leading else "context")
        for name, words in models.items()
    )
    differences = (
        MetricName(
            pattern.replace("*", f"{leading}_minus_{name}"),
            f"{meaning}: {models[leading]} minus {words}, on {on}",
            unit,
            better,
        )
        for name, words in models.items()
        if on and name != leading
    )
    return (*own, *differences)
