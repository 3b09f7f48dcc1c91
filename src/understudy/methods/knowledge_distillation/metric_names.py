"""The metrics that only knowledge distillation shows."""

from __future__ import annotations

from functools import partial

from understudy.evaluation.metric_name import Better, MetricName, of_models

MODELS = {
    "base": "the base model",
    "public_only": "the model distilled without private pairs",
    "dp_only": "the DP model",
    "target": "the distilled model",
}
SETS = {"synthetic": "synthetic pairs", "prompt_only": "pairs made without private data", "real": "held-out real pairs"}

_MEASURES: tuple[tuple[str, str, Better], ...] = (
    ("mauve", "MAUVE of synthetic pairs", "higher"),
    ("mauve_ceiling", "MAUVE of real pairs", "context"),
    ("frechet", "Frechet distance of synthetic pairs", "lower"),
    ("frechet_floor", "Frechet distance of real pairs", "context"),
)

_ANSWERS: tuple[tuple[str, str, Better], ...] = (
    ("accuracy", "Right answers of the fixed set, read from free text", "higher"),
    ("macro_f1", "Mean F1 over the fixed answers, read from free text", "higher"),
    ("unread", "Texts that name none of the fixed answers, or several, and count as wrong", "lower"),
)

_of_models = partial(of_models, models=MODELS, leading="target")

METRIC_NAMES: tuple[MetricName, ...] = (
    MetricName("responses.pairs", "Held-out pairs whose responses were scored", "rows", "context"),
    *_of_models(
        "responses.*.loss",
        "Mean loss per token of held-out responses behind their instructions",
        unit="nats per token",
        better="lower",
        on="the same pairs",
    ),
    *(
        MetricName(f"ifd.{name}.{part}", f"IFD score by the DP model of {words}, {told}", "score", "context")
        for name, words in SETS.items()
        for part, told in (("mean", "mean"), ("q10", "10 % quantile"), ("q50", "median"), ("q90", "90 % quantile"))
    ),
    *(
        MetricName(
            f"fidelity.{encoder}.{measure}",
            f"{shown} to held-out pairs, under {words}",
            "score" if measure.startswith("mauve") else "distance",
            better,
        )
        for encoder, words in (("states", "mean states of the base model"), ("tfidf", "TF-IDF with SVD"))
        for measure, shown, better in _MEASURES
    ),
    MetricName("answers.questions", "Held-out instructions whose answers are of a fixed set", "rows", "context"),
    *(
        one
        for figure, meaning, better in _ANSWERS
        for one in _of_models(
            f"answers.*.{figure}",
            meaning,
            unit="share",
            better=better,
            on="the same questions" if figure == "accuracy" else "",
        )
    ),
    MetricName("few_shot.questions", "Questions that fit whole, asked behind public examples", "rows", "context"),
    *_of_models(
        "few_shot.*.accuracy",
        "Right choices among the fixed answers behind public examples",
        unit="share",
        better="higher",
        on="the same questions",
    ),
    *_of_models("harness.*.{task}", "Accuracy on {task} of lm-evaluation-harness", unit="share", better="higher"),
    MetricName("wins.pairs", "Held-out instructions on which answers were compared", "rows", "context"),
    MetricName(
        "wins.shortened",
        "Comparisons in which request or answers were shortened to the judge's context; the question stays whole",
        "rows",
        "lower",
    ),
    MetricName(
        "wins.target_over_dp_only",
        "How often the judge prefers the distilled model's answer to the DP model's, in both orders; ties count half",
        "share",
        "higher",
    ),
    MetricName(
        "wins.undecided",
        "Comparisons in which the judge's preference went with the order, or it had none",
        "share",
        "lower",
    ),
    *(
        MetricName(
            f"cut.test.{part}", f"How many {part} of the held-out pairs were cut to tune.max_length", "rows", "lower"
        )
        for part in ("instructions", "responses")
    ),
    MetricName("cut.asked.instructions", "How many held-out instructions were cut to be answered", "rows", "lower"),
    MetricName("crossing.bytes", "Size of the sealed adapter", "bytes", "lower"),
)
