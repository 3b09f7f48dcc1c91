"""The metrics that only trajectory matching shows: how distillation went, and what tuning on its result gives."""

from __future__ import annotations

from understudy.evaluation.metric_name import Better, MetricName

CONDITIONS = {
    "untuned": "the base model as it is",
    "expert": "an expert, which saw the whole set",
    "selected": "the base model tuned on the carrying rows alone",
    "mean_tokens": "the base model tuned on them behind unlearned mean tokens",
    "distilled": "the base model tuned on them behind the learned embeddings",
    "distilled_text": "the base model tuned on them behind the text of the learned tokens",
    "transfer.untuned": "the other model as it is",
    "transfer.selected": "the other model tuned on the carrying rows alone",
    "transfer.distilled_text": "the other model tuned on them behind the text of the learned tokens",
}
# What a model tuned on the distilled rows is compared with, row by row: the first where rows that anyone may see carry
# the tokens, the other where real ones do.
CONTROLS = {
    "mean_tokens": "the same rows behind unlearned tokens",
    "untuned": "the base model as it is",
}
PARTS = 10

_COMPARED: tuple[tuple[str, str, str, Better], ...] = (
    ("accuracy", "Right choices among the candidate answers", "share", "higher"),
    ("few_shot_accuracy", "Right choices among the candidate answers, behind public examples", "share", "higher"),
    ("loss", "Mean loss of held-out responses", "nats per token", "lower"),
)

METRIC_NAMES: tuple[MetricName, ...] = (
    MetricName("distillation.matching_loss.part_{i}", "Mean matching loss of part {i} of ten", "score", "lower"),
    MetricName(
        "distillation.matching_loss.last", "Mean matching loss of the last tenth of the steps", "score", "lower"
    ),
    MetricName(
        "distillation.distance.first", "Distance of pseudo tokens to tokens at the first step", "distance", "context"
    ),
    MetricName("distillation.distance.last", "The same, mean of the last tenth", "distance", "lower"),
    MetricName("distillation.step_size", "The student's learned step size", "score", "context"),
    *(
        MetricName(
            f"tuning.{condition}.accuracy", f"Right choices among the candidate answers: {meaning}", "share", "higher"
        )
        for condition, meaning in CONDITIONS.items()
    ),
    *(
        MetricName(
            f"tuning.{condition}.few_shot_accuracy",
            f"Right choices among the candidate answers, behind public examples: {meaning}",
            "share",
            "higher",
        )
        for condition, meaning in CONDITIONS.items()
    ),
    MetricName("tuning.few_shot_questions", "Questions that fit whole, behind public examples", "rows", "context"),
    *(
        MetricName(
            f"tuning.{condition}.harness.{{task}}",
            f"Accuracy on {{task}} of lm-evaluation-harness: {meaning}",
            "share",
            "higher",
        )
        for condition, meaning in CONDITIONS.items()
    ),
    *(
        MetricName(f"tuning.{condition}.loss", f"Mean loss of held-out responses: {meaning}", "nats per token", "lower")
        for condition, meaning in CONDITIONS.items()
    ),
    *(
        MetricName(
            f"tuning.distilled_minus_{control}.{figure}",
            f"{shown}: {CONDITIONS['distilled']}, minus {CONDITIONS[control]}",
            unit,
            better,
        )
        for control in CONTROLS
        for figure, shown, unit, better in _COMPARED
    ),
)
