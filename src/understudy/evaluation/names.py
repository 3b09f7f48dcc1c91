"""Names of metrics: every one is a common one, or declared by the measurement that shows it.

What only one method shows is named in that method's package (`metric_names.py`) and travels with the figures, in
`Metrics.declared`. A name that is neither common nor declared is refused, so a figure cannot appear under two
spellings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from understudy.errors import InputError
from understudy.evaluation.common_metrics import METRICS
from understudy.evaluation.metric_name import MetricName

_SHORT = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_PARTS = {"{i}": r"(?P<i>0|[1-9]\d{0,5})", "{model}": rf"(?P<model>{_SHORT})", "{task}": rf"(?P<task>{_SHORT})"}


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    escaped = re.escape(pattern)
    for part, expression in _PARTS.items():
        escaped = escaped.replace(re.escape(part), expression)
    return re.compile(escaped)


def describe(name: str, declared: Sequence[MetricName] = ()) -> MetricName:
    """The metric of a full name, its number or model filled in.

    Args:
        name: full name, such as `memorization.ngram_5.holdout`.
        declared: further metrics that the measurement declares, beside the common ones.

    >>> describe("memorization.ngram_5.holdout").meaning
    "Share of the synthetic text's distinct 5-grams that stand in as many rows never seen"

    Raises:
        InputError: when there is no such metric.
    """
    for metric in (*METRICS, *declared):
        match = _compiled(metric.pattern).fullmatch(name)
        if match:
            meaning = metric.meaning
            for part, found in match.groupdict().items():
                meaning = meaning.replace(f"{{{part}}}", found)
            return MetricName(name, meaning, metric.unit, metric.better)
    raise InputError(
        f"unknown metric name={name!r}: expected one of {', '.join(m.pattern for m in (*METRICS, *declared))}; "
        "a measurement declares the names of its own in Metrics.declared"
    )


def short_name(model: str) -> str:
    """How a model or a task is called inside metric names: the last part of its path or id, `-` for other characters.

    >>> short_name("facebook/opt-1.3b")
    'opt-1-3b'
    """
    return re.sub(r"[^A-Za-z0-9_-]", "-", model.rstrip("/").rpartition("/")[2]).lstrip("-_")[:64] or "model"


def harness_tasks(names: Iterable[str], prefix: str) -> tuple[str, ...]:
    """The tasks of which there is a figure under a prefix, in alphabetical order.

    >>> harness_tasks(("harness.base.arc_easy", "responses.base.loss"), "harness.base.")
    ('arc_easy',)
    """
    return tuple(sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix)))


def check_names(names: Iterable[str], declared: Sequence[MetricName] = ()) -> None:
    """Refuse unknown names.

    Raises:
        InputError: for the first name that is neither common nor declared.
    """
    for name in names:
        describe(name, declared)


def check_declared(declared: Sequence[MetricName]) -> None:
    """Refuse a declaration that gives one name two meanings.

    Raises:
        ValueError: when a pattern is declared twice, or is a common one.
    """
    counts = Counter(metric.pattern for metric in (*METRICS, *declared))
    twice = sorted(pattern for pattern, count in counts.items() if count > 1)
    if twice:
        raise ValueError(f"expected each metric declared once and none of the common ones, found twice: {twice}")
