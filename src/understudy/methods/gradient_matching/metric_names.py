"""The metrics that only gradient matching shows: its own losses, what its filters dropped, its gradient errors.

Beside them stand the Frechet distances to the training rows, which this method alone measures.
"""

from __future__ import annotations

from collections.abc import Iterable

from understudy.evaluation.metric_name import MetricName

DROP_REASONS = {
    "empty": "empty after decoding",
    "wrong_label": "the public model did not confirm the label",
    "high_loss": "not among the lowest losses of the label",
    "unbalanced": "the label's mean loss exceeded the others'",
    "surplus": "beyond the number asked for, highest losses first",
}


def _matching() -> Iterable[MetricName]:
    """The matched texts and the losses that chose among them."""
    for tail, whose in (
        ("median", "the texts that were kept"),
        ("dropped_median", "the texts that were dropped"),
        ("prompt_only_median", "prompt-only texts"),
    ):
        meaning = f"Median matching loss (1 - cosine to the released target) of {whose}"
        yield MetricName(f"matching.loss.{tail}", meaning, "score", "lower" if tail == "median" else "context")
    yield MetricName("matching.drawn", "Texts matched, before any filter", "rows", "context")
    yield MetricName("matching.kept", "Texts kept", "rows", "context")
    yield MetricName("matching.shortfall", "Texts asked for but not reached", "rows", "lower")
    for reason, words in DROP_REASONS.items():
        yield MetricName(f"matching.dropped.{reason}", f"Texts dropped: {words}", "rows", "context")
    yield MetricName(
        "matching.label_check.agreement",
        "Share of the texts that the label check read whose label it confirms",
        "share",
        "higher",
    )
    yield MetricName("matching.label_check.chance", "The same of a check that guesses", "share", "context")
    yield MetricName(
        "matching.signal_to_noise_bound",
        "The most that the target's exact norm can be over the norm of its noise; from public values",
        "score",
        "higher",
    )
    for side, whose in (("", "synthetic"), ("prompt_only.", "prompt-only"), ("real.", "other real")):
        yield MetricName(
            f"matching.gradient_error.{side}step_{{i}}",
            f"Distance of {whose} rows' mean head gradient from real rows', over the latter's norm, after {{i}} steps "
            "of fine-tuning on synthetic text",
            "score",
            "context" if side else "lower",
        )
    yield MetricName(
        "matching.gradient_error.full.step_{i}",
        "The same for synthetic rows and the gradient of all weights",
        "score",
        "lower",
    )
    yield MetricName(
        "matching.gradient_error.real_rows",
        "Other real rows whose gradient error is taken: as many as synthetic ones, or what the reference leaves",
        "rows",
        "context",
    )


def _train_frechet() -> Iterable[MetricName]:
    for prefix, whose in (("", "synthetic text"), ("prompt_only.", "prompt-only text"), ("few_real.", "real rows")):
        yield MetricName(
            f"fidelity.{prefix}train_frechet",
            f"Frechet distance of {whose} to the real training rows, all sets of equal size",
            "distance",
            "context" if prefix else "lower",
        )
    yield MetricName("fidelity.train_frechet_rows", "Rows per set compared with the training rows", "rows", "context")


METRIC_NAMES: tuple[MetricName, ...] = (*_matching(), *_train_frechet())
