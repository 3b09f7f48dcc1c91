"""The metrics that only conditional generation shows."""

from __future__ import annotations

from understudy.evaluation.names import MetricName

# Which language model -> the words for it.
MODELS = {"base": "the untrained base model", "released": "the released model"}

METRIC_NAMES: tuple[MetricName, ...] = (
    MetricName("held_out.rows", "Held-out texts whose loss was taken", "rows", "context"),
    *(
        MetricName(
            f"held_out.{name}.loss",
            f"Mean loss per token of held-out texts behind the prompts of their labels, by {words}",
            "nats per token",
            "lower" if name == "released" else "context",
        )
        for name, words in MODELS.items()
    ),
    MetricName(
        "held_out.released_minus_base.loss",
        f"The same: {MODELS['released']} minus {MODELS['base']}, on the same texts",
        "nats per token",
        "lower",
    ),
)
