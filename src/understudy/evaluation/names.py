"""The common metrics: the stable dotted name of each, what it means, and which way is better.

What only one method shows is named in that method's package (`metric_names.py`) and travels with the figures, in
`Metrics.declared`. A name that is neither common nor declared is refused, so a figure cannot appear under two
spellings. A name never changes its meaning; a new meaning gets a new name. All of them are computed on private members,
holdouts or test rows and are internal.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from understudy.errors import InputError

Better = Literal["higher", "lower", "as real", "context"]

CONDITIONS = ("prompt_only", "synthetic", "real")
CONDITION_WORDS = {
    "prompt_only": "text generated without private data",
    "synthetic": "synthetic text",
    "real": "real training text",
}

# The kinds of `texts.identifiers`, in words.
KIND_WORDS = {
    "email": "e-mail addresses",
    "web": "web addresses",
    "account": "names of accounts (@name)",
    "code": "codes of capitals and digits",
    "number": "numbers of at least six digits",
}

MIA_CONDITIONS = {
    "": "synthetic text",
    "positive_control.": "the members themselves",
    "null_control.": "text that never met them",
}


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


def _utility() -> Iterable[MetricName]:
    for condition in CONDITIONS:
        tail = f"classifier trained on {CONDITION_WORDS[condition]} and tested on real rows"
        better: Better = "higher" if condition == "synthetic" else "context"
        yield MetricName(f"utility.{condition}.accuracy", f"Headline accuracy: {tail}", "share", better)
        yield MetricName(f"utility.{condition}.mean_recall", f"Mean of the labels' recalls: {tail}", "share", better)
        yield MetricName(f"utility.probe.{condition}.accuracy", f"Linear probe on embeddings: {tail}", "share", better)
        yield MetricName(f"utility.transformer.{condition}.accuracy", f"Transformer: {tail}", "share", better)
    for other in ("real", "prompt_only"):
        tail = f"synthetic minus {other.replace('_', '-')}, on the same test rows"
        for figure, words in (("accuracy", "Headline accuracy"), ("mean_recall", "Mean of the labels' recalls")):
            yield MetricName(f"utility.synthetic_minus_{other}.{figure}", f"{words}, {tail}", "share", "higher")
    yield MetricName("utility.majority.accuracy", "Always answering the test rows' commonest label", "share", "context")
    yield MetricName("utility.confidence_level", "Confidence level of the intervals", "share", "context")
    yield MetricName("utility.test_rows", "Real test rows behind the accuracies", "rows", "context")


def _of_sets(family: str, sets: Mapping[str, str], figures: Iterable[MetricName]) -> Iterable[MetricName]:
    """The figures of several sets of texts, set after set: what is better is said of the first, context of others.

    Args:
        family: first part of the names.
        sets: set -> the words for it.
        figures: in whose name and meaning `{set}` and `{whose}` stand for the two.
    """
    for number, (name, whose) in enumerate(sets.items()):
        for figure in figures:
            pattern = f"{family}.{figure.pattern.replace('{set}', name)}"
            meaning = figure.meaning.replace("{whose}", whose)
            yield MetricName(pattern, meaning, figure.unit, "context" if number else figure.better)


def _fidelity() -> Iterable[MetricName]:
    yield from _of_sets(
        "fidelity",
        {"": "synthetic", "prompt_only.": "prompt-only"},
        (
            MetricName("{set}mauve", "MAUVE of {whose} against unseen real text (1 is equal)", "score", "higher"),
            MetricName("{set}frechet", "Frechet distance of {whose} to unseen real text", "distance", "lower"),
        ),
    )
    yield MetricName("fidelity.mauve_ceiling", "MAUVE of real against real text of the same size", "score", "context")
    yield MetricName(
        "fidelity.frechet_floor", "Frechet distance of real to real text of the same size", "distance", "context"
    )
    yield MetricName("fidelity.rows", "Rows per set behind the fidelity figures", "rows", "context")
    yield MetricName("fidelity.mauve_rows", "Rows per set of each draw that MAUVE is averaged over", "rows", "context")


def _diversity() -> Iterable[MetricName]:
    yield from _of_sets(
        "diversity",
        {"": "synthetic", "real.": "real"},
        (
            MetricName("{set}distinct_{i}", "Distinct {i}-grams over all {i}-grams, {whose} text", "share", "as real"),
            MetricName("{set}duplicates", "Repeated texts among the {whose} ones", "share", "as real"),
            MetricName("{set}length_mean", "Mean words per {whose} text", "words", "as real"),
            MetricName("{set}length_q{i}", "{i} % quantile of the words per {whose} text", "words", "as real"),
        ),
    )
    yield MetricName("diversity.rows", "Texts per set behind the diversity figures", "rows", "context")


def _memorization() -> Iterable[MetricName]:
    shared = "Share of the synthetic text's distinct {i}-grams that stand in {whose}"
    yield from _of_sets(
        "memorization",
        {"synthetic": "the private rows", "holdout": "as many rows never seen"},
        (
            MetricName("ngram_{i}.{set}", shared, "share", "lower"),
            MetricName("longest_match.{set}", "Longest run of words shared with {whose}", "words", "lower"),
            MetricName(
                "exact_duplicates.{set}", "Share of synthetic texts that equal one of {whose}", "share", "lower"
            ),
        ),
    )
    yield MetricName(
        "memorization.longest_match.all_private", "Longest run of words shared with any private row", "words", "lower"
    )
    yield MetricName(
        "memorization.exact_duplicates.all_private",
        "Share of synthetic texts that equal any private row",
        "share",
        "lower",
    )
    yield MetricName("memorization.rows", "Private and holdout rows compared with, each", "rows", "context")
    yield from _replay()


def _replay() -> Iterable[MetricName]:
    """What single rows hold and the synthetic text holds too."""
    for figure, things in (("words", "words"), ("identifiers", "identifiers")):
        alone = f"{things} that stand in one real row alone"
        for side, whose in (("synthetic", "a private one"), ("holdout", "one never seen")):
            better: Better = "as real" if side == "synthetic" else "context"
            meaning = f"Share of the {alone}, {whose}, that the synthetic text holds"
            yield MetricName(f"memorization.lone_{figure}.{side}", meaning, "share", better)
            yield MetricName(f"memorization.lone_{figure}_held.{side}", f"How many {alone}, {whose}", things, "context")
        yield MetricName(
            f"memorization.lone_{figure}.synthetic_minus_holdout",
            f"Share of {alone} that the synthetic text holds: of private rows minus of rows never seen",
            "share",
            "lower",
        )
    for kind, words in KIND_WORDS.items():
        name = f"memorization.identifiers.{kind}"
        yield MetricName(f"{name}.private", f"Different {words} in the private rows", "identifiers", "context")
        yield MetricName(
            f"{name}.replayed", f"How many of these {words} the synthetic text holds", "identifiers", "lower"
        )
        yield MetricName(
            f"{name}.replayed_alone",
            f"How many {words} of one private row alone the synthetic text holds",
            "identifiers",
            "lower",
        )


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
    for part in ("texts", "instructions", "responses"):
        meaning = f"How many private training {part} are longer than what the run reads of one"
        yield MetricName(f"cut.train.{part}", meaning, "rows", "lower")


def _transfer() -> Iterable[MetricName]:
    for condition in CONDITIONS:
        yield MetricName(
            f"utility.transfer.{{model}}.{condition}.accuracy",
            f"Accuracy on real test rows of {{model}} fine-tuned on {CONDITION_WORDS[condition]}",
            "share",
            "higher" if condition == "synthetic" else "context",
        )
    yield MetricName(
        "utility.transfer.real_rows", "Real training rows that a model is fine-tuned on", "rows", "context"
    )
    for condition, words in (CONDITION_WORDS | {"real": "real test text"}).items():
        yield MetricName(
            f"language_model.log_perplexity.{condition}",
            f"Loss of the public base model on {words}",
            "nats per token",
            "as real" if condition == "synthetic" else "context",
        )


def _nearest() -> Iterable[MetricName]:
    for side, whose in (("synthetic", "synthetic texts"), ("holdout", "real rows never seen")):
        better: Better = "as real" if side == "synthetic" else "context"
        for tail, which in (("median", "Median"), ("least", "Least")):
            yield MetricName(
                f"memorization.nearest_{tail}.{side}",
                f"{which} distance of {whose} to the nearest private row, in the sentence embedding",
                "distance",
                better,
            )
        yield MetricName(
            f"memorization.nearest_rows.{side}", f"How many {whose} the distances were taken of", "rows", "context"
        )
    yield MetricName(
        "memorization.nearest_share",
        "Share of synthetic texts nearer to a private row than 95 % of the rows never seen are",
        "share",
        "lower",
    )


def _membership() -> Iterable[MetricName]:
    for prefix, whose in MIA_CONDITIONS.items():
        for tail, words in (
            ("advantage", "TPR - FPR of a loss threshold chosen on other rows; 0 is guessing"),
            ("auc", "Chance that a member's loss is below a non-member's; 0.5 is guessing"),
        ):
            better: Better = "context" if prefix else "lower"
            yield MetricName(f"audit.mia.{prefix}{tail}", f"{words}; against a model tuned on {whose}", "score", better)
    yield MetricName("audit.mia.rows", "Members, and as many non-members, that were attacked", "rows", "context")
    yield MetricName(
        "audit.mia.detectable_epsilon",
        "Least epsilon whose largest possible advantage this audit could tell from guessing",
        "epsilon",
        "context",
    )


AUDIT_CONDITIONS = {
    "": "the run",
    "positive_control.": "the run without noise",
    "null_control.": "a run without canaries",
}
THREATS = {
    "data": "the synthetic table alone",
    "model": "the released model",
    "sums": "the released sums and every other row",
}


def _one_run() -> Iterable[MetricName]:
    """Audits with canaries: what an attacker who sees the data, the model, or sums and rows, finds out of each run."""
    for threat, sees in THREATS.items():
        for condition, whose in AUDIT_CONDITIONS.items():
            better: Better = "context" if condition else "lower"
            tail = f"; of {whose}, by {sees}"
            for figure, words, unit in (
                ("epsilon_lower_bound", "Least epsilon that right guesses of coins prove", "epsilon"),
                ("guesses", "Coins guessed for that bound", "rows"),
                ("right_guesses", "Of these, right guesses", "rows"),
                ("auc", "Chance that a canary in the rows scores above one left out; 0.5 is guessing", "score"),
                ("tpr_at_fpr_0_001", "Canaries found at one false alarm in a thousand", "share"),
                ("tpr_at_fpr_0_01", "Canaries found at one false alarm in a hundred", "share"),
            ):
                of_figure: Better = "context" if "guesses" in figure else better
                yield MetricName(f"audit.one_run.{threat}.{condition}{figure}", words + tail, unit, of_figure)
    yield MetricName("audit.one_run.canaries", "Canaries, each in the rows by a fair coin", "rows", "context")
    yield MetricName("audit.one_run.claimed_epsilon", "Epsilon that the run promises", "epsilon", "context")
    yield MetricName(
        "audit.one_run.detectable_epsilon",
        "Least epsilon that the best attack on so many canaries would tell from 0, in four of five audits",
        "epsilon",
        "context",
    )
    yield MetricName(
        "audit.one_run.confidence_level",
        "Confidence at which the bounds of all attackers hold together; each interval holds at no less",
        "share",
        "context",
    )


SECRET_CONDITIONS = {
    "": "in the rows of the run",
    "positive_control.": "in the rows of the run without noise",
    "null_control.": "and a run without canaries",
    "left_out.": "left out of the rows of the run",
}


def _secrets() -> Iterable[MetricName]:
    """Secrets at the end of canaries, guessed by the released model among 64 candidates."""
    for condition, whose in SECRET_CONDITIONS.items():
        better: Better = "context" if condition else "lower"
        name, tail = f"audit.secrets.{condition}", f"of canaries {whose}"
        yield MetricName(f"{name}rate", f"Secrets that whoever has the model guesses right, {tail}", "share", better)
        yield MetricName(f"{name}guessed", f"Secrets guessed, {tail}", "rows", "context")
    yield MetricName("audit.secrets.chance", "Right guesses of a secret without the model", "share", "context")
    yield MetricName(
        "audit.secrets.detectable_rate",
        "Least share of right guesses of the run's secrets that would be told from chance, in four of five audits",
        "share",
        "context",
    )


def _next_token() -> Iterable[MetricName]:
    """A small language model tuned on texts, tested on clients that took no part."""
    for condition, whose in {**CONDITION_WORDS, "public": "nothing further (epsilon 0)"}.items():
        better: Better = "higher" if condition == "synthetic" else "context"
        tail = f"of a small language model tuned on {whose}, on the text of held-out clients"
        yield MetricName(f"utility.next_token.{condition}.accuracy", f"Next-token accuracy {tail}", "share", better)
        better = "lower" if condition == "synthetic" else "context"
        yield MetricName(f"utility.next_token.{condition}.loss", f"Loss {tail}", "nats per token", better)
    yield MetricName(
        "utility.next_token.synthetic_minus_prompt_only.accuracy",
        "Next-token accuracy, synthetic minus prompt-only, on the same clients",
        "share",
        "higher",
    )
    yield MetricName(
        "utility.next_token.gap_closed",
        "Share of the way from the public model as it is to one tuned on real text that synthetic text goes",
        "share",
        "higher",
    )
    yield MetricName("utility.next_token.clients", "Held-out clients behind the accuracies", "rows", "context")


METRICS: tuple[MetricName, ...] = (
    *_utility(),
    *_fidelity(),
    *_diversity(),
    *_memorization(),
    *_others(),
    *_transfer(),
    *_nearest(),
    *_membership(),
    *_one_run(),
    *_secrets(),
    *_next_token(),
)

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
