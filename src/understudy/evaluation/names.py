"""Every metric there is: its stable dotted name, what it means, and which way is better.

Reports and flows refuse a name that is not here, so a figure cannot appear under two spellings. A name never
changes its meaning; a new meaning gets a new name. All of them are computed on private members, holdouts or
test rows and are internal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from understudy.errors import InputError

Better = Literal["higher", "lower", "as real", "context"]

ARMS = ("prompt_only", "synthetic", "real")
ARM_WORDS = {
    "prompt_only": "text generated without private data",
    "synthetic": "synthetic text",
    "real": "real training text",
}


@dataclass(frozen=True)
class MetricName:
    """One metric.

    Attributes:
        pattern: the name, with `{i}` for a number.
        meaning: what it measures, in plain words.
        unit: share, distance, words, nats per token, rows, or score.
        better: which way is better; `as real` means closest to the real text's own value.
    """

    pattern: str
    meaning: str
    unit: str
    better: Better


def _utility() -> Iterable[MetricName]:
    for arm in ARMS:
        tail = f"classifier trained on {ARM_WORDS[arm]} and tested on real rows"
        better: Better = "higher" if arm == "synthetic" else "context"
        yield MetricName(f"utility.{arm}.accuracy", f"Headline accuracy: {tail}", "share", better)
        yield MetricName(f"utility.probe.{arm}.accuracy", f"Linear probe on embeddings: {tail}", "share", better)
        yield MetricName(f"utility.transformer.{arm}.accuracy", f"Transformer: {tail}", "share", better)
    for other in ("real", "prompt_only"):
        yield MetricName(
            f"utility.synthetic_minus_{other}.accuracy",
            f"Headline accuracy, synthetic minus {other.replace('_', '-')}, on the same test rows",
            "share",
            "higher",
        )
    yield MetricName(
        "utility.random_forest.accuracy",
        "Random forest on the tuned model's mean hidden states, tested on real rows",
        "share",
        "higher",
    )
    yield MetricName("utility.majority.accuracy", "Always answering the test rows' commonest label", "share", "context")
    yield MetricName("utility.confidence_level", "Confidence level of the intervals", "share", "context")
    yield MetricName("utility.test_rows", "Real test rows behind the accuracies", "rows", "context")


def _fidelity() -> Iterable[MetricName]:
    for prefix, whose in (("", "synthetic"), ("prompt_only.", "prompt-only")):
        better: Better = "context" if prefix else "higher"
        yield MetricName(
            f"fidelity.{prefix}mauve",
            f"MAUVE of {whose} against unseen real text (1 is equal)",
            "score",
            better,
        )
        better = "context" if prefix else "lower"
        yield MetricName(
            f"fidelity.{prefix}frechet",
            f"Frechet distance of {whose} to unseen real text",
            "distance",
            better,
        )
    yield MetricName("fidelity.mauve_ceiling", "MAUVE of real against real text of the same size", "score", "context")
    yield MetricName(
        "fidelity.frechet_floor",
        "Frechet distance of real to real text of the same size",
        "distance",
        "context",
    )
    yield MetricName("fidelity.rows", "Rows per set behind the fidelity figures", "rows", "context")


def _diversity() -> Iterable[MetricName]:
    for prefix, whose in (("", "synthetic"), ("real.", "real")):
        better: Better = "context" if prefix else "as real"
        yield MetricName(
            f"diversity.{prefix}distinct_{{i}}",
            f"Distinct {{i}}-grams over all {{i}}-grams, {whose} text",
            "share",
            better,
        )
        yield MetricName(f"diversity.{prefix}duplicates", f"Repeated texts among the {whose} ones", "share", better)
        yield MetricName(f"diversity.{prefix}length_mean", f"Mean words per {whose} text", "words", better)
        yield MetricName(
            f"diversity.{prefix}length_q{{i}}",
            f"{{i}} % quantile of the words per {whose} text",
            "words",
            better,
        )
    yield MetricName("diversity.rows", "Texts per set behind the diversity figures", "rows", "context")


def _memorization() -> Iterable[MetricName]:
    for side, whose in (("synthetic", "the private rows"), ("holdout", "as many rows never seen")):
        better: Better = "lower" if side == "synthetic" else "context"
        yield MetricName(
            f"memorization.ngram_{{i}}.{side}",
            f"Share of the synthetic text's distinct {{i}}-grams that stand in {whose}",
            "share",
            better,
        )
        yield MetricName(
            f"memorization.longest_match.{side}", f"Longest run of words shared with {whose}", "words", better
        )
        yield MetricName(
            f"memorization.exact_duplicates.{side}",
            f"Share of synthetic texts that equal one of {whose}",
            "share",
            better,
        )
    yield MetricName(
        "memorization.longest_match.all_private",
        "Longest run of words shared with any private row",
        "words",
        "lower",
    )
    yield MetricName(
        "memorization.exact_duplicates.all_private",
        "Share of synthetic texts that equal any private row",
        "share",
        "lower",
    )
    yield MetricName("memorization.rows", "Private and holdout rows compared with, each", "rows", "context")


def _others() -> Iterable[MetricName]:
    yield MetricName(
        "label_fidelity.synthetic",
        "Share of synthetic texts whose label a judge trained on real text confirms",
        "share",
        "higher",
    )
    yield MetricName(
        "label_fidelity.synthetic.label_{i}",
        "The same over the synthetic texts of declared label {i}",
        "share",
        "higher",
    )
    yield MetricName("label_fidelity.prompt_only", "The same for prompt-only text", "share", "context")
    yield MetricName("label_fidelity.real", "The judge on real test rows: the most it can confirm", "share", "context")
    yield MetricName("language_model.test_loss", "Loss of the tuned model on real test text", "nats per token", "lower")
    yield MetricName(
        "language_model.base.test_loss",
        "Loss of the base model on real test text",
        "nats per token",
        "context",
    )


METRICS: tuple[MetricName, ...] = (*_utility(), *_fidelity(), *_diversity(), *_memorization(), *_others())

_COMPILED = [(re.compile(re.escape(m.pattern).replace(re.escape("{i}"), r"(?P<i>0|[1-9]\d{0,5})")), m) for m in METRICS]


def describe(name: str) -> MetricName:
    """The metric of a full name, its number filled in.

    >>> describe("memorization.ngram_5.holdout").meaning
    "Share of the synthetic text's distinct 5-grams that stand in as many rows never seen"

    Raises:
        InputError: when there is no such metric.
    """
    for pattern, metric in _COMPILED:
        match = pattern.fullmatch(name)
        if match:
            number = match.groupdict().get("i", "")
            return MetricName(name, metric.meaning.replace("{i}", number), metric.unit, metric.better)
    raise InputError(
        f"unknown metric name={name!r}: expected one of {', '.join(m.pattern for m in METRICS)}; "
        "a new metric is declared in understudy.evaluation.names"
    )


def check_names(names: Iterable[str]) -> None:
    """Refuse unknown names.

    Raises:
        InputError: for the first name that is not declared.
    """
    for name in names:
        describe(name)
