"""A setting that a run does not read is no part of its charge; one that it reads is."""

import pytest

from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.method import charged_settings
from understudy.runs.overrides import apply_overrides

MASKED, CONSERVATIVE = "scoring.aggregation=masked", "preferences.loss=conservative"
SERVED = "endpoint.url=http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("setting", "read_with"),
    [
        ("scoring.fractional_bits=10", [MASKED]),
        ("scoring.colluding=1", [MASKED]),
        ("scoring.survivors=0.7", [MASKED]),
        ("preferences.label_smoothing=0.2", [CONSERVATIVE]),
        ("endpoint.model=p-{round}", [SERVED, "endpoint.model=policy-{round}"]),
    ],
)
def test_what_is_not_read_is_not_charged(setting, read_with):
    def charged(*given):
        return charged_settings(apply_overrides(PreferenceOptimizationConfig(), list(given)))

    assert charged(setting) == charged()
    assert charged(*read_with, setting) != charged(*read_with)
