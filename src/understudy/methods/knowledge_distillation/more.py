"""More pairs from a released model: post-processing, so nothing is charged and no private pair is read."""

from __future__ import annotations

import pyarrow as pa

from understudy.data.tables import named_labels
from understudy.methods.further import FurtherDraw
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig


def further_rows(draw: FurtherDraw) -> pa.Table:
    """Further pairs from the exported model, by the run's own steps; the professional model must be at hand.

    Raises:
        InputError: there is no released model, or no record of the run.
    """
    from understudy.methods.knowledge_distillation.distil import synthesise
    from understudy.models.loading import load_model
    from understudy.settings import private_directory, settings

    model = draw.model
    config, _ = draw.recorded(KnowledgeDistillationConfig, tells="names the professional model")
    answers = private_directory(settings().private_root / "endpoint-answers")
    made = synthesise(load_model(model), config, answers=answers, progress=draw.progress)
    return named_labels(made.table, ())
