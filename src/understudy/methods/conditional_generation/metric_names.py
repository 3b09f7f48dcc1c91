"""The metrics that only conditional generation shows."""

from __future__ import annotations

from understudy.evaluation.metric_name import MetricName, of_models

# Which language model -> the words for it.
MODELS = {"base": "the untrained base model", "released": "the released model"}

METRIC_NAMES: tuple[MetricName, ...] = (
    MetricName("held_out.rows", "Held-out texts whose loss was taken", "rows", "context"),
    *of_models(
        "held_out.*.loss",
        "Mean loss per token of held-out texts behind the prompts of their labels",
        models=MODELS,
        leading="released",
        unit="nats per token",
        better="lower",
        on="the same texts",
    ),
)
