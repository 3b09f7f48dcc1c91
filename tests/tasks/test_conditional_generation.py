"""The tasks of conditional generation: what they tell while they run."""

import pyarrow as pa
import pytest

from understudy.artifacts.access import write_json
from understudy.methods.conditional_generation import storage, synthesis
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.generate import Synthesis
from understudy.privacy import labels
from understudy.tasks.conditional_generation import prompt_only


@pytest.mark.parametrize("private", [True, False])
def test_texts_in_sizes_of_a_private_histogram_tell_of_no_progress(private, monkeypatch):
    """How many are drawn of each label, and drawn again, follows from it."""
    monkeypatch.setattr(storage, "released_counts", lambda _: [3, 1])
    told = []

    def drawn(*_, progress, **__):
        told.append(progress is not None)
        return Synthesis(pa.table({"text": ["a"], "label": pa.array([0], pa.int32())}), {"good": 1}, {})

    monkeypatch.setattr(synthesis, "synthesize_untrained", drawn)
    config = ConditionalGenerationConfig(class_sizes="as_in_data", samples=4)
    released = write_json({}, kind="model", label=labels.private("ward")) if private else None
    if not private:
        config = config.model_copy(update={"class_sizes": "balanced"})
    prompt_only.fn(config, ("good", "bad"), released)
    assert told == [not private]
