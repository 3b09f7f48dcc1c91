"""Which synthetic texts are kept: p(label | text) above a threshold (the paper's baseline 1). Post-processing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.model import TrainedModel
from understudy.methods.conditional_generation.states import label_log_probabilities

Reason = Literal["empty", "low_probability"]


def keep_reasons(
    trained: TrainedModel, texts: Sequence[str], labels: Sequence[int], *, config: ConditionalGenerationConfig
) -> list[Reason | None]:
    """Why each text is dropped, or None where it is kept.

    Args:
        trained: The model; its own classifier, trained with DP in the same run, is the judge.
        texts: Synthetic texts.
        labels: Label index of each text.
        config: Whether to filter, and the threshold.
    """
    reasons: list[Reason | None] = [None if text else "empty" for text in texts]
    if not config.filters or not texts:
        return reasons
    threshold = math.log(config.filter.threshold) if config.filter.threshold > 0 else -math.inf
    log_probabilities = label_log_probabilities(trained, texts, config=config)
    for row, (label, reason) in enumerate(zip(labels, reasons, strict=True)):
        if reason is None and float(log_probabilities[row, label]) <= threshold:
            reasons[row] = "low_probability"
    return reasons
