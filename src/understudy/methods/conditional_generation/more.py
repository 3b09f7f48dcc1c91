"""More text from a released model: post-processing, so nothing is charged and no private row is read."""

from __future__ import annotations

import pyarrow as pa

from understudy.data.tables import named_labels
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.storage import load_trained
from understudy.methods.conditional_generation.synthesis import synthesize_stored
from understudy.methods.further import FurtherDraw


def further_rows(draw: FurtherDraw) -> pa.Table:
    """Further rows from an exported model.

    A text follows from the number of its draw, and draws are numbered label after label. So of the texts of another
    `samples`, only some of the first label are the same.

    The settings are the run's, or without its record those stored with the model.

    Raises:
        InputError: there is no released model, or the run's record holds no settings of today's.
    """
    stored = load_trained(draw.model)
    record = draw.record
    config = draw.settings_in(record, ConditionalGenerationConfig) if record else stored.settings
    config = draw.redrawn(config)
    if isinstance(config.class_sizes, dict):
        config = config.model_copy(update={"class_sizes": "balanced"})
    return named_labels(synthesize_stored(stored, config, progress=draw.progress).table, stored.trained.label_names)
