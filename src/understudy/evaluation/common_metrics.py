"""The metrics that more than one method shows, and the words for what they are measured on.

A name never changes its meaning; a new meaning gets a new name. All of them are computed on private members, holdouts
or test rows and are internal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from understudy.evaluation.audit_metrics import AUDIT_METRICS
from understudy.evaluation.metric_name import Better, MetricName

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
    yield MetricName("utility.real_rows", "Real rows that the classifier of real text learnt from", "rows", "context")
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
    yield MetricName("utility.next_token.real_samples", "Real samples that the model is tuned on", "rows", "context")
    yield MetricName("utility.next_token.clients", "Held-out clients behind the accuracies", "rows", "context")


METRICS: tuple[MetricName, ...] = (
    *_utility(),
    *_fidelity(),
    *_diversity(),
    *_memorization(),
    *_others(),
    *_transfer(),
    *_nearest(),
    *AUDIT_METRICS,
    *_next_token(),
)
