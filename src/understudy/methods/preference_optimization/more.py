"""More text from a released policy: post-processing, so nothing is charged and no private text is read.

The exported model is plain weights; which prompts it was drawn with stands in the run's internal folder.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from understudy.data.tables import named_labels
from understudy.methods.further import FurtherDraw
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig


def further_rows(draw: FurtherDraw) -> pa.Table:
    """Further texts from an exported model with the prompts and settings of the run; always in this process.

    Raises:
        InputError: there is no released model, no record of the run, or other seed texts than the run's.
    """
    from understudy.methods.preference_optimization import rounds
    from understudy.methods.preference_optimization.seeds import read_seeds
    from understudy.models.loading import load_model

    model = draw.model
    config, names = _in_process(draw).recorded(
        PreferenceOptimizationConfig, tells="says with which prompts this model is to be used"
    )
    table, _ = rounds.write_texts(
        load_model(model),
        read_seeds(config.seeds, digest=config.seeds_digest),
        config=config,
        label_names=names,
        trained=True,
        progress=draw.progress,
    )
    return named_labels(table, names)


def _in_process(draw: FurtherDraw) -> FurtherDraw:
    """The draw without the endpoint of its run, whose settings need not be such as a run is accepted with today."""
    record = draw.record or {}
    if not isinstance(record.get("config"), dict):
        return draw
    config = {name: value for name, value in record["config"].items() if name != "endpoint"}
    return replace(draw, record={**record, "config": config})
