"""More text from a released policy: post-processing, so nothing is charged and no private text is read.

The exported model is plain weights; which prompts it was drawn with stands in the run's internal folder.
"""

from __future__ import annotations

import pyarrow as pa

from understudy.data.tables import named_labels
from understudy.methods.further import FurtherDraw
from understudy.methods.preference_optimization.config import EndpointConfig, PreferenceOptimizationConfig


def further_rows(draw: FurtherDraw) -> pa.Table:
    """Further texts from an exported model with the prompts and settings of the run; always in this process.

    Raises:
        InputError: there is no released model, or no record of the run.
    """
    from understudy.methods.preference_optimization import rounds
    from understudy.methods.preference_optimization.seeds import read_seeds
    from understudy.models.loading import load_model

    model = draw.model
    config, names = draw.recorded(
        PreferenceOptimizationConfig, tells="says with which prompts this model is to be used"
    )
    here = config.model_copy(update={"endpoint": EndpointConfig()})
    seeds = read_seeds(here.seeds)
    table, _ = rounds.write_texts(load_model(model), seeds, config=here, label_names=names, trained=True)
    return named_labels(table, names)
